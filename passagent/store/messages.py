"""Messages as they lie in the database: packed against other messages.

Most of what a search writes was written before: prompts repeat the task, the parent and the attempts, replies
the files they change. So a message's text is compressed with other messages' texts as the dictionary: its
`base`, and `beside` it another one. Those of an episode's messages are its task message; those of a task
message the first one of the same parent and the island's last. A content that this process stored a while
ago is not stored again. Old databases hold texts as they are.
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

_KEPT = 128
"""Texts of bases that are kept in memory."""
_REMEMBERED = 512
"""Stored contents that are kept in memory."""
_RUNS, _ISLANDS = 1024, 4096
"""Runs and islands whose newest task message is kept in mind: a process may work on thousands of runs."""
_SMALL = 512
"""Bytes of a message for which another message as the dictionary is not worth its time."""
_ENOUGH = 0.6
"""A task message that takes more than this share of what its base takes becomes a base itself."""
_DEPTH = 8
"""Messages that must be unpacked, at most, before one that lies `beside` another."""
_WORDS = 0
"""As a base: the text below, which no row holds."""
_WORDS_0 = (
    b'{"role": "user", "content": "Your reply {"role": "assistant", "content": "", "tool_calls": [], '
    b'"stop_reason": "end_turn", "input_tokens": null}{"role": "tool", "tool_call_id": "call_", '
    b'"name": "search_knowledge", "name": "pass_evaluator", "content": "error: {"role": "tool", '
    b'"tool_call_id": "toolu_", "name": "file_editor", "content": "sorted_output_pass_rule_names.json: '
    b'FuseAddMul.py: 115 lines written."}'
)
# Part of how messages are stored: a change of it would make them unreadable.


class Packed(NamedTuple):
    """A message as it is stored."""

    digest: bytes
    known: int | None = None
    """The id of an equal one that is stored already."""
    base: int | None = None
    beside: int | None = None
    body: bytes = b""
    task: TaskText | None = None
    """Of a task message: others will be packed against it."""


class TaskText(NamedTuple):
    """A task message for others to be packed against."""

    text: bytes
    island: int
    parent: int | None
    depth: int
    """Messages that must be unpacked before it."""


class Messages:
    """The table `messages` of a store, and the bases that this process wrote or read last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.forget()

    def forget(self) -> None:
        """Know nothing any more: what was written last was not committed."""
        self._texts: OrderedDict[int, bytes] = OrderedDict()
        self._stored: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        """Of what this process stored last: by digest the id, and the body, to see that it is still there."""
        self._task_of_run: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """The run's newest task message without a base, and its packed size."""
        self._of_parent: OrderedDict[tuple[str, int | None], int] = OrderedDict()
        """The first task message with this parent."""
        self.tasks: OrderedDict[int, int] = OrderedDict()
        """Of an episode its task message, which never changes."""
        self._of_island: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()
        """The island's last task message, and its depth."""
        self._first: tuple[dict[str, Any], bytes, bytes] | None = None
        """The last message that came before a task message, its digest and its text."""

    def pack(self, message: dict[str, Any], task_id: int | None) -> Packed:
        """A message ready to be stored; to be called before the transaction, which others wait for.

        `task_id` is that of the episode's task message, None for one before it.
        """
        if task_id is None and self._first and self._first[0] == message:  # as nearly all episodes begin
            digest, text = self._first[1:]
        else:
            text = _text_of(message)
            digest = _digest_of(text)
        if task_id is None:
            self._first = message, digest, text
        known_id = self._known(digest)
        if known_id is not None:
            return Packed(digest, known_id)
        if len(text) <= _SMALL:
            return Packed(digest, base=_WORDS, body=pack_text(text, _WORDS_0))
        body = pack_text(text, b"" if task_id is None else self._text(task_id))
        return Packed(digest, base=task_id, body=body)

    def pack_task(self, message: dict[str, Any], run_id: str, island: int, parent: int | None) -> Packed:
        """An episode's task message ready to be stored; see `pack`."""
        text = _text_of(message)
        digest = _digest_of(text)
        known_id = self._known(digest)
        if known_id is not None:
            return Packed(digest, known_id)
        known = self._task_of_run.get(run_id)
        base, (beside, depth) = None, self._of_island.get((run_id, island), (None, 0))
        if known:
            base = self._of_parent.get((run_id, parent), known[0])
            if depth >= _DEPTH or beside == base:
                beside, depth = None, 0
            body = pack_text(text, self._dictionary(base, beside))
        if not known or len(body) > _ENOUGH * known[1]:
            base, beside, depth, body = None, None, 0, pack_text(text)
        return Packed(digest, None, base, beside, body, TaskText(text, island, parent, depth + 1))

    def add(self, packed: Packed, run_id: str) -> int:
        """The id of a message with this content, stored unless it is known. To be called in a transaction."""
        if packed.known is not None:
            return packed.known
        message_id = self._store.execute(
            "INSERT INTO messages (base, beside, body) VALUES (:base, :beside, :body)",
            {"base": packed.base, "beside": packed.beside, "body": packed.body},
        ).lastrowid
        assert message_id is not None
        remember(self._stored, packed.digest, (message_id, packed.body), _REMEMBERED)
        if packed.task:
            self._take_in(packed, packed.task, run_id, message_id)
        return message_id

    def _take_in(self, packed: Packed, task: TaskText, run_id: str, message_id: int) -> None:
        """Remember a stored task message for those to come."""
        remember(self._texts, message_id, task.text, _KEPT)
        if packed.base is None:
            remember(self._task_of_run, run_id, (message_id, len(packed.body)), _RUNS)
        if packed.base is None or (run_id, task.parent) not in self._of_parent:
            remember(self._of_parent, (run_id, task.parent), message_id, _KEPT)
        remember(self._of_island, (run_id, task.island), (message_id, task.depth), _ISLANDS)

    def _known(self, digest: bytes) -> int | None:
        """The id of a message of this text, if this process stored one lately."""
        if found := self._stored.get(digest):
            message_id, body = found
            row = self._store.row("SELECT body FROM messages WHERE id = :id", {"id": message_id})
            if row is not None and row["body"] == body:  # else its run was removed meanwhile
                return message_id
        return None

    def read(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages of `rows` of the table (`base`, `beside` and `body`)."""
        return [_message_of(self._unpacked(row)) for row in rows]

    def _dictionary(self, base: int | None, beside: int | None) -> bytes:
        return b"".join(self._text(one) for one in (base, beside) if one is not None)

    def _text(self, message_id: int) -> bytes:
        """The text of a base. Raises PassagentError if it is gone."""
        if message_id == _WORDS:
            return _WORDS_0
        text = self._texts.get(message_id)
        if text is None:
            row = self._store.row(
                "SELECT base, beside, body FROM messages WHERE id = :id", {"id": message_id}
            )
            if row is None:
                raise PassagentError(f"{self._store.runs_dir}: message {message_id} is gone; others need it")
            text = self._unpacked(row)
        remember(self._texts, message_id, text, _KEPT)
        return text

    def _unpacked(self, row: dict[str, Any]) -> bytes:
        return unpack_text(row["body"], self._dictionary(row["base"], row["beside"]))


def _text_of(message: dict[str, Any]) -> bytes:
    """A message as JSON, the arguments of its calls as JSON in it: so they look as they do in a prompt.

    ASCII: a lone surrogate of a model can be stored, too.
    """
    if message.get("tool_calls"):
        message = message | {"tool_calls": [_opened(call) for call in message["tool_calls"]]}
    return json.dumps(message).encode()


def _digest_of(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()[:16]


def _message_of(text: bytes) -> dict[str, Any]:
    """The inverse of _text_of."""
    message: dict[str, Any] = json.loads(text)
    for call in message.get("tool_calls") or ():
        if isinstance(call["arguments"], dict):
            call["arguments"] = json.dumps(call["arguments"])
        elif isinstance(call["arguments"], list):
            call["arguments"] = _compact(call["arguments"][0])
    return message


def _opened(call: dict[str, Any]) -> dict[str, Any]:
    """A call with its arguments as data, in a list if they were written compactly.

    Unless they could not be written again as they are.
    """
    try:
        arguments = json.loads(call["arguments"])
    except (ValueError, RecursionError):
        return call
    if isinstance(arguments, dict):
        if json.dumps(arguments) == call["arguments"]:
            return call | {"arguments": arguments}
        if _compact(arguments) == call["arguments"]:
            return call | {"arguments": [arguments]}
    return call


def _compact(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def remember(memory: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    """Keep the `limit` entries that were used last."""
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > limit:
        memory.popitem(last=False)
