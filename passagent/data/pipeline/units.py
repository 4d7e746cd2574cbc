"""Units of work: each runs in a process of its own, and its result is a file named by what went in.

A unit that was computed before is read and not computed again. A result file appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from passagent.errors import InfrastructureError, PassagentError
from passagent.sandbox.environment import gpus_in_sight, import_path
from passagent.system.cache import write_whole

VERSION = 1
"""Of the results: another version does not read them."""


class Refused(PassagentError):
    """What a unit was given is no material for a data set."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class Unit(NamedTuple):
    """A call of a function of passagent with plain data."""

    stage: str
    name: str
    function: str
    """`module:function`; it takes the payload and returns plain data, or raises Refused."""
    payload: dict[str, Any]

    def file(self, work: Path) -> Path:
        """Where its result is kept below `work`."""
        text = json.dumps([VERSION, self.function, self.payload], sort_keys=True)
        return work / self.stage / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


class Done(NamedTuple):
    """The result of a unit."""

    name: str
    value: Any
    """What the function returned, None where it refused."""
    reason: str
    """One word: why there is no value; empty if there is one."""
    detail: str
    seconds: float
    peak_mib: int


class _Worker:
    """A process that has imported torch and forks a process for each unit (unit_process.py).

    torch counts the GPUs through NVML there: counting them through CUDA would start CUDA, and a process that
    has started CUDA cannot fork one that uses it.
    """

    def __init__(self, threads: int, device: str) -> None:
        command = [sys.executable, "-P", "-m", "passagent.data.pipeline.unit_process", str(threads)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | import_path() | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} | gpus_in_sight(device),
            start_new_session=True,
        )

    def run(self, unit: Unit, limit_s: int) -> dict[str, Any]:
        """Raises InfrastructureError if the process ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"function": unit.function, "payload": unit.payload, "limit_s": limit_s}
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise InfrastructureError(
                f"{unit.name}: the process that computes it ended; run the command again"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Units:
    """Computes units, several at a time."""

    def __init__(self, work: Path, parallel: int, limit_s: int, device: str) -> None:
        self._work, self._parallel, self._limit_s, self._device = work, parallel, limit_s, device
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers: list[_Worker] = []

    def results(self, units: Sequence[Unit]) -> Iterator[Done]:
        """Of each unit, in their order. Raises InfrastructureError for what the machine failed, last."""
        todo = [unit for unit in units if not unit.file(self._work).exists()]
        if todo:
            self._compute(todo)
        for unit in units:
            yield Done(unit.name, **json.loads(unit.file(self._work).read_text(encoding="utf-8")))

    def _compute(self, units: list[Unit]) -> None:
        while len(self._workers) < min(self._parallel, len(units)):
            threads = max(1, len(os.sched_getaffinity(0)) // self._parallel)
            self._workers.append(_Worker(threads, self._device))
            self._idle.put(self._workers[-1])
        with ThreadPoolExecutor(self._parallel) as pool:
            running = [pool.submit(self._one, unit) for unit in units]
            try:
                faults = [fault for one in as_completed(running) if (fault := one.result())]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.close()
                raise
        if faults:
            raise InfrastructureError(f"{len(faults)} of {len(units)} {faults[0]}; the same command goes on")

    def _one(self, unit: Unit) -> str:
        """Compute a unit and keep its result; the fault of the machine, if it had one."""
        worker = self._idle.get()
        try:
            answer = worker.run(unit, self._limit_s)
        finally:
            self._idle.put(worker)
        if fault := answer.pop("fault", ""):
            return f"{unit.stage} units failed for the machine's sake: {unit.name}: {fault}"
        write_whole(unit.file(self._work), json.dumps(answer))
        return ""

    def close(self) -> None:
        """End the processes."""
        while self._workers:
            self._workers.pop().close()


@contextmanager
def computing(work: Path, parallel: int, limit_s: int, device: str) -> Iterator[Units]:
    """Units below `work`, for a device; the processes end with the block."""
    units = Units(work, parallel, limit_s, device)
    try:
        yield units
    finally:
        units.close()
