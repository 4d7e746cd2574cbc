"""Who holds a run: a process, named so that a dead one is told from a living one at once."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

STALE_S = 60.0
"""A heartbeat from another machine older than this counts as dead, s; here the process itself is asked."""


def this_process() -> str:
    """`host:pid:start`, where start is the process's start time, so that a reused pid is another owner."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def is_alive(owner: str, heartbeat: float | None) -> bool:
    """Whether the process behind `owner` still runs."""
    host, pid, start = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return heartbeat is not None and time.time() - heartbeat < STALE_S
    return _started(int(pid)) == start


def _started(pid: int) -> str:
    """Start time of a running process, in clock ticks since boot; empty if it is dead or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
