"""A worker whose referee answers at once, as tiny_search.judge does; what carries the calls is real.

Also a program: `python tests/stub_worker.py LISTEN TOKEN_FILE OPTIONS`, OPTIONS as JSON: `devices`, `words`
of the device, other versions (`torch`), `problem`: a file without which it is sick. Each evaluation that is
begun is a line of the file STUB_LOG: the process's pid, the candidate's key.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tiny_search

from passagent.config import EvaluatorConfig
from passagent.evaluator.fleet import offers
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.result import Candidate
from passagent.evaluator.service.device_owner import Lost

TOKEN = "a-token-for-tests-only\n"
FIGURES = {"issue_s": 1e-6, "bandwidths": [[1 << 20, 1e10], [1 << 24, 1e10], [1 << 27, 1e10]]}


class StubOwner:
    """In the place of a RefereeProcess; STUB_LOG names its file, STUB_SECONDS what an evaluation takes."""

    pid = None

    def __init__(self, device: Device, config: EvaluatorConfig, cores: list[int], notify: Any = None) -> None:
        self.device = device

    async def ask(self, request: dict[str, Any]) -> Any:
        if "describe_s" in request or request.get("outline"):
            return []
        candidate = Candidate(request["files"])
        well = os.environ.get("STUB_WELL")
        if well and not os.path.exists(well):
            raise Lost("the device gave no answer")
        with open(os.environ["STUB_LOG"], "a") as log:
            log.write(f"{os.getpid()} {candidate.key}\n")
        await asyncio.sleep(float(os.environ.get("STUB_SECONDS", "0")))
        return tiny_search.judge(candidate).model_dump() | {"plan_files": {}}

    async def foresee(self, request: dict[str, Any]) -> None:
        pass

    async def check(self, quick: bool = False) -> str | None:
        return None

    async def stop(self) -> None:
        pass


def facts(
    devices: int = 1, words: str = "stub cpu; python; torch", name: str = "cpu", **changes: str
) -> dict[str, Any]:
    """What such a machine says of itself."""
    devices_there = [
        {"name": name, "uuid": f"stub-{number}", "model": "stub", "label": "stub cpu", "words": words}
        | {"machine": FIGURES}
        for number in range(devices)
    ]
    return {"host": "stub", "versions": offers.versions() | changes, "devices": devices_there}


def make_host(device: str) -> Any:
    """Of an actor of Ray, in the place of ray_fleet.make_host; `host` is the GPU that it sees."""
    from passagent.evaluator.fleet.host import Host

    found = facts(name=device)
    found["host"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return Host(found, StubOwner)


class StubWorker:
    """A process of this program."""

    def __init__(
        self, place: Path, port: int = 0, listen: str = "127.0.0.1", prefix: Any = (), **options: Any
    ) -> None:
        """`prefix`: of its command, such as `ip netns exec NAME`."""
        self.log, token = place / "evaluated.log", place / "token"
        token.write_text(TOKEN)
        self.log.touch()
        environment = os.environ | {"STUB_LOG": str(self.log), "STUB_SECONDS": str(options.pop("seconds", 0))}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, __file__, f"{listen}:{port}", str(token), json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"XDG_RUNTIME_DIR": str(place)},
        )
        self._address = ""

    @property
    def address(self) -> str:
        """Once it listens."""
        assert self.process.stdout is not None
        self._address = self._address or self.process.stdout.readline().strip()
        return self._address

    def evaluated(self) -> list[str]:
        """The keys of the candidates that were begun, by whichever process."""
        return [line.split()[1] for line in self.log.read_text().splitlines()]

    def kill(self) -> None:
        """As a machine that loses its power."""
        self.process.kill()
        self.process.wait()

    def wait_for(self, count: int) -> None:
        """Until so many were begun."""
        until = time.monotonic() + 600
        while len(self.evaluated()) < count:
            assert time.monotonic() < until, "nothing was evaluated"
            time.sleep(0.01)


def main() -> None:
    """The program."""
    from passagent.evaluator.fleet.host import Host
    from passagent.evaluator.fleet.http_fleet import token_in
    from passagent.evaluator.fleet.worker_app import serve

    listen, token, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    problem = options.pop("problem", None)
    if problem:
        os.environ["STUB_WELL"] = problem
        from passagent.evaluator.hardware import health

        async def check(device: Device, quick: bool = False) -> str | None:
            return None if os.path.exists(problem) else "a kernel gave the wrong sum"

        health.check = check
    host = Host(facts(**options), StubOwner)
    serve(host, listen, token_in(Path(token)), lambda address: print(address, flush=True))


if __name__ == "__main__":
    main()
