"""Locks between processes. The kernel holds them, so that they end with the process, however it ends.

They are open file description locks of fcntl: a range of bytes of a file, which need not be that long. Asking
whether one is held takes nothing, so that nobody who wants it is refused meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from passagent.errors import UsageError
from passagent.sandbox.faults import os_fault, writing

_FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, pid."""


def take_lock(path: Path, byte: int) -> int | None:
    """The file descriptor that holds the lock until it is closed; None while another one holds it.

    Raises MachineFault where the file cannot be written.
    """
    with writing(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _request(byte))
    except BlockingIOError:
        os.close(file)
        return None
    return file


def is_locked(path: Path, byte: int) -> bool:
    """Tell whether a process holds the lock, this process included."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _request(byte))
    finally:
        os.close(file)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


@contextmanager
def locked(directory: Path, name: str, option: str = "--runs-dir") -> Iterator[None]:
    """Have `directory`, which is made, for this process, by the kernel's lock on its file `name`.

    The lock ends with the process. `option`: what names the directory. Raises UsageError naming the holder.
    """
    path = directory / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise os_fault(error, directory, option) from error
    file = take_lock(path, 0)
    if file is None:
        owner = path.read_text(errors="replace")
        holder = process_text(owner) if ":" in owner else "another process"
        raise UsageError(
            f"{directory}: {holder} works here; wait until it ends, or choose another place with {option}"
        )
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, this_process().encode(), 0)
        yield
    finally:
        os.close(file)


def this_process() -> str:
    """`HOST:PID`, for people: locks tell who is alive."""
    return f"{socket.gethostname()}:{os.getpid()}"


def process_text(name: str) -> str:
    """`process 123 on HOST`, of a name that `this_process` made."""
    host, _, pid = name.rpartition(":")
    return f"process {pid} on {host}"


def _request(byte: int) -> bytes:
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
