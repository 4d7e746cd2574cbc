"""Workers as threads of this process, for authors who trust their plans: notebooks, tests, trainers.

They are asked in the same way as forked ones and run the same code. Nothing shuts them in: a kernel that
crashes ends this process, and one that hangs keeps its thread.
"""

from __future__ import annotations

import importlib
import shutil
import socket
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import torch

from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.runner import worker
from passagent.evaluator.runner.endings import WorkerDied
from passagent.evaluator.runner.process import Worker
from passagent.sandbox.channel import Channel
from passagent.sandbox.faults import named

_END_S = 5.0
"""For a worker to end, which it does when it has answered."""


class ThreadServer:
    """Starts threads in the place of the processes that a WorkerServer forks."""

    def __init__(self, threads: int, lease: DeviceLease) -> None:
        """`threads`: of OpenMP, for each worker. `lease`: they share the device for each step."""
        self._lease = lease
        self._threads, self._before = threads, torch.get_num_threads()
        self._scratch = Path(tempfile.mkdtemp(prefix="passagent-"))
        self._workers: list[ThreadWorker] = []

    def fork(
        self,
        memory_gb: float | None,
        sandboxed: bool = True,
        compiled: Path | None = None,
    ) -> ThreadWorker:
        """A worker. Limits and places are this process's own, whatever is asked for."""
        with named("a worker cannot be started"):
            worker = ThreadWorker(Path(tempfile.mkdtemp(dir=self._scratch)), self._threads, self._lease)
        self._workers = [known_worker for known_worker in self._workers if known_worker.is_alive()] + [worker]
        return worker

    def load_dynamo(self, compiler: bool = False) -> None:
        """Import Dynamo. `compiler`: and TorchInductor."""
        importlib.import_module("torch._inductor.compile_fx" if compiler else "torch._dynamo")

    def close(self) -> None:
        """End every worker; this process has as many threads for torch as before."""
        for thread_worker in self._workers:
            thread_worker.kill()
        torch.set_num_threads(self._before)
        shutil.rmtree(self._scratch, ignore_errors=True)


class ThreadWorker(Worker):
    """One thread that serves (worker.py), and the channel to it."""

    def __init__(self, scratch: Path, threads: int, lease: DeviceLease) -> None:
        ours, theirs = socket.socketpair()
        self.scratch, self.protections, self._lease = scratch, {}, lease
        self._channel, self.is_closed, self._log = Channel(ours), False, ""
        self._thread = threading.Thread(target=self._serve, args=(theirs, threads), daemon=True)
        self._thread.start()

    def _serve(self, stream: socket.socket, threads: int) -> None:
        with stream:
            torch.set_num_threads(threads)
            try:
                worker.serve(Channel(stream), {}, self.scratch)
            except Exception:
                self._log = traceback.format_exc()

    def is_alive(self) -> bool:
        """Tell whether its thread still serves."""
        return not self.is_closed and self._thread.is_alive()

    def log(self, limit: int = 2000) -> str:
        """Why it ended, at most `limit` characters."""
        return self._log[-limit:]

    def interrupt(self) -> None:
        """Let it end as soon as it has answered; a pending `ask` raises WorkerDied."""
        with suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End it, and remove its scratch directory; a thread that hangs is left behind."""
        if self.is_closed:
            return
        self.interrupt()
        self.is_closed = True
        self._thread.join(_END_S)
        self._channel.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _died(self, closed: bool) -> WorkerDied:
        self.kill()
        return WorkerDied(None, self._log)

    def _waited_ns(self) -> int:
        return 0
