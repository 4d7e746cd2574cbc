"""Limit the files that a process may open: Linux's Landlock, by its three system calls."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from passagent.sandbox import privileges

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_PATH_BENEATH = 1
_EXECUTE = 1 << 0
_READ = 1 << 2 | 1 << 3
_WRITE = 1 << 1 | 1 << 14
_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Rights that a rule about a single file may name."""
_IOCTL = 1 << 15
_MAKE = sum(1 << bit for bit in (4, 5, 7, 8, 10, 12, 13))  # directories, files, fifos, links
_KNOWN = {2: 14, 3: 15, 4: 15, 5: 16}
"""Rights on files that an ABI knows, as a count of bits; later ABIs know as many as 5. The first forbids to
move a file between directories, which Triton's cache does."""


def restrict(
    read: Iterable[Path], write: Iterable[Path], devices: Iterable[Path], execute: Iterable[Path] = ()
) -> list[int]:
    """Let the calling process open what is beneath `read`, change what is beneath `write`, use `devices`.

    What is beneath `execute` may be read and executed, nothing else may. Network binding and connecting,
    abstract sockets and signals to processes outside are shut where the kernel can. No new privileges must be
    set. Paths that do not exist are left out.
    Returns descriptors that must stay open: a rule about /proc holds for as long as its entry stays cached.
    Raises OSError where there is no Landlock.
    """
    abi = _call(_CREATE, None, 0, 1)
    if abi < min(_KNOWN):
        raise OSError(errno.ENOSYS, f"Landlock of this kernel is too old (ABI {abi})")
    supported = (1 << _KNOWN.get(abi, 16)) - 1
    handled = struct.pack("QQQ", supported, 3, 3)
    ruleset = _call(_CREATE, handled, 8 if abi < 4 else 16 if abi < 6 else 24, 0)
    rules = [(path, _READ) for path in read] + [(path, _READ | _WRITE | _MAKE) for path in write]
    rules += [(path, _READ | _WRITE | _IOCTL) for path in devices]
    rules += [(path, _READ | _EXECUTE) for path in execute]
    descriptors = []
    try:
        for path, rights in rules:
            fd = _allow(ruleset, path, rights & supported)
            if fd is not None and path.is_relative_to("/proc"):
                descriptors.append(fd)
            elif fd is not None:
                os.close(fd)
        _call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
    return descriptors


def _allow(ruleset: int, path: Path, rights: int) -> int | None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    if not path.is_dir():
        rights &= _FILE
    _call(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    return fd


def _call(number: int, *arguments: int | bytes | None) -> int:
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return privileges.check(privileges.libc().syscall(ctypes.c_long(number), *values))
