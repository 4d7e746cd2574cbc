"""Who holds something in the database: a process, named so that a dead one is told from a living one."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

_FIRST_PIDS = "pid:[4026531836]"
"""The machine's own numbering of processes; a container has another one."""


def this_process() -> str:
    """`host:pid:start`, where start is the process's start time, so that a reused pid is another owner."""
    return f"{_host()}:{os.getpid()}:{_started(os.getpid())}"


def is_here(owner: str) -> bool:
    """Whether this machine can be asked about the process behind `owner`."""
    return owner.rsplit(":", 2)[0] == _host()


def is_running(owner: str) -> bool:
    """Whether the process behind `owner`, one of this machine's, still runs."""
    _, pid, start = owner.rsplit(":", 2)
    return _started(int(pid)) == start


def named(owner: str) -> str:
    """`pid 123 on host`, for people."""
    host, pid, _ = owner.rsplit(":", 2)
    return f"pid {pid} on {host}"


@functools.cache
def _host() -> str:
    """The host's name; in a container, which may have its host's name but not its pids, with their number."""
    try:
        pids = os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()
    return socket.gethostname() + ("" if pids == _FIRST_PIDS else f"/{pids[5:-1]}")


def _started(pid: int) -> str:
    """Start time of a running process, in clock ticks since boot; empty if it is dead or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
