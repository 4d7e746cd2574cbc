"""Jobs that run code of others: each in a process of its own, shut in, and killed when it has answered.

A process that has imported torch forks them. A job's answer is plain data, and may be forged by the code that
it runs: who asks checks it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from passagent.errors import MachineFault
from passagent.sandbox.child import ForkServer, Work
from passagent.sandbox.machine_memory import memory_kills
from passagent.sandbox.sandbox import Limits

JOB = Work(
    f"{__name__}:answer",
    answers=True,
    needs=(
        f"{__name__}:rest_threads",
        "torch._dynamo",
        "torch._inductor.compile_fx",
        "torch._inductor.scheduler",
        "torch.fx.experimental.symbolic_shapes",
        "passagent.tasks.extract.extracting",
        "passagent.tasks.suites.loading_problems",
    ),
)
_MOST_ANSWER = 256 << 20
_T = TypeVar("_T")
_R = TypeVar("_R")

Function = Callable[[dict[str, Any]], Any]
"""A function of a module of passagent. It takes and returns plain data, or raises Refused."""


class Refused(Exception):
    """Code or data of which a job can make nothing."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class Ended(BaseModel):
    """The end of a job."""

    reason: str | None = None
    """One word that says why there is no value."""
    message: str = ""
    """One line: the file and line, what is wrong."""
    seconds: float = 0.0

    @property
    def stands(self) -> bool:
        """The job need not be run again; memory that was short may be there now."""
        return self.reason != "memory"


class JobResult(Ended):
    """The result of a job."""

    value: Any = None
    """The value that the function returned; None where it refused."""


class Jobs(ExitStack):
    """Runs jobs, up to `count` at a time; what it started ends with the `with` block."""

    def __init__(self, count: int, device: str, timeout_s: float, memory: int = 0) -> None:
        """`memory`: address space of a job, bytes; 0: as much as there is."""
        self._count, self._device, self._timeout_s = count, device, timeout_s
        self._threads = max(1, len(os.sched_getaffinity(0)) // count)
        self._limits = Limits(memory=memory, scratch=1 << 30, threads=256)
        self._idle = SimpleQueue[ForkServer]()
        super().__init__()

    def map(self, work: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
        """Yield what `work`, which calls `run`, returns for each item, in order."""
        with ThreadPoolExecutor(self._count) as threads:
            try:
                yield from threads.map(work, items)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self.close()
                raise

    def run(self, function: Function, payload: dict[str, Any]) -> JobResult:
        """Call the function in a new process. Raises InfrastructureError if none can be forked."""
        try:
            server = self._idle.get_nowait()
        except Empty:
            server = ForkServer(
                "the process that forks jobs", JOB, threads=self._threads, device=self._device
            )
            self.enter_context(server)
        order = {"module": function.__module__, "function": function.__name__, "payload": payload}
        begun, kills = time.monotonic(), memory_kills()
        try:
            request = json.dumps(order).encode()
            raw, ended = server.run(JOB, request, self._limits, self._timeout_s, _MOST_ANSWER)
        finally:
            self._idle.put(server)
        answer = _read(raw, ended.code, memory_kills() > kills, self._timeout_s)
        return answer.model_copy(update={"seconds": round(time.monotonic() - begun, 2)})


def _read(raw: bytes | None, status: int, is_memory_short: bool, timeout_s: float) -> JobResult:
    """Read what a process answered before it ended with `status`; None: it did not answer in time."""
    if raw is None:
        return JobResult(reason="timeout", message=f"takes more than {timeout_s:g} s")
    if not raw:
        if is_memory_short:
            return JobResult(reason="memory", message="needs more memory than there is")
        how_ended = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit code {status}"
        return JobResult(reason="fails", message=f"ends the process that runs it, {how_ended}")
    try:
        return JobResult.model_validate_json(raw)
    except ValidationError:
        return JobResult(reason="fails", message="its process gives no answer that can be read")


def rest_threads() -> None:
    """Have torch take one thread while modules are imported: a fork has none of the threads of its parent."""
    import torch

    torch.set_num_threads(1)


def answer(request: bytes, scratch: Path) -> bytes:
    """Call the function that a request names, and answer as JobResult does."""
    import torch

    order = json.loads(request)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    function = getattr(importlib.import_module(order["module"]), order["function"])
    try:
        result = {"value": function(order["payload"])}
    except BaseException as error:
        reason, message = _reason(error, scratch)
        result = {"reason": reason, "message": " ".join(message.replace(f"{scratch}/", "").split())[:400]}
    return json.dumps(result).encode()


def _reason(error: BaseException, scratch: Path) -> tuple[str, str]:
    """Say in a word and a line why a job has no value."""
    from passagent.tasks.extract.model_capture import place_in

    if isinstance(error, Refused):
        return error.reason, error.message
    where = place_in(error, [*scratch.glob("*.py")])
    message = f"{where}: " * bool(where) + f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        return "missing_package", f"{where or 'it'}: needs the package {error.name}"
    if isinstance(error, MemoryError | MachineFault) or lacks_memory(str(error)):
        return "memory", message
    if re.search(r"not compiled with CUDA|No CUDA GPUs|NVIDIA driver|Torch not compiled", str(error)):
        return "needs_gpu", message
    if type(error).__name__ in ("PassagentError", "TaskError"):
        return "not_captured", str(error)
    return "fails", message


def lacks_memory(text: str) -> bool:
    """Find the words of torch on the CPU, of its allocator on a GPU, or of a library of NVIDIA."""
    return any(words in text for words in ("can't allocate memory", "out of memory", "_ALLOC_FAILED"))
