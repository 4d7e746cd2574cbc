"""Files and messages as they lie in the database: JSON, compressed with zlib.

A row of `files` is one directory of texts. Its key is the sha256 of that JSON, which is the candidate's, so
what several nodes propose is stored once.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from passagent.errors import InfrastructureError, PassagentError

if TYPE_CHECKING:
    from passagent.store.database import Store


def keep(store: Store, files: Mapping[str, str]) -> str:
    """Store the directory of texts (name to text), unless it is there. Return its key: Candidate.key."""
    text = json.dumps(files, sort_keys=True).encode()
    key = hashlib.sha256(text).hexdigest()
    store.execute(
        "INSERT OR IGNORE INTO files (key, content) VALUES (:key, :content)",
        {"key": key, "content": zlib.compress(text)},
    )
    return key


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


def unpack_message(body: bytes) -> dict[str, Any]:
    """A message from its stored form."""
    message: dict[str, Any] = json.loads(zlib.decompress(body))
    return message


def add_message(store: Store, message: dict[str, Any], seq: int) -> int:
    """The id of the stored message, the conversation's number `seq`. To be called in a transaction.

    Nearly all episodes begin with the same system message, so one that is equal to the last is there once.
    """
    body = zlib.compress(json.dumps(message).encode())  # ASCII: a lone surrogate of a model is stored, too
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
