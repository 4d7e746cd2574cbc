"""Start a zygote's process: without torch here, so that both can import it at the same time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from passagent.errors import InfrastructureError
from passagent.evaluator.environment import import_path, worker_environment


@dataclass(frozen=True)
class Started:
    """A zygote's process that is on its way, the socket on which it will say so, its private directory."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    scratch: Path


def start_zygote(device: str, threads: int, interpreter: bool = False) -> Started:
    """Start a zygote and do not wait for it. Raises InfrastructureError."""
    try:
        scratch = Path(tempfile.mkdtemp(prefix="passagent-"))
    except OSError as error:
        raise InfrastructureError(f"the evaluator's worker did not start: {error}") from error
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    with open(scratch / "zygote.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "passagent.evaluator.zygote", str(theirs.fileno()), device],
            pass_fds=[theirs.fileno()],
            env=zygote_environment(scratch, threads, device, interpreter) | import_path(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    theirs.close()
    return Started(process, ours, scratch)


def zygote_environment(scratch: Path, threads: int, device: str, interpreter: bool) -> dict[str, str]:
    """The environment of a zygote and of its workers."""
    extra = {"TRITON_INTERPRET": "1"} if interpreter else {}
    return worker_environment(scratch, threads, device) | extra
