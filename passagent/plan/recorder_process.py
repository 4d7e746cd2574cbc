"""The process that forks recorders (child.py), from outside. Without torch: both sides import it at once."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent.confine.environment import import_path, worker_environment
from passagent.errors import InfrastructureError

_START_S = 120.0


@dataclass(frozen=True)
class RecordingProcess:
    """The process that forks recorders. It has no environment, device or data of ours."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    scratch: Path

    def ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """Its reply. Raises InfrastructureError if it is gone."""
        from passagent.confine.channel import Channel, ChannelClosed, ChannelTimeout

        channel = Channel(self.socket)
        try:
            channel.send(message, fds)
            return channel.receive(_START_S)[0]
        except (ChannelClosed, ChannelTimeout, ValueError) as error:
            log = (self.scratch / "log").read_text(errors="replace").strip().splitlines()
            why = f": {log[-1][:300]}" if log else ""
            raise InfrastructureError(f"the recording process ended{why}") from error


def start() -> RecordingProcess:
    """Start it and do not wait until it has imported torch."""
    scratch = Path(tempfile.mkdtemp(prefix="passagent-"))
    ours, theirs = socket.socketpair()
    with theirs, open(scratch / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "passagent.plan.child", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=worker_environment(scratch, 1, "cpu") | {"CUDA_VISIBLE_DEVICES": ""} | import_path(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    return RecordingProcess(process, ours, scratch)


@contextmanager
def recording_process() -> Iterator[RecordingProcess]:
    """The process, for any number of recordings; it ends with the context."""
    started = start()
    try:
        yield started
    finally:
        end(started)


def end(started: RecordingProcess) -> None:
    """End the process, and what it still records."""
    started.socket.close()
    with suppress(subprocess.TimeoutExpired):
        started.process.wait(10)
    started.process.kill()
    started.process.wait()
    shutil.rmtree(started.scratch, ignore_errors=True)
