"""The referee's handle on a worker: start, ask with a deadline, learn how it died, kill its whole group."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent.errors import InfrastructureError
from passagent.evaluator.channel import Channel, ChannelClosed, ChannelTimeout
from passagent.evaluator.environment import import_path, worker_environment
from passagent.kernels import build

START_TIMEOUT_S = 120.0
FILE_BYTES = 1 << 30
"""Largest file a worker may write."""


class WorkerDied(Exception):
    """A worker ended by itself, or broke the protocol (code 1). `code` is negative for a signal."""

    def __init__(self, code: int, log: str) -> None:
        super().__init__(f"exit {code}")
        self.code, self.log = code, log

    @property
    def killed_from_outside(self) -> bool:
        """SIGKILL and SIGTERM come from the machine or a person, not from a candidate's own fault."""
        return self.code in (-signal.SIGKILL, -signal.SIGTERM)

    def describe(self) -> str:
        """In words, such as `died with SIGSEGV` or `exited with code 3`."""
        return (
            f"died with {signal.Signals(-self.code).name}"
            if self.code < 0
            else f"exited with code {self.code}"
        )


class WorkerTimeout(Exception):
    """A worker did not answer in time and was killed."""


@dataclass(frozen=True)
class Answer:
    """A worker's reply, and the referee's own clock between the worker's start and end marks, ns."""

    message: dict[str, Any]
    clock_ns: int | None


class Zygote:
    """A warm process that workers are forked from.

    `interpreter`: its workers run Triton kernels in Triton's interpreter. That is settled when triton is
    first imported, so it takes a process of its own.
    """

    def __init__(self, device: str, threads: int, interpreter: bool = False) -> None:
        self._threads = threads
        self._extra = {"TRITON_INTERPRET": "1"} if interpreter else {}
        self._scratch = Path(tempfile.mkdtemp(prefix="passagent-"))
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "passagent.evaluator.zygote", str(theirs.fileno()), device],
            pass_fds=[theirs.fileno()],
            env=worker_environment(self._scratch, threads) | self._extra | import_path(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=open(self._scratch / "zygote.log", "wb"),  # noqa: SIM115
            start_new_session=True,
        )
        theirs.close()
        self._channel = Channel(ours)
        try:
            self._channel.receive(START_TIMEOUT_S)
        except (ChannelClosed, ChannelTimeout) as error:
            log = (self._scratch / "zygote.log").read_text(errors="replace").strip().splitlines()
            self.close()
            raise InfrastructureError(
                f"the evaluator's worker did not start: {log[-1] if log else error}"
            ) from error

    def fork(self, memory_gb: float | None) -> Worker:
        """A fresh worker in a process group of its own.

        `memory_gb` limits its address space; None where CUDA maps far more than it uses.
        """
        scratch = Path(tempfile.mkdtemp(dir=self._scratch))
        ours, theirs = socket.socketpair()
        env = worker_environment(scratch, self._threads) | self._extra
        request = {
            "op": "fork",
            "env": env,
            "file_bytes": FILE_BYTES,
            "memory_bytes": int(memory_gb * 2**30) if memory_gb else 0,
        }
        with open(scratch / "log", "wb") as log:
            reply = self._ask(request, (theirs.fileno(), log.fileno()))
        theirs.close()
        return Worker(self, int(reply["pid"]), Channel(ours), scratch)

    def exit_code(self, pid: int) -> int | None:
        """How a worker ended; None if it does not end within a second."""
        for _ in range(100):
            status = self._ask({"op": "reap", "pid": pid})["status"]
            if status is not None:
                return int(status)
            time.sleep(0.01)
        return None

    def _ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        try:
            self._channel.send(message, fds)
            return self._channel.receive(START_TIMEOUT_S)[0]
        except (ChannelClosed, ChannelTimeout) as error:
            raise InfrastructureError("the evaluator's warm process is gone") from error

    def close(self) -> None:
        """End the zygote and with it every worker."""
        self._channel.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)


class Worker:
    """One forked process and the channel to it."""

    def __init__(self, zygote: Zygote, pid: int, channel: Channel, scratch: Path) -> None:
        self.pid, self.scratch = pid, scratch
        self._zygote, self._channel = zygote, channel

    def ask(self, message: dict[str, Any], timeout_s: float, fds: tuple[int, ...] = ()) -> Answer:
        """Send a request and wait for its reply, building the kernels that the worker asks for meanwhile.

        Raises WorkerTimeout (the group is killed) and WorkerDied.
        """
        deadline = time.monotonic() + timeout_s
        started = ended = None
        try:
            self._channel.send(message, fds)
            while True:
                reply, _ = self._channel.receive(max(0.0, deadline - time.monotonic()))
                now = time.perf_counter_ns()
                if "mark" in reply:
                    started, ended = (now, None) if reply["mark"] == "start" else (started, now)
                elif "build" in reply:
                    self._channel.send(_build(reply["build"]))
                else:
                    clock = ended - started if started is not None and ended is not None else None
                    return Answer(reply, clock)
        except ChannelTimeout as error:
            self.kill()
            raise WorkerTimeout from error
        except (ChannelClosed, ValueError, KeyError, TypeError) as error:
            code = self._zygote.exit_code(self.pid) if isinstance(error, ChannelClosed) else 1
            self._kill_group()
            raise WorkerDied(1 if code is None else code, self.log()) from error

    def log(self, limit: int = 2000) -> str:
        """The end of what the worker printed, at most `limit` characters."""
        try:
            with open(self.scratch / "log", "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - limit))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def _kill_group(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def kill(self) -> None:
        """Kill the worker and everything it started, and remove its scratch directory."""
        self._kill_group()
        self._channel.close()
        self._zygote.exit_code(self.pid)
        shutil.rmtree(self.scratch, ignore_errors=True)


def last_line(log: str) -> str:
    """`": LINE"` of the last line of a log, empty if there is none."""
    lines = [line for line in log.strip().splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""


def _build(request: dict[str, Any]) -> dict[str, Any]:
    signature = build.Signature(tuple(str(t) for t in request["types"]))
    try:
        return {"path": str(build.build(str(request["source"]), str(request["name"]), signature))}
    except build.KernelRefused as error:
        return {"refused": {"rule": error.rule, "line": error.line, "message": str(error)}}
    except build.KernelBuildError as error:
        return {"failed": str(error)}
