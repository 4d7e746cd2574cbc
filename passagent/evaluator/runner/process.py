"""The referee's handle on a worker: start, ask with a deadline, learn how it died, kill its whole group."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic

from passagent.errors import InfrastructureError
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.runner import endings, worker_messages
from passagent.evaluator.runner.endings import (
    Ending,
    WorkerDied,
    WorkerTimeout,
    failed,
    is_exiting,
    last_line,
    lost,
    tail,
    waited_ns,
)
from passagent.evaluator.runner.marks import Marks
from passagent.evaluator.runner.starting import Started, start_zygote
from passagent.evaluator.runner.worker_messages import Error, Failure, R, Request, Run
from passagent.sandbox.channel import Channel, ChannelClosed, ChannelTimeout
from passagent.sandbox.environment import worker_environment, worker_memory
from passagent.sandbox.unseen import hidden
from passagent.system.faults import named
from passagent.system.machine_memory import memory_kills

START_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 60.0
"""For the kernel to take a process down, which takes seconds where a GPU's memory is freed for many."""
_TAKE_S = 20.0
"""For a worker to take what it asked for."""


@dataclass(frozen=True)
class Answer(Generic[R]):
    """A worker's message, and the referee's own clock between the worker's start and end marks, ns."""

    said: R | Failure
    clock_ns: int | None
    waited_ns: int = 0
    """In a block that begins on a signal: the time that the worker waited for a core."""

    @property
    def error(self) -> Error | None:
        """Why there is no reply."""
        return self.said.error if isinstance(self.said, Failure) else None

    @property
    def reply(self) -> R:
        """The reply that was asked for, where there is no error."""
        assert not isinstance(self.said, Failure)
        return self.said


class Zygote:
    """A warm process that workers are forked from; started again when it is lost."""

    def __init__(
        self,
        device: str,
        threads: int,
        started: Started | None = None,
        lease: DeviceLease | None = None,
    ) -> None:
        """`lease`: its workers share the device for each step; None: nobody else uses it."""
        self._device, self._threads, self._lease = device, threads, lease
        self._lock = threading.Lock()
        self._take(started or start_zygote(device, threads))

    def _take(self, started: Started) -> None:
        """Wait until it is ready. Raises InfrastructureError."""
        self._loaded: set[bool] = set()
        self._process, self._scratch = started.process, started.scratch
        self._channel = Channel(started.socket)
        try:
            self._channel.receive(START_TIMEOUT_S)
        except (ChannelClosed, ChannelTimeout) as error:
            why = last_line(tail(self._scratch / "zygote.log")) or f": {error}"
            self.close()
            raise InfrastructureError(f"the evaluator's worker did not start{why}") from error

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
        self._revive()
        with named("a worker cannot be forked"):
            return self._fork(memory_gb, sandboxed, compiled)

    def load_dynamo(self, compiler: bool = False) -> None:
        """Import Dynamo, which takes seconds, once for all workers forked from now on.

        `compiler`: and TorchInductor. Raises InfrastructureError.
        """
        self._revive()
        if compiler not in self._loaded:
            self._ask({"op": "dynamo", "compiler": compiler})
            self._loaded |= {False, compiler}

    def _revive(self) -> None:
        """Start it again if it was lost. Raises InfrastructureError."""
        with self._lock:
            if self._process.poll() is not None:
                self.close()
                self._take(start_zygote(self._device, self._threads))

    def _fork(self, memory_gb: float | None, sandboxed: bool, compiled: Path | None) -> Worker:
        scratch = Path(tempfile.mkdtemp(dir=self._scratch))
        ours, theirs = socket.socketpair()
        limits = replace(endings.LIMITS, memory=worker_memory(memory_gb))
        environment = worker_environment(scratch, self._threads, self._device)
        if compiled is not None:
            environment |= {
                "TORCHINDUCTOR_CACHE_DIR": str(compiled),
                "TRITON_CACHE_DIR": str(compiled / "triton"),
            }
        request = {
            "op": "fork",
            "env": environment,
            "limits": asdict(limits),
            "sandboxed": sandboxed,
        }
        with open(scratch / "log", "wb") as log:
            reply = self._ask(request, (theirs.fileno(), log.fileno()))
        theirs.close()
        if "error" in reply:
            ours.close()
            if "errno" in reply:
                raise OSError(reply["errno"], os.strerror(reply["errno"]))
            raise InfrastructureError(str(reply["error"]) + last_line(tail(scratch / "log")))
        return Worker(self, int(reply["pid"]), Channel(ours), scratch, reply["protections"])

    def ending(self, pid: int) -> Ending | None:
        """How a worker ended; None if it does not begin to within a second, or its server is lost."""
        began = time.monotonic()
        try:
            while time.monotonic() < began + (EXIT_TIMEOUT_S if is_exiting(pid) else 1.0):
                reply = self._ask({"op": "reap", "pid": pid})
                if reply["status"] is not None:
                    return Ending(int(reply["status"]), float(reply["cpu_s"]))
                time.sleep(0.01)
        except InfrastructureError:
            pass
        return None

    def _ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        try:
            with self._lock:  # the next worker is forked while this one works
                self._channel.send(message, fds)
                return self._channel.receive(START_TIMEOUT_S)[0]
        except (ChannelClosed, ChannelTimeout) as error:
            self._process.kill()  # what does not answer is not asked again
            self._process.wait()
            why = last_line(tail(self._scratch / "zygote.log"))
            raise InfrastructureError(f"the evaluator's warm process is gone{why}") from error

    def close(self) -> None:
        """End the fork server and with it every worker."""
        self._channel.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)


class Worker:
    """One forked process, the channel to it, and its sandbox's layers (`protections`: "on" or "off: WHY")."""

    asked_at = 0.0
    """When it was sent its last request, by time.monotonic: not before the device was free."""

    def __init__(
        self,
        zygote: Zygote,
        pid: int,
        channel: Channel,
        scratch: Path,
        protections: dict[str, str],
    ) -> None:
        self.pid, self.scratch, self.protections = pid, scratch, protections
        self._zygote, self._channel, self._lease = zygote, channel, zygote._lease
        self._parent = zygote._process
        self._memory_kills = memory_kills()
        self._is_reaped = self._is_closed = False

    def ask(self, request: Request[R], timeout_s: float, fds: tuple[int, ...] = ()) -> Answer[R]:
        """Send a request and wait for its reply.

        Before that it waits until the device may be used, if another program times on it. Raises
        WorkerTimeout and WorkerDied; the worker is then killed.
        """
        with self._lease.shared() if self._lease is not None else nullcontext():
            self.asked_at = time.monotonic()
            return self._answered(request, timeout_s, fds)

    def _answered(self, request: Request[R], timeout_s: float, fds: tuple[int, ...]) -> Answer[R]:
        deadline = time.monotonic() + timeout_s
        started: int | None = None
        ended: int | None = None
        before: int | None = None
        waited = 0
        marks = None
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
                    return Answer(reply, clocked, max(0, waited))
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
            return WorkerDied(None, log, lost=self._parent.poll() is not None)
        return WorkerDied(ending.code, log, no_memory=killed, cpu_s=ending.cpu_s)

    def is_alive(self) -> bool:
        """Tell whether it still runs, as far as a look at its process tells."""
        if self._is_closed or self._parent.poll() is not None:
            return False
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def _ending(self) -> Ending | None:
        return None if self._parent.poll() is not None else self._zygote.ending(self.pid)

    def _waited_ns(self) -> int:
        return waited_ns(self.pid)

    def log(self, limit: int = 2000) -> str:
        """The end of what the worker printed, at most `limit` characters."""
        return tail(self.scratch / "log", limit)

    def interrupt(self) -> None:
        """Kill the worker's processes; a pending `ask` raises WorkerDied."""
        if not self._is_closed:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the worker and everything it started, and remove its scratch directory."""
        if self._is_closed:
            return
        self.interrupt()
        self._is_closed = True
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
