"""Files and messages as they lie in the database: JSON, compressed with zlib.

A row of `files` is one directory of texts. Its key is the sha256 of that JSON, which is the candidate's, so
what several nodes propose is stored once.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

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


SYSTEM_SEQ = 1
"""The place of the system message in a conversation."""


def pack_message(message: dict[str, Any]) -> bytes:
    """A message ready to be stored: work that no transaction needs to wait for."""
    # ASCII: a lone surrogate of a model can be stored, too
    return zlib.compress(json.dumps(message).encode())


def unpack_message(body: bytes) -> dict[str, Any]:
    """The inverse of pack_message."""
    message: dict[str, Any] = json.loads(zlib.decompress(body))
    return message


def add_message(store: Store, body: bytes, seq: int) -> int:
    """The id of the stored message, the conversation's number `seq`. To be called in a transaction.

    Nearly all episodes begin with the same system message, so one that is equal to the last is there once.
    """
    if seq == SYSTEM_SEQ:
        last = store.row(
            "SELECT message_id AS id, body FROM steps JOIN messages ON messages.id = message_id "
            "WHERE seq = :seq ORDER BY episode_id DESC LIMIT 1",
            {"seq": seq},
        )
        if last is not None and last["body"] == body:
            return int(last["id"])
    message_id = store.execute("INSERT INTO messages (body) VALUES (:body)", {"body": body}).lastrowid
    assert message_id is not None
    return message_id
