"""Work that goes on where it was stopped: rows of what is done, in a directory that one process has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from passagent.errors import UsageError
from passagent.store.locks import process_text, take_lock, this_process
from passagent.system.faults import os_fault


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


def read_rows(path: Path) -> list[str]:
    """Return a file's whole lines, without one that a killed process left torn. Raises OSError."""
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1].decode(errors="replace").split("\n")[:-1]


def append_row(path: Path, row: str) -> None:
    """Append a line, which is on the disk when this returns, in place of a torn one. Raises OSError."""
    with path.open("a+b") as file:
        end = file.tell()
        file.seek(max(0, end - 1))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(row.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
