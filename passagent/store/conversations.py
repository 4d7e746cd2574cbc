"""Messages as they lie in the database: compressed, most with another one as the dictionary, their `base`.

Prompts repeat the task and the parent, replies the files that they change. So an episode's messages have its
task message as their base. A task message has the island's first one with the same parent, else the run's
first one. No chain is longer than three. A system message is there once: nearly all episodes begin with it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from passagent.errors import PassagentError
from passagent.store.packing import pack as pack_text
from passagent.store.packing import unpack_kept

if TYPE_CHECKING:
    from passagent.store.database import Store
    from passagent.store.episodes import Episode

TASK_SEQ = 2
"""The place of the message that gives the task in a conversation; the first is the system message."""
_pack_first = functools.lru_cache(maxsize=4)(pack_text)


class Packed(NamedTuple):
    """A message as it is stored."""

    body: bytes
    base: int | None = None
    known: int | None = None
    """The id of an equal one that is stored already."""


def pack(store: Store, episode: Episode, message: dict[str, Any], seq: int) -> Packed:
    """A message ready to be stored as the conversation's number `seq`.

    To be called before the transaction, which others wait for.
    """
    text = json.dumps(message).encode()  # ASCII: a lone surrogate of a model can be stored, too
    if seq < TASK_SEQ:
        body = _pack_first(text)
        last = store.row(
            "SELECT message_id AS id, body FROM steps JOIN messages ON messages.id = message_id "
            "WHERE episode_id < :own AND seq = :seq ORDER BY episode_id DESC LIMIT 1",
            {"seq": seq, "own": episode.id},
        )
        return Packed(body, known=last["id"] if last and last["body"] == body else None)
    base = _base_of_task(store, episode) if seq == TASK_SEQ else _task_of(store, episode.id)
    return Packed(pack_text(text, dictionary(store, base)), base)


def add(store: Store, packed: Packed) -> int:
    """The id of the stored message. To be called in a transaction."""
    equal = {"id": packed.known, "body": packed.body}  # its run may have been removed meanwhile
    if packed.known and store.row("SELECT 1 FROM messages WHERE id = :id AND body = :body", equal):
        return packed.known
    message_id = store.execute(
        "INSERT INTO messages (base, body) VALUES (:base, :body)", {"base": packed.base, "body": packed.body}
    ).lastrowid
    assert message_id is not None
    return message_id


def read(store: Store, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of `rows` of the table (`base` and `body`). Raises PassagentError if a base is gone."""
    return [json.loads(unpack_kept(row["body"], dictionary(store, row["base"]))) for row in rows]


def _base_of_task(store: Store, episode: Episode) -> int | None:
    """What an episode's task message is packed with."""
    for where in ("AND island = :island AND parent_id IS :parent", ""):
        row = store.row(
            "SELECT message_id AS id FROM episodes JOIN steps ON episode_id = episodes.id AND seq = :task "
            f"WHERE run_id = :run {where} ORDER BY number LIMIT 1",
            {
                "task": TASK_SEQ,
                "run": episode.run_id,
                "island": episode.island,
                "parent": episode.parent_id,
            },
        )
        if row:
            return int(row["id"])
    return None


def _task_of(store: Store, episode_id: int) -> int | None:
    """The id of a conversation's task message."""
    row = store.row(
        "SELECT message_id AS id FROM steps WHERE episode_id = :episode AND seq = :task",
        {"episode": episode_id, "task": TASK_SEQ},
    )
    return int(row["id"]) if row else None


def dictionary(store: Store, base: int | None) -> bytes:
    """What a message with this base is packed with; without one nothing."""
    if base is None:
        return b""
    row = store.row("SELECT base, body FROM messages WHERE id = :id", {"id": base})
    if row is None:
        raise PassagentError(f"{store.runs_dir}: message {base} is gone; others need it")
    return _as_dictionary(unpack_kept(row["body"], dictionary(store, row["base"])))


@functools.lru_cache(maxsize=128)
def _as_dictionary(text: bytes) -> bytes:
    """A base, before it the same as it looks in the arguments of a call."""
    return json.dumps(text.decode()).encode() + text
