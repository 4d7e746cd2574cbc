"""The files of candidates, by content: what several nodes propose is stored once.

A row of `files` is one directory of texts as JSON, compressed. Its key is the sha256 of that JSON, which is
the candidate's. It is stored in the transaction that stores the node.
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


class Packed(NamedTuple):
    """A directory of texts as it is stored."""

    key: str
    """Equal directories have equal keys: Candidate.key."""
    content: bytes


def pack(files: Mapping[str, str]) -> Packed:
    """A directory of texts (name to text), ready to be stored: work that no transaction needs to wait for."""
    text = json.dumps(files, sort_keys=True).encode()
    return Packed(hashlib.sha256(text).hexdigest(), zlib.compress(text))


def keep(store: Store, packed: Packed) -> None:
    """Store the directory, unless it is there: in the transaction that stores what points to it."""
    store.execute("INSERT OR IGNORE INTO files (key, content) VALUES (:key, :content)", packed._asdict())


def get(store: Store, key: str) -> dict[str, str]:
    """The directory behind `key`. Raises PassagentError if it is gone, InfrastructureError if damaged."""
    row = store.row("SELECT content FROM files WHERE key = :key", {"key": key})
    place = f"{store.runs_dir}: the files {key[:16]} of a candidate"
    if row is None:
        raise PassagentError(f"{place} are gone; restore the database from a backup")
    try:
        text = zlib.decompress(row["content"])
    except zlib.error:
        text = b""
    if hashlib.sha256(text).hexdigest() != key:
        raise InfrastructureError(f"{place} are damaged; restore the database from a backup")
    files: dict[str, str] = json.loads(text)
    return files
