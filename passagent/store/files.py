"""The files of candidates, by content: what several nodes propose is stored once.

A row of `files` is one directory of texts as JSON, compressed, under the first 16 digits of the sha256 of
that JSON; `nodes.files` is the whole sha256. It is stored in the transaction that stores the node.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from passagent.errors import InfrastructureError, PassagentError

if TYPE_CHECKING:
    from passagent.store.database import Store

_LEVEL = 1
"""Of zlib: a higher one takes as much longer as it saves."""


class Packed(NamedTuple):
    """A directory of texts as it is stored."""

    key: str
    """Equal directories have equal keys."""
    content: bytes


def pack(files: Mapping[str, str]) -> Packed:
    """A directory of texts (name to text), ready to be stored: work that no transaction needs to wait for."""
    text = json.dumps(files, sort_keys=True).encode()
    return pack_text(hashlib.sha256(text).hexdigest(), text)


def pack_text(key: str, text: bytes) -> Packed:
    """The same of a directory that is JSON already."""
    return Packed(key, zlib.compress(text, _LEVEL))


def keep(store: Store, packed: Packed) -> None:
    """Store the directory, unless it is there: in the transaction that stores what points to it."""
    store.execute(
        "INSERT INTO files (mark, content) SELECT :mark, :content WHERE NOT EXISTS "
        "(SELECT 1 FROM files WHERE mark = :mark AND content = :content)",
        {"mark": _mark(packed.key), "content": packed.content},
    )


def get(store: Store, key: str) -> dict[str, str]:
    """The directory behind `key`. Raises PassagentError if it is gone, InfrastructureError if damaged."""
    rows = store.rows("SELECT content FROM files WHERE mark = :mark", {"mark": _mark(key)})
    for row in rows:
        try:
            text = zlib.decompress(row["content"])
        except zlib.error:
            continue
        if hashlib.sha256(text).hexdigest() == key:
            files: dict[str, str] = json.loads(text)
            return files
    place = f"{store.runs_dir}: the files {key[:16]} of a candidate"
    if rows:
        raise InfrastructureError(f"{place} are damaged; restore the database from a backup")
    raise PassagentError(f"{place} are gone; restore the database from a backup")


def _mark(key: str) -> str:
    return key[:16]
