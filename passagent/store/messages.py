"""Messages as they lie in the database: each content once, packed against another message.

Most of what a search writes was written before: prompts repeat the task, replies the files they change. So a
message's text is compressed with another message's text as the dictionary, its `base`: of an episode's
messages the one that gives the task, of those the run's first. Old databases hold texts as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from passagent.errors import PassagentError
from passagent.store.packing import pack_text, unpack_text

if TYPE_CHECKING:
    from passagent.store.database import Store

K = TypeVar("K")
V = TypeVar("V")

_KEPT = 64
"""Texts of bases that are kept in memory."""
_REMEMBERED = 1024
"""Digests that are kept in memory."""
_SMALL = 512
"""Bytes of a message for which a dictionary is not worth its time."""
_ENOUGH = 0.6
"""A task message that takes more than this share of what its base takes becomes a base itself."""


class Packed(NamedTuple):
    """A message as it is stored."""

    digest: bytes
    known: int | None = None
    """The id of an equal one that is stored already."""
    base: int | None = None
    body: bytes = b""
    task_text: bytes = b""
    """Of a task message its text: others will be packed against it."""


class Messages:
    """The table `messages` of a store, and the bases that this process wrote or read last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._texts: OrderedDict[int, bytes] = OrderedDict()
        self._stored: OrderedDict[bytes, None] = OrderedDict()
        """Digests of what this process stored last."""
        self._task_of_run: dict[str, tuple[int, int]] = {}
        """The run's newest task message without a base, and its packed size."""

    def pack(
        self, message: dict[str, Any], run_id: str, task_id: int | None, is_task: bool = False
    ) -> Packed:
        """A message ready to be stored; to be called before the transaction, which others wait for.

        `task_id` is that of the episode's task message, `is_task` says that this is it.
        """
        text = json.dumps(message).encode()  # ASCII: a lone surrogate of a model can be stored, too
        digest = hashlib.sha256(text).digest()[:16]
        if digest in self._stored and (found := self._id_of(digest)) is not None:
            return Packed(digest, found)
        known = self._task_of_run.get(run_id) if is_task else None
        base = known[0] if known else task_id if len(text) > _SMALL else None
        body = pack_text(text, self._text(base) if base is not None else b"")
        if known and len(body) > _ENOUGH * known[1]:
            base, body = None, pack_text(text)
        return Packed(digest, None, base, body, text if is_task else b"")

    def add(self, packed: Packed, run_id: str) -> int:
        """The id of a message with this content, stored if there is none. To be called in a transaction."""
        if packed.known is not None:
            return packed.known
        added = self._store.row(
            "INSERT INTO messages (digest, base, body) VALUES (:digest, :base, :body) "
            "ON CONFLICT DO NOTHING RETURNING id",
            {"digest": packed.digest, "base": packed.base, "body": packed.body},
        )
        _remember(self._stored, packed.digest, None, _REMEMBERED)
        if added is None:
            message_id = self._id_of(packed.digest)
            assert message_id is not None
            return message_id
        if packed.task_text:
            _remember(self._texts, added["id"], packed.task_text, _KEPT)
            if packed.base is None:
                self._task_of_run[run_id] = added["id"], len(packed.body)
        return int(added["id"])

    def _id_of(self, digest: bytes) -> int | None:
        row = self._store.row("SELECT id FROM messages WHERE digest = :digest", {"digest": digest})
        return int(row["id"]) if row else None

    def read(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages of `rows` of the table (`base` and `body`)."""
        return [json.loads(self._unpacked(row)) for row in rows]

    def _text(self, message_id: int) -> bytes:
        """The text of a base. Raises PassagentError if it is gone."""
        text = self._texts.get(message_id)
        if text is None:
            row = self._store.row("SELECT base, body FROM messages WHERE id = :id", {"id": message_id})
            if row is None:
                raise PassagentError(f"{self._store.runs_dir}: message {message_id} is gone; others need it")
            text = self._unpacked(row)
            _remember(self._texts, message_id, text, _KEPT)
        return text

    def _unpacked(self, row: dict[str, Any]) -> bytes:
        if isinstance(row["body"], str):
            return row["body"].encode()
        return unpack_text(row["body"], b"" if row["base"] is None else self._text(row["base"]))


def _remember(memory: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    """Keep the newest `limit` entries."""
    memory[key] = value
    if len(memory) > limit:
        memory.popitem(last=False)
