"""Units of work: each runs in a process of its own, and its result is a row under the hash of what went in.

A unit that was computed before is read and not computed again. A process that has imported torch (`serve`)
forks a process for each unit: it reads orders as JSON lines from stdin and writes answers as JSON lines to
stdout. A unit that takes too long, or all memory, ends only its own process.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pydantic import BaseModel

from passagent.errors import InfrastructureError, MachineFault, PassagentError
from passagent.sandbox import privileges
from passagent.sandbox.environment import gpus_in_sight, import_path
from passagent.system.faults import machine_fault
from passagent.system.machine_memory import memory_kills
from passagent.system.resumable import RowFile

_VERSION = 1
"""The version of the results: another version does not read them."""
_PATIENCE = 10
"""Seconds of waiting for one of CPU time: other programs may be at work."""


class Refused(PassagentError):
    """The input of a unit is no material for a data set."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


Function = Callable[[dict[str, Any]], Any]
"""A function of a module of passagent. It takes plain data and returns plain data, or raises Refused."""
Job = tuple[str, dict[str, Any]]
"""A unit of a function: its name, and the data that the function takes."""


def key_of(function: Function, payload: dict[str, Any]) -> str:
    """Hash a unit."""
    text = json.dumps([_VERSION, f"{function.__module__}:{function.__name__}", payload], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Done(BaseModel):
    """The result of a unit."""

    key: str
    name: str = ""
    value: Any
    """The value that the function returned, None where it refused."""
    reason: str
    """One word: why there is no value; empty if there is one."""
    detail: str
    seconds: float
    peak_mib: int


class Units:
    """Computes units, several at a time, for a device; its processes end with the `with` block."""

    def __init__(self, work: Path, parallel: int, limit_s: int, device: str) -> None:
        """`work`: the directory with a file of rows for each stage; `limit_s`: CPU time of a unit."""
        self._work, self._parallel, self._limit_s, self._device = work, parallel, limit_s, device
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []
        self._stage: RowFile[Done] | None = None

    def __enter__(self) -> Units:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.communicate()

    def rows(self, stage: str) -> dict[Hashable, Done]:
        """Return the results of a stage by the units' keys."""
        path = self._work / f"{stage}.jsonl"
        if self._stage is None or self._stage.path != path:
            self._stage = RowFile(path, Done, "a result of passagent tasks build")
        return self._stage.rows

    def results(self, stage: str, function: Function, jobs: Sequence[Job]) -> list[Done]:
        """Return the results of a stage's units, in their order.

        Raises InfrastructureError for faults of the machine once all other units are computed.
        """
        rows, keys = self.rows(stage), [key_of(function, payload) for _, payload in jobs]
        todo = {key: job for key, job in zip(keys, jobs, strict=True) if key not in rows}
        while len(self._processes) < min(self._parallel, len(todo)):
            self._processes.append(self._start())
            self._idle.put(self._processes[-1])
        with ThreadPoolExecutor(self._parallel) as pool:
            running = [pool.submit(self._ask, function, key, *job) for key, job in todo.items()]
            try:
                faults = [fault for future in as_completed(running) if (fault := future.result())]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.__exit__()
                raise
        if faults:
            raise InfrastructureError(
                f"{len(faults)} of {len(todo)} {stage} units failed for the machine's sake: {faults[0]}; "
                "the same command goes on"
            )
        return [
            rows[key].model_copy(update={"name": name}) for key, (name, _) in zip(keys, jobs, strict=True)
        ]

    def _start(self) -> subprocess.Popen[str]:
        """Start a process that forks.

        torch counts the GPUs through NVML there: counting them through CUDA would start CUDA, and a process
        that has started CUDA cannot fork one that uses it.
        """
        threads = max(1, len(os.sched_getaffinity(0)) // self._parallel)
        return subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({threads})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | import_path()
            | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
            | gpus_in_sight(self._device),
            start_new_session=True,
        )

    def _ask(self, function: Function, key: str, name: str, payload: dict[str, Any]) -> str:
        """Have a process compute a unit, and keep its result; return the machine's fault, if it had one."""
        process = self._idle.get()
        assert process.stdin is not None and process.stdout is not None and self._stage is not None
        order = {"module": function.__module__, "function": function.__name__, "payload": payload}
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(order | {"limit_s": self._limit_s}) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            self._idle.put(process)
        if not line:
            raise InfrastructureError(f"{name}: the process that computes it ended; run the command again")
        answer = json.loads(line)
        if fault := answer.pop("fault", ""):
            return f"{name}: {fault}"
        self._stage.add(Done(key=key, **answer))
        return ""


def serve(threads: int) -> None:
    """Compute the units that stdin orders, until it closes."""
    privileges.prctl(privileges.SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)  # what a model or a compiler prints is no answer
    # all that units need is imported once, without its threads and processes
    import torch
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    torch.set_num_threads(threads)
    importlib.import_module("torch._inductor.compile_fx")
    importlib.import_module("torch._inductor.scheduler")
    for line in sys.stdin:
        print(json.dumps(_in_a_process(json.loads(line))), file=answers, flush=True)


def _in_a_process(order: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a unit: value, reason, detail, seconds, peak_mib; or `fault`."""
    kills, begun = memory_kills(), time.monotonic()
    with tempfile.TemporaryFile("w+") as result:
        pid = os.fork()
        if pid == 0:
            try:
                privileges.prctl(privileges.SET_PDEATHSIG, signal.SIGKILL)
                resource.setrlimit(resource.RLIMIT_CPU, (order["limit_s"], order["limit_s"] + 1))
                signal.alarm(_PATIENCE * order["limit_s"])  # for what waits and takes no CPU time
                json.dump(_computed(order), result)
                result.flush()
            finally:
                os._exit(0)
        _, status, usage = os.wait4(pid, 0)
        result.seek(0)
        text = result.read()
    ended = os.waitstatus_to_exitcode(status)
    if text and ended == 0:
        answer: dict[str, Any] = json.loads(text)
    elif ended in (-signal.SIGALRM, -signal.SIGXCPU):
        answer = _refusal("timeout", f"takes more than {order['limit_s']} s of CPU time")
    elif ended == -signal.SIGKILL and memory_kills() > kills:
        answer = _refusal("memory", "needs more memory than there is")
    else:
        answer = _refusal("crash", f"its process ended with {ended}")
    return answer | {"seconds": round(time.monotonic() - begun, 3), "peak_mib": usage.ru_maxrss >> 10}


def _refusal(reason: str, detail: str) -> dict[str, Any]:
    return {"value": None, "reason": reason, "detail": detail}


def _computed(order: dict[str, Any]) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        function = getattr(importlib.import_module(order["module"]), order["function"])
        return {"value": function(order["payload"]), "reason": "", "detail": ""}
    except Refused as error:
        return _refusal(error.reason, error.detail)
    except Exception as error:
        if fault := error if isinstance(error, MachineFault) else machine_fault(error):
            return {"fault": str(fault)}
        lines = str(error).strip().splitlines()
        return _refusal("error", f"{type(error).__name__}: {lines[0] if lines else ''}")
