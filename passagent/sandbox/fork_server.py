"""A process that forks throw-away processes (forking.py), from outside. Without torch: that loads there."""

from __future__ import annotations

import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.errors import InfrastructureError
from passagent.sandbox.environment import import_path, worker_environment

if TYPE_CHECKING:
    from passagent.sandbox.sandbox import Limits

_START_S = 120.0


@dataclass(frozen=True)
class ForkServer:
    """The process that forks. It has no environment or data of ours."""

    name: str
    """The name that errors use."""
    process: subprocess.Popen[bytes]
    socket: socket.socket
    scratch: Path

    def ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """Its reply. Raises InfrastructureError if it is gone."""
        from passagent.sandbox.channel import Channel, ChannelClosed, ChannelTimeout

        channel = Channel(self.socket)
        try:
            channel.send(message, fds)
            return channel.receive(_START_S)[0]
        except (ChannelClosed, ChannelTimeout, ValueError) as error:
            log = (self.scratch / "log").read_text(errors="replace").strip().splitlines()
            why = f": {log[-1][:300]}" if log else ""
            raise InfrastructureError(f"{self.name} ended{why}") from error

    def run(
        self, request: bytes, limits: Limits, wall_s: float, most: int, **more: Any
    ) -> tuple[bytes | None, dict[str, Any]]:
        """Send a request to a new fork. Return its answer and how it ended; it is killed then.

        None if no answer came in `wall_s`; at most a little over `most` bytes are read. `more`: of the
        message that asks for the fork. Raises InfrastructureError if the server is gone.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                fork = {"op": "fork", "limits": asdict(limits), **more}
                pid = self.ask(fork, (theirs.fileno(),))["pid"]
            try:
                raw = _exchange(ours, request, wall_s, most)
            finally:
                ended = self.ask({"op": "end", "pid": pid})
        return raw, ended


def start(module: str, name: str, threads: int = 1, device: str = "cpu") -> ForkServer:
    """Start `python -m MODULE FD`, which serves there, and do not wait until it has imported torch."""
    scratch = Path(tempfile.mkdtemp(prefix="passagent-"))
    ours, theirs = socket.socketpair()
    with theirs, open(scratch / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=worker_environment(scratch, threads, device) | import_path(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    return ForkServer(name, process, ours, scratch)


@contextmanager
def serving(started: ForkServer) -> Iterator[ForkServer]:
    """The process, for any number of forks; it ends with the context."""
    try:
        yield started
    finally:
        end(started)


def end(started: ForkServer) -> None:
    """End the process, and what it still has forked."""
    started.socket.close()
    with suppress(subprocess.TimeoutExpired):
        started.process.wait(10)
    started.process.kill()
    started.process.wait()
    shutil.rmtree(started.scratch, ignore_errors=True)


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
