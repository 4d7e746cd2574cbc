"""Objects on their way to the disk: until a file would survive a loss of power the database holds it, too.

A row of `unsettled` is committed together with the node that points to the file. Some time later the files
are forced to disk, beside all else, and their rows go: so no node waits for the disk, and none that
is there after a loss of power lacks its files (Objects.get finds them in the row).
"""

from __future__ import annotations

import asyncio
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from passagent.store.faults import os_fault
from passagent.store.objects import packed_files

if TYPE_CHECKING:
    from passagent.store.database import Store

_SYNCS = 8
"""Files that are forced to disk at the same time: the file system's journal takes them together."""


class Unsettled(NamedTuple):
    """An object whose file may not be on the disk yet."""

    key: str
    content: bytes
    """Compressed."""


def put_files(store: Store, files: dict[str, str]) -> Unsettled:
    """Write the object of a directory of texts: before the transaction, for others wait for its end."""
    content = packed_files(files)
    return Unsettled(store.objects.put(content), zlib.compress(content, 1))


def add(store: Store, written: Unsettled) -> None:
    """The object may not be on the disk yet: in the transaction that stores what points to it."""
    store.execute("INSERT INTO unsettled (key, content) VALUES (:key, :content)", written._asdict())


def find(store: Store, key: str) -> bytes | None:
    """The content of an object that may not be on the disk yet; None for any other."""
    row = store.row("SELECT content FROM unsettled WHERE key = :key LIMIT 1", {"key": key})
    return zlib.decompress(row["content"]) if row else None


async def settle(store: Store) -> None:
    """Force all objects to disk whose rows are committed by now. Raises PassagentError."""
    rows = store.rows("SELECT id, key FROM unsettled ORDER BY id")
    if not rows:
        return
    paths = [store.objects.path(key) for key in {row["key"] for row in rows}]
    try:
        await asyncio.to_thread(_force, paths)
    except OSError as error:
        raise os_fault(error, store.objects.root) from error
    # their files were written before the rows, whichever process did it
    store.execute("DELETE FROM unsettled WHERE id <= :last", {"last": rows[-1]["id"]})


def _force(paths: list[Path]) -> None:
    with ThreadPoolExecutor(_SYNCS) as beside:
        list(beside.map(_sync, paths))


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # its run was removed
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
