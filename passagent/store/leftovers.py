"""What runs left on the disk that no row of the database needs any more."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from passagent.store import runs
from passagent.store.database import Store
from passagent.store.looking import processes

_RUN = re.compile(r"[0-9a-f]{8}")
_OF_A_RUN = {"run.log", "best", "best.new"}


class Leftover(NamedTuple):
    """A file or directory that can go."""

    kind: str
    path: Path
    size: int
    """Bytes."""


def live_runs(store: Store) -> list[str]:
    """Ids of the runs that a process works on."""
    return [run.id for run in runs.list_runs(store) if processes(store, run)]


def directories_of_removed_runs(store: Store) -> Iterator[Leftover]:
    """Directories of runs that the database does not know any more."""
    known = {run.id for run in runs.list_runs(store)}
    for path in store.runs_dir.iterdir():
        if path.name not in known and _RUN.fullmatch(path.name) and path.is_dir():
            names = {entry.name for entry in path.iterdir()}
            if names and names <= _OF_A_RUN:
                yield Leftover("directory of a removed run", path, size_of(path))


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files under a directory; nothing for what another process removes."""
    if not path.is_dir():
        return _bytes_of(path)
    return sum(_bytes_of(Path(place, name)) for place, _, names in os.walk(path) for name in names)


def _bytes_of(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:
        return 0


def remove(leftover: Leftover) -> None:
    """Remove it; one that is gone already is no error. Raises OSError."""
    if leftover.path.is_dir():
        shutil.rmtree(leftover.path, ignore_errors=True)
    else:
        leftover.path.unlink(missing_ok=True)
