"""Faults of the machine, not of a candidate: the one place that knows them, and names each in a line.

An error of the operating system on the trusted side is the machine's. A candidate's own process can raise any
error and print any text, so what it says is no proof: the places in question are tried from here.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from passagent.errors import InfrastructureError, MachineFault, PassagentError, UsageError
from passagent.sandbox.cache import cache_dir

MIN_DISK_MIB = 64
"""Free space in the cache and in the temporary directory without which nothing is measured."""
NO_MEMORY = "the machine is out of memory; end other programs, or use a smaller task"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_SPENT = {
    errno.ENOMEM: NO_MEMORY,
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "too many open files on this machine; end other programs",
    errno.EAGAIN: "no further process may be started; raise the limit (ulimit -u)",
}
_ALLOCATOR = "can't allocate memory"
"""In what torch says on the CPU."""
_NO_TEMPORARY = "No usable temporary directory"
"""In what Python's tempfile says."""


def machine_fault(error: BaseException, doing: str = "", place: str | None = None) -> MachineFault | None:
    """Explain an error on the trusted side as a fault of the machine; None if it is none.

    `doing`: what failed, for people. `place`: the file or directory, where the error names none.
    """
    message = None
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _ALLOCATOR in str(error)):
        message = NO_MEMORY
    elif isinstance(error, OSError):
        path, reason = str(error.filename or place or ""), (error.strerror or "").lower()
        message = _SPENT.get(error.errno or 0)
        if _NO_TEMPORARY in str(error):
            message = "no temporary directory can be written; set TMPDIR to one that can"
        elif error.errno in _FULL:
            where = f"{path}: the disk is full" if path else "a disk is full"
            message = f"{where}; free some space{_elsewhere(path)}"
        elif error.errno in _CLOSED and path:
            message = f"{path}: cannot be used ({reason}); make it a directory to write in{_elsewhere(path)}"
    return MachineFault(f"{doing}: {message}" if doing else message) if message else None


def _elsewhere(path: str) -> str:
    """Name the setting that moves `path` elsewhere."""
    if Path(path).is_relative_to(cache_dir()):
        return ", or set PASSAGENT_CACHE to another place"
    with suppress(OSError):
        if path and Path(path).is_relative_to(tempfile.gettempdir()):
            return ", or set TMPDIR to another place"
    return ""


def os_fault(error: OSError, path: Path, option: str = "--runs-dir") -> PassagentError:
    """An OSError while writing under `path`, a place that `option` names."""
    reason = (error.strerror or str(error)).lower()
    if error.errno in (*_CLOSED, errno.ENOENT):
        return UsageError(f"{path}: cannot be written ({reason}); choose another place with {option}")
    if error.errno in _FULL:
        return MachineFault(f"{path}: the disk is full; free some space")
    return machine_fault(error, place=str(path)) or InfrastructureError(f"{path}: {reason}")


@contextmanager
def writing(path: Path, option: str = "--runs-dir") -> Iterator[None]:
    """Raise an OSError inside as what it says of `path`, a place that `option` names; see os_fault."""
    try:
        yield
    except OSError as error:
        raise os_fault(error, path, option) from error


@contextmanager
def named(doing: str) -> Iterator[None]:
    """Raise what the machine fails inside as MachineFault, any other OSError as InfrastructureError."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if fault := machine_fault(error, doing):
            raise fault from error
        if isinstance(error, OSError):
            raise InfrastructureError(f"{doing}: {error}") from error
        raise


def check_places() -> None:
    """Raise MachineFault if there is no room to write in the cache or in the temporary directory."""
    for find in (cache_dir, lambda: Path(tempfile.gettempdir())):
        path = None
        try:
            path = find()
            path.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(path).free < MIN_DISK_MIB << 20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with tempfile.TemporaryFile(dir=path) as file:
                file.write(bytes(1 << 20))
                file.flush()
        except OSError as error:
            fault = machine_fault(error, place=str(path))
            raise fault or InfrastructureError(f"{path}: {error.strerror}") from error


def speaks_of_places(text: str) -> bool:
    """Tell whether a text has the words for a full or closed directory: reason to `check_places`."""
    return any(os.strerror(number) in text for number in (*_FULL, *_CLOSED))
