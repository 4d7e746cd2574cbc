"""One process collects into a database at a time. The lock is the kernel's: it ends with the process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from passagent.errors import UsageError
from passagent.faults import os_fault
from passagent.store.owner import named, this_process

LOCK = "collect.lock"


@contextmanager
def alone(runs_dir: Path) -> Iterator[None]:
    """Have the database in `runs_dir` for this process's collection. Raises UsageError naming who has it."""
    path = runs_dir / LOCK
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise os_fault(error, path) from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{runs_dir}: {_holder(path)} collects here; wait until it ends, or take another --runs-dir"
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, this_process().encode(), 0)
        yield
    finally:
        os.close(file)


def _holder(path: Path) -> str:
    owner = path.read_text(errors="replace")
    return named(owner) if owner.count(":") >= 2 else "another process"
