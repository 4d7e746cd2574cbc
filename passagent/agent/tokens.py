"""Sizes in tokens, by estimate: cutting a part of a prompt, and keeping a conversation in a model's window.

Four characters are a token: near the truth for English and code with today's tokenizers (3 to 4.5). What a
server reports of the calls already made corrects it, so no tokenizer is needed for any model.

In a conversation that is too long, what is old is sent in short; what is stored stays whole. Long results of
tool calls become a line each, the oldest first. If that is not enough, whole exchanges (a reply, its results,
remarks on it) are left out, and a note stands in their place.

The first messages (system, task), the best evaluation, the last error and the newest exchanges are always
sent in full. A reply is never altered, only left out as a whole. Where one that is left out carries what its
provider wants back unchanged (`raw`: signed thinking), so are replies after it that have none: a turn must
begin with its thinking. Every call keeps its result.

Folding comes in strides, down to FOLD_TO of the budget, so that the prefix which a server has cached changes
seldom. It depends on the messages alone, so a resumed episode sends what it would have sent. Sizes are
estimates, corrected by `input_tokens` of the replies: what the server counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from passagent.models.types import Message

CHARACTERS = 4
"""A token's, by estimate."""
FRAME = 4
"""Tokens that a message costs beside its content."""
FOLD_TO = 0.6
NEWEST = 2
"""Results, and exchanges, at the end that are never folded."""
MIN_CHARS = 400
"""Shorter texts are not worth folding."""
PLAUSIBLE = (0.4, 3.0)
"""Tokens counted by the server / estimated; outside of it the server's count is no count."""

T = TypeVar("T")


def tokens(text: str) -> int:
    """The estimate for a text."""
    return -(-len(text) // CHARACTERS)


def message_tokens(message: Message) -> int:
    """The estimate for a message with all that is sent of it."""
    extras = [message[key] for key in ("tool_calls", "raw") if message.get(key)]
    return tokens(message["content"]) + (tokens(json.dumps(extras)) if extras else 0) + FRAME


def fit(items: Sequence[T], text: Callable[[T], str], budget: int) -> int:
    """Return how many of `items`, from the first on, fit into `budget` tokens as `text` shows them."""
    for number, item in enumerate(items):
        budget -= tokens(text(item))
        if budget < 0:
            return number
    return len(items)


def cut_end(text: str, budget: int, rest: str) -> str:
    """`text`, or the whole lines of its beginning that fit into `budget` tokens and how many lines are not.

    `rest` says where the others can be read.
    """
    if tokens(text) <= budget:
        return text
    lines = text.split("\n")
    count = fit(lines, lambda line: line + "\n", budget)
    return "\n".join([*lines[:count], f"... {len(lines) - count} lines not shown{rest}"])


def cut_middle(text: str, budget: int) -> str:
    """`text`, or its beginning and its end that together fit into `budget` tokens."""
    if tokens(text) <= budget:
        return text
    half = budget * CHARACTERS // 2
    return (
        f"{text[:half]}\n... {len(text) - 2 * half} characters not shown ...\n{text[-half:] if half else ''}"
    )


class Sent(NamedTuple):
    """A conversation as it is sent."""

    messages: list[Message]
    tokens: int
    """Its estimate."""


def fold(messages: list[Message], budget: int, overhead: int = 0) -> Sent:
    """Return what to send of `messages` in at most `budget` tokens, as far as that is possible.

    `overhead`: estimated tokens of what goes with every request (the tools' schemas).
    """
    folded = _Folded(messages, overhead)
    for end, message in enumerate(messages, 1):
        if message["role"] == "assistant":
            folded.correct(end)
        elif end == len(messages) or messages[end]["role"] == "assistant":  # a request was sent here
            folded.shrink(end, budget)
    sent = [folded.short.get(index, message) for index, message in enumerate(messages)]
    if folded.note:
        sent[folded.dropped.start : folded.dropped.stop] = [folded.note]
    return Sent(sent, int(folded.total(len(messages))))


class _Folded:
    """The messages and their short forms, as far as the conversation has been gone through."""

    def __init__(self, messages: list[Message], overhead: int) -> None:
        self.messages, self.overhead, self.ratio = messages, overhead, 1.0
        self.short: dict[int, Message] = {}
        """Short forms, by the place of the message."""
        self.dropped = range(0)
        """Messages that are left out, with `note` in their place."""
        self.note: Message | None = None
        self.sizes = [message_tokens(message) for message in messages]

    def total(self, end: int) -> float:
        """The estimate for a request of the first `end` messages."""
        note = message_tokens(self.note) if self.note else 0
        sizes = (self.sizes[index] for index in range(end) if index not in self.dropped)
        return (self.overhead + note + sum(sizes)) * self.ratio

    def correct(self, end: int) -> None:
        """Learn from the server's count of the request that the last of `end` messages answered."""
        counted, estimated = self.messages[end - 1].get("input_tokens"), self.total(end - 1) / self.ratio
        if isinstance(counted, int) and PLAUSIBLE[0] <= counted / max(estimated, 1) <= PLAUSIBLE[1]:
            self.ratio = counted / estimated

    def shrink(self, end: int, budget: int) -> None:
        """Fold what may be of the first `end` messages if they are more than `budget`."""
        if self.total(end) <= budget:
            return
        goal, so_far = budget * FOLD_TO, self.messages[:end]
        results = [index for index, m in enumerate(so_far) if m["role"] == "tool"]
        spared = {*results[-NEWEST:], _best(so_far), _last_error(so_far), *self.short, *self.dropped}
        for index in results:
            if self.total(end) <= goal:
                return
            if len(so_far[index]["content"]) > MIN_CHARS and index not in spared:
                self.short[index] = _short_result(so_far[index])
                self.sizes[index] = message_tokens(self.short[index])
        if self.total(end) <= budget:
            return
        starts = [index for index, message in enumerate(so_far) if message["role"] == "assistant"]
        for stop in starts[1 : len(starts) - NEWEST + 1]:  # leave out the oldest exchanges
            needs_raw = any(message.get("raw") for message in so_far[starts[0] : stop])
            if stop > self.dropped.stop and (so_far[stop].get("raw") or not needs_raw):
                if self.total(end) <= goal:
                    return
                self.dropped = range(starts[0], stop)
                self.note = _note(self.dropped, so_far)


def _evaluation(message: Message) -> dict[str, Any]:
    return message.get("data", {}).get("evaluation") or {}


def _best(messages: list[Message]) -> int | None:
    """The result of the best evaluation: a correct one before any other, then by AS; the newest of equals."""
    scored = [
        (evaluation["status"] == "ok", evaluation["as_score"], index)
        for index, message in enumerate(messages)
        if (evaluation := _evaluation(message)) and evaluation["as_score"] is not None
    ]
    return max(scored)[2] if scored else None


def _last_error(messages: list[Message]) -> int | None:
    for index in reversed(range(len(messages))):
        data = messages[index].get("data", {})
        if data.get("error") or _evaluation(messages[index]).get("status", "ok") != "ok":
            return index
    return None


def _short_result(message: Message) -> Message:
    """Return a result in one line."""
    content, evaluation = message["content"], _evaluation(message)
    verdict = f"; status: {evaluation['status']}, AS {evaluation['as_score']}" if evaluation else ""
    first = content.split("\n", 1)[0][:80]
    lines = f"{content.count(chr(10)) + 1} lines of {message['name']}"
    text = f"[folded: {lines}, beginning '{first}'{verdict}]"
    return {**message, "content": text}


def _note(dropped: range, so_far: list[Message]) -> Message:
    """Return what stands in place of exchanges: those of their results that must not be lost.

    `replies`, their number, is for models that count replies (replay); no provider is sent it.
    """
    replies = sum(so_far[index]["role"] == "assistant" for index in dropped)
    parts = [
        f"[{replies} earlier replies and their results are left out here; your files are as you left them.]"
    ]
    best, error = _best(so_far), _last_error(so_far)
    if best is not None and best in dropped:
        parts.append(f"Of them the best evaluation:\n{so_far[best]['content']}")
    if error is not None and error in dropped and error != best:
        parts.append(f"Of them the last error:\n{so_far[error]['content']}")
    return {"role": "user", "content": "\n\n".join(parts), "replies": replies}
