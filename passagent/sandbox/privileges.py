"""Calls of the operating system: give up privileges for good (users, network, capabilities), kill a group."""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

NEWNS, NEWIPC, NEWUSER, NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
SET_PDEATHSIG, SET_DUMPABLE, SET_NO_NEW_PRIVS = 1, 4, 38
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522


def own_users() -> None:
    """Enter a user namespace that knows the calling user only. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    unshare(NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text)


def unshare(flags: int) -> None:
    """Enter new namespaces. Raises OSError."""
    check(libc().unshare(flags))


def drop_capabilities() -> None:
    """Raises OSError."""
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    check(libc().syscall(_CAPSET[os.uname().machine], header, bytes(24)))


def prctl(option: int, value: int) -> None:
    """Raises OSError."""
    check(libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def lower(kind: int, value: int) -> None:
    """Lower a resource limit, never above the one in force."""
    most = resource.getrlimit(kind)[1]
    # At the soft limit of processor time comes SIGXCPU, at the hard one SIGKILL: let the first be seen.
    hard = value + 1 if kind == resource.RLIMIT_CPU else value
    if most != resource.RLIM_INFINITY:
        value, hard = min(value, most), min(hard, most)
    resource.setrlimit(kind, (value, hard))


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def check(result: int) -> int:
    """Return the result of a C function. Raises OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def enter(report: dict[str, str], name: str, put: Callable[[], object]) -> bool:
    """Put a layer around this process, and report it "on" or "off: REASON". Tell whether it is on."""
    try:
        put()
    except OSError as error:
        report[name] = f"off: {error.strerror or error}"
    else:
        report[name] = "on"
    return report[name] == "on"


def kill_group(pid: int) -> None:
    """Kill a process with all that it started, unless it is gone."""
    for kill in (os.killpg, os.kill):  # it has no group yet where it has just been forked
        with suppress(ProcessLookupError, PermissionError):
            return kill(pid, signal.SIGKILL)
