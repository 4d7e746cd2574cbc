"""Messages as they lie in the database: JSON, compressed with zlib."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from passagent.store.database import Store

SYSTEM_SEQ = 1
"""The place of the system message in a conversation."""


def pack(message: dict[str, Any]) -> bytes:
    """A message ready to be stored: work that no transaction needs to wait for."""
    # ASCII: a lone surrogate of a model can be stored, too
    return zlib.compress(json.dumps(message).encode())


def unpack(body: bytes) -> dict[str, Any]:
    """The inverse of pack."""
    message: dict[str, Any] = json.loads(zlib.decompress(body))
    return message


def add(store: Store, body: bytes, seq: int) -> int:
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
