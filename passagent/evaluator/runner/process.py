"""The referee's handle on a worker: start, ask with a deadline, learn how it died, kill its whole group."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from passagent.errors import InfrastructureError
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.runner import endings, worker_messages, worker_process
from passagent.evaluator.runner.endings import (
    WorkerDied,
    WorkerTimeout,
    failed,
    last_line,
    lost,
    processor_ns,
    tail,
    waited_ns,
)
from passagent.evaluator.runner.marks import Marks
from passagent.evaluator.runner.worker_messages import Error, Failure, R, Request, Run
from passagent.sandbox.channel import Channel, ChannelClosed, ChannelTimeout
from passagent.sandbox.child import Ending, Fork, ForkServer
from passagent.sandbox.environment import worker_memory
from passagent.sandbox.faults import named
from passagent.sandbox.machine_memory import memory_kills
from passagent.sandbox.unseen import hidden

_ENTER_S = 20.0
"""For a worker to shut itself in."""
_TAKE_S = 20.0
"""For a worker to take what it asked for."""


@dataclass(frozen=True)
class WorkerAnswer(Generic[R]):
    """A worker's message, and the referee's own clock between the worker's start and end marks, ns."""

    said: R | Failure
    clock_ns: int | None
    waited_ns: int = 0
    """In a block that begins on a signal: the time that the worker waited for a core."""
    busy_ns: tuple[int, int] = 0, 0
    """The processor time that the worker's threads took for the answer, and the time until it came, ns."""

    @property
    def error(self) -> Error | None:
        """Why there is no reply."""
        return self.said.error if isinstance(self.said, Failure) else None

    @property
    def reply(self) -> R:
        """The reply that was asked for, where there is no error."""
        assert not isinstance(self.said, Failure)
        return self.said


class WorkerServer:
    """Forks a referee's workers from a warm process. Whoever started that process ends it."""

    def __init__(self, server: ForkServer, lease: DeviceLease | None = None) -> None:
        """Wait until `server` runs. Raises InfrastructureError.

        `lease`: its workers share the device for each step; None: nobody else uses it.
        """
        self._server, self._lease = server, lease
        self._workers: list[Worker] = []
        server.load()

    def fork(
        self,
        memory_gb: float | None,
        sandboxed: bool = True,
        compiled: Path | None = None,
    ) -> Worker:
        """A fresh worker in a process group of its own, shut in unless it is trusted (`sandboxed=False`).

        `memory_gb` limits its address space (worker_memory); None where CUDA maps far more than it uses.
        `compiled`: where TorchInductor keeps what it compiles, in place of the worker's scratch. Raises
        InfrastructureError.
        """
        limits = replace(endings.LIMITS, memory=worker_memory(memory_gb))
        environment = {}
        if compiled is not None:
            environment["TORCHINDUCTOR_CACHE_DIR"] = str(compiled)
            environment["TRITON_CACHE_DIR"] = str(compiled / "triton")
        with named("a worker cannot be forked"):
            fork = self._server.fork(worker_process.WORKER, limits, sandboxed, environment)
        worker = Worker(self._server, fork, self._lease)
        self._workers = [other for other in self._workers if not other.is_closed] + [worker]
        return worker

    def load_dynamo(self, compiler: bool = False) -> None:
        """Import Dynamo, which takes seconds, once for all workers forked from now on.

        `compiler`: and TorchInductor. Raises InfrastructureError.
        """
        inductor = ["torch._inductor.compile_fx"] if compiler else []
        # a capture asks for the devices, and a process that has asked for a GPU cannot be forked
        captures = [worker_process.CAPTURES] if self._server.device == "cpu" else []
        self._server.load("passagent.tasks.capture", *captures, *inductor)

    def close(self) -> None:
        """End every worker."""
        for worker in self._workers:
            worker.kill()


class Worker:
    """One forked process, the channel to it, and its sandbox's layers (`protections`: "on" or "off: WHY")."""

    asked_at = 0.0
    """When it was sent its last request, by time.monotonic: not before the device was free."""

    def __init__(self, server: ForkServer, fork: Fork, lease: DeviceLease | None) -> None:
        """Wait until it has shut itself in. Raises InfrastructureError."""
        self.pid, self.scratch = fork.pid, fork.scratch
        self._server, self._fork, self._lease = server, fork, lease
        self._channel = Channel(fork.stream)
        self._memory_kills = memory_kills()
        self._is_reaped = self.is_closed = False
        try:
            self.protections: dict[str, str] = self._channel.receive(_ENTER_S)[0]["protections"]
        except (ChannelClosed, ChannelTimeout) as error:
            why = last_line(self.log())
            self.kill()
            raise InfrastructureError(f"a worker died before it was ready{why}") from error

    def ask(self, request: Request[R], timeout_s: float, fds: tuple[int, ...] = ()) -> WorkerAnswer[R]:
        """Send a request and wait for its reply.

        Before that it waits until the device may be used, if another program times on it. Raises
        WorkerTimeout and WorkerDied; the worker is then killed.
        """
        with self._lease.shared() if self._lease is not None else nullcontext():
            self.asked_at = time.monotonic()
            return self._answered(request, timeout_s, fds)

    def _answered(self, request: Request[R], timeout_s: float, fds: tuple[int, ...]) -> WorkerAnswer[R]:
        deadline = time.monotonic() + timeout_s
        started: int | None = None
        ended: int | None = None
        before: int | None = None
        waited = 0
        marks = None
        # The kernel counts the time of a process that rests at once, else every few ms: this one rests.
        asked_ns, took_ns = time.perf_counter_ns(), processor_ns(self.pid)
        try:
            marks = self._send(request, timeout_s, fds)
            while True:
                message, _ = self._channel.receive(max(0.0, deadline - time.monotonic()))
                now = time.perf_counter_ns()
                reply = worker_messages.read(request, message)
                if isinstance(reply, worker_messages.Reply):
                    clocked = None if started is None or ended is None else ended - started
                    if marks is not None and isinstance(reply, worker_messages.RunReply):
                        samples, copying = marks.times()
                        reply = reply.model_copy(update={"samples": samples, "copying": copying})
                    busy_ns = processor_ns(self.pid) - took_ns, time.perf_counter_ns() - asked_ns
                    return WorkerAnswer(reply, clocked, max(0, waited), busy_ns)
                if reply.mark == "end":
                    ended = now
                    waited = self._waited_ns() - before if before is not None else 0
                elif started is None:
                    started = now
                    if isinstance(request, Run) and request.core is not None:
                        before = self._waited_ns()
                        started = time.perf_counter_ns()
                        self._channel.send({"clock": "runs"}, (), _TAKE_S)
                else:
                    raise ValueError("timed calls start twice")
        except ChannelTimeout as error:
            self.kill()
            raise WorkerTimeout(f"no answer within {timeout_s:.0f} s") from error
        except (ChannelClosed, ValueError, RecursionError) as error:
            raise self._died(isinstance(error, ChannelClosed)) from error
        finally:
            if marks is not None:
                marks.close()

    def _send(self, request: Request[Any], timeout_s: float, fds: tuple[int, ...]) -> Marks | None:
        """Send a request; where it is for timed calls what they may not know early goes in a file beside.

        Returns what marks these calls, if the kernel does.
        """
        if not isinstance(request, Run):
            self._channel.send(request.model_dump(), fds, timeout_s)
            return None
        unseen, marks = hidden(request.windows), None
        try:
            with suppress(OSError):
                marks = Marks(len(request.windows), request.keep)
            sent = request.model_dump(exclude={"windows"}) | {"windows": []}
            self._channel.send(sent, (unseen,) if marks is None else (unseen, marks.fd), timeout_s)
        except BaseException:
            if marks is not None:
                marks.close()
            raise
        finally:
            os.close(unseen)
        return marks

    def _died(self, closed: bool) -> WorkerDied:
        """The end of the worker, which is killed if it was not dead."""
        ending = self._ending() if closed else None
        killed = memory_kills() > self._memory_kills
        log, self._is_reaped = self.log(), ending is not None
        self.kill()
        if ending is None:
            return WorkerDied(None, log, lost=self._fork.parent.poll() is not None)
        return WorkerDied(ending.code, log, no_memory=killed, cpu_s=ending.cpu_s)

    def is_alive(self) -> bool:
        """Tell whether it still runs, as far as a look at its process tells."""
        if self.is_closed or self._fork.parent.poll() is not None:
            return False
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def halt(self) -> None:
        """Have every thread of the worker stand still."""
        self._signal(signal.SIGSTOP)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have every thread of the worker stand still inside the block."""
        self.halt()
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if not self.is_closed:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _ending(self) -> Ending | None:
        return self._server.ending(self._fork)

    def _waited_ns(self) -> int:
        return waited_ns(self.pid)

    def log(self, limit: int = 2000) -> str:
        """The end of what the worker printed, at most `limit` characters."""
        return tail(self.scratch / "log", limit)

    def interrupt(self) -> None:
        """Kill the worker's processes; a pending `ask` raises WorkerDied."""
        if not self.is_closed:
            self._fork.kill()

    def kill(self) -> None:
        """Kill the worker and everything it started, and remove its scratch directory."""
        if self.is_closed:
            return
        self.interrupt()
        self.is_closed = True
        self._channel.close()
        if not self._is_reaped:
            self._ending()
        shutil.rmtree(self.scratch, ignore_errors=True)


def answered(worker: Worker, request: Request[Any], timeout_s: float, name: str) -> Worker:
    """The worker `name` once it has answered its first request. Raises InfrastructureError; it is killed."""
    try:
        error = worker.ask(request, timeout_s).error
    except (WorkerDied, WorkerTimeout) as death:
        raise lost(f"{name} did not start", death) from death
    if error is not None:
        worker.kill()
        raise failed(f"{name} did not start", error)
    return worker
