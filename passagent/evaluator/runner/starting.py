"""Start the evaluator's processes: without torch or pydantic here, so that all import at the same time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from passagent.evaluator.hardware.devices import gpu_numbers
from passagent.sandbox.environment import core_shares, import_path, worker_environment
from passagent.system.faults import named

if TYPE_CHECKING:
    from passagent.config import EvaluatorConfig

ZYGOTE = "passagent.evaluator.runner.zygote"
"""The module that is the fork server."""
_END_S = 10.0


@dataclass(frozen=True)
class Started:
    """A fork server on its way: its process, the socket on which it will say so, its private directory."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    scratch: Path


@dataclass(frozen=True)
class StartedReferee:
    """A device's owner (serve.py) that is on its way, the socket to it, and what it writes to stderr."""

    device: str
    process: subprocess.Popen[bytes]
    socket: socket.socket
    log: IO[bytes]

    def end(self) -> None:
        """Kill it, if it still runs, and wait for its end. Raises subprocess.TimeoutExpired."""
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(_END_S)


def cpu_sets(config: EvaluatorConfig) -> int:
    """Candidates that are judged at a time on the CPU, each on cores of its own: `threads`, and one for its
    referee. One where all cores are the workers', and on a GPU.
    """
    if config.device != "cpu" or config.threads is None or config.isolation != "sandboxed":
        return 1
    return max(1, len(os.sched_getaffinity(0)) // (config.threads + 1))


def start_referee(
    device: str, config: EvaluatorConfig, cores: Sequence[int], task_path: Path | None = None
) -> StartedReferee:
    """Start the owner of `device` (`cpu` or `cuda:N`) on `cores` and do not wait for it.

    `task_path`: what it prepares for before it is asked. Raises OSError, InfrastructureError for its log.
    """
    with named("the evaluator does not start"):
        log = tempfile.TemporaryFile()  # noqa: SIM115
    ours, theirs = socket.socketpair()
    with theirs:
        local = config.model_copy(update={"device": device})
        words = [local.model_dump_json(), json.dumps(cores), *([] if task_path is None else [str(task_path)])]
        process = subprocess.Popen(
            [sys.executable, "-m", "passagent.evaluator.service.serve", *words],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the search, which then closes the pool
            env=os.environ | import_path(),
        )
    return StartedReferee(device, process, ours, log)


@contextmanager
def owner_ahead(config: EvaluatorConfig, task_path: Path) -> Iterator[StartedReferee | None]:
    """The owner of the device that `config` names, started before torch is imported here; None for several
    and where nothing is shut in.

    It prepares for the task while this process imports, and a model thinks. Whoever takes it asks it; at the
    end it is killed, taken or not.
    """
    devices = ["cpu"] if config.device == "cpu" else [f"cuda:{n}" for n in gpu_numbers(config.device)]
    if len(devices) != 1 or config.isolation != "sandboxed":
        yield None
        return
    [device] = devices
    started = start_referee(device, config, core_shares(cpu_sets(config))[0], task_path)
    try:
        yield started
    finally:
        started.end()


def start_zygote(device: str, threads: int) -> Started:
    """Start a fork server and do not wait for it. Raises InfrastructureError."""
    with named("the evaluator's worker did not start"):
        scratch = Path(tempfile.mkdtemp(prefix="passagent-"))
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        with open(scratch / "zygote.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", ZYGOTE, str(theirs.fileno()), device],
                pass_fds=[theirs.fileno()],
                env=worker_environment(scratch, threads, device) | import_path(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        theirs.close()
    return Started(process, ours, scratch)
