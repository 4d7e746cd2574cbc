"""Processes that are shut in: a warm process (fork_server.py) forks each, which enters its sandbox before it
reads a request. This is the view from outside, which imports no torch.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.errors import InfrastructureError
from passagent.sandbox import privileges
from passagent.sandbox.environment import gpus_in_sight, import_path, worker_environment
from passagent.sandbox.faults import named

if TYPE_CHECKING:
    from passagent.sandbox.sandbox import Limits

MODULE = "passagent.sandbox.fork_server"
LOG = "fork-server.log"
"""The file in a fork server's scratch directory that takes what it prints."""
START_S = 120.0
"""For a fork server to start, most of which is torch's import, and to answer, s."""
_EXIT_S = 60.0
"""For the kernel to take a process down, which takes seconds where a GPU's memory is freed for many."""
_PF_EXITING = 0x4  # include/linux/sched.h


@dataclass(frozen=True)
class Work:
    """The function that a fork runs, by its name: the fork's server imports it."""

    function: str
    """`MODULE:FUNCTION`. It takes its stream, its scratch directory, and the layers of its sandbox, if any.

    Where it `answers`, it takes a request's bytes and its scratch directory, and returns the answer's bytes.
    """
    needs: tuple[str, ...] = ()
    """Modules that are imported, and functions, `MODULE:FUNCTION`, that are called before it is forked."""
    answers: bool = False
    sees_gpu: bool = True
    """True if it may use the GPU of its server."""

    @property
    def names(self) -> list[str]:
        """All that is loaded before it is forked."""
        return [*self.needs, self.function.partition(":")[0]]


@dataclass(frozen=True)
class Ending:
    """How a process ended: its exit code (negative: the signal), and the processor time it had taken, s."""

    code: int
    cpu_s: float


@dataclass(frozen=True)
class Fork:
    """A forked process, the stream to it, and its scratch directory with its `log`."""

    pid: int
    stream: socket.socket
    scratch: Path
    parent: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Kill it with all that it started, unless it is gone."""
        privileges.kill_group(self.pid)


class ForkServer:
    """A process that forks others, until the context or `end`.

    Nobody waits until it has imported what they need. It has no environment or data of ours. If it is lost,
    the next fork starts another one. It may be used by several threads.
    """

    def __init__(self, name: str, *works: Work, threads: int = 1, device: str = "cpu") -> None:
        """Start it for `works`; `name` is the name that errors use. Raises InfrastructureError."""
        self.name, self.device = name, device
        self._needs, self._threads = [name for work in works for name in work.names], threads
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        with named(f"{self.name} did not start"):
            self._loaded = set(self._needs)
            self.scratch = Path(tempfile.mkdtemp(prefix="passagent-"))
            self.socket, theirs = socket.socketpair()
            with theirs, open(self.scratch / LOG, "wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", MODULE, str(theirs.fileno()), *self._needs],
                    pass_fds=[theirs.fileno()],
                    env=worker_environment(self.scratch, self._threads, self.device) | import_path(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, and what it still has forked."""
        self.socket.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def load(self, *names: str) -> None:
        """Import modules and call functions, as Work.needs, for all that is forked from now on.

        Returns when the process runs and is done with that. Raises InfrastructureError.
        """
        self._revive()
        if not names or not self._loaded.issuperset(names):
            self._ask({"op": "load", "names": names})
            self._loaded.update(names)

    def fork(
        self,
        work: Work,
        limits: Limits,
        is_shut_in: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Fork:
        """Fork a process in a group of its own, with `environment` beside the usual one.

        Raises OSError where the machine cannot fork, InfrastructureError if the server is lost.
        """
        self.load(*work.names)
        device = self.device if work.sees_gpu else "cpu"
        scratch = Path(tempfile.mkdtemp(dir=self.scratch))
        ours, theirs = socket.socketpair()
        request = {
            "op": "fork",
            "function": work.function,
            "answers": work.answers,
            "scratch": str(scratch),
            "environment": gpus_in_sight(device) | dict(environment or {}),
            "limits": asdict(limits),
            "is_shut_in": is_shut_in,
            "cuda": device.startswith("cuda"),
        }
        with theirs, open(scratch / "log", "wb") as log:
            reply = self._ask(request, (theirs.fileno(), log.fileno()))
        if "errno" in reply:
            ours.close()
            raise OSError(reply["errno"], os.strerror(reply["errno"]))
        return Fork(int(reply["pid"]), ours, scratch, self.process)

    def ending(self, fork: Fork) -> Ending | None:
        """How a fork ended; None if it does not begin to within a second, or its server is lost."""
        began = time.monotonic()
        with suppress(InfrastructureError):
            while time.monotonic() < began + (_EXIT_S if _is_exiting(fork.pid) else 1.0):
                if fork.parent.poll() is not None or fork.parent is not self.process:
                    return None
                reply = self._ask({"op": "reap", "pid": fork.pid})
                if reply["code"] is not None:
                    return Ending(int(reply["code"]), float(reply["cpu_s"]))
                time.sleep(0.002)
        return None

    def run(
        self, work: Work, request: bytes, limits: Limits, wall_s: float, most: int
    ) -> tuple[bytes | None, Ending]:
        """Send a request to a new fork, whose work answers. Return its answer and how it ended.

        It is killed then. The answer is None if there is none in `wall_s`; at most a little over `most` bytes
        are read. Raises InfrastructureError if the server is lost or nothing can be forked.
        """
        with named(f"{self.name} cannot fork"):
            fork = self.fork(work, limits)
        try:
            with fork.stream:
                answer = _exchange(fork.stream, request, wall_s, most)
        finally:
            fork.kill()
            ending = self.ending(fork)
            shutil.rmtree(fork.scratch, ignore_errors=True)
        if ending is None:
            raise InfrastructureError(f"{self.name} was lost{self._last_line()}")
        return answer, ending

    def _revive(self) -> None:
        """Start it again if it was lost."""
        with self._lock:
            if self.process.poll() is not None:
                self.end()
                self._start()

    def _ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        from passagent.sandbox.channel import Channel, ChannelClosed, ChannelTimeout

        try:
            with self._lock:
                channel = Channel(self.socket)
                channel.send(message, fds)
                return channel.receive(START_S)[0]
        except (ChannelClosed, ChannelTimeout, ValueError) as error:
            self.process.kill()  # what does not answer is not asked again
            self.process.wait()
            raise InfrastructureError(f"{self.name} was lost{self._last_line()}") from error

    def _last_line(self) -> str:
        """`": LINE"` of the last line that the process printed."""
        lines = list[str]()
        with suppress(OSError):
            lines = (self.scratch / LOG).read_text(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""


def _exchange(stream: socket.socket, request: bytes, wall_s: float, most: int) -> bytes | None:
    """Send the request and read the answer until it ends or is too large; None if it is late."""
    deadline, answer = time.monotonic() + wall_s, bytearray()
    stream.settimeout(wall_s)
    with suppress(OSError):  # it is dead already: so the answer tells
        stream.sendall(request)
        stream.shutdown(socket.SHUT_WR)
    while len(answer) <= most:
        if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        try:
            part = stream.recv(1 << 20)
        except OSError:
            return b""
        if not part:
            break
        answer += part
    return bytes(answer)


def _is_exiting(pid: int) -> bool:
    """Tell whether the kernel is taking a process down: all that it had is closed, but it is not gone."""
    try:
        flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    except OSError:
        return False
    return bool(int(flags) & _PF_EXITING)
