"""Keep a conversation inside the model's window: old tool results are sent as one line each.

Only what is sent is folded, never what is stored. The system and task messages, the newest results, the last
error and the best evaluation stay whole. Folding comes in strides, down to FOLD_TO of the budget, so that
the prefix which a server has cached changes seldom; it depends on the messages alone, so a resumed episode
sends what it would have sent.
"""

from __future__ import annotations

import json

from passagent.agent.observe import read_as, read_status
from passagent.models.types import Message

FOLD_TO = 0.6
NEWEST = 2
"""Tool results at the end that are never folded."""
MIN_CHARS = 400
"""Shorter results are not worth folding."""


def estimate_tokens(message: Message) -> int:
    """A message's size, tokens: four characters each."""
    extras = [message[key] for key in ("tool_calls", "raw") if message.get(key)]
    return (len(message["content"]) + (len(json.dumps(extras)) if extras else 0)) // 4 + 4


def fold(messages: list[Message], budget: int) -> list[Message]:
    """`messages` with as many old tool results folded as an estimate of `budget` tokens asks for."""
    folded = set[int]()
    sizes = [estimate_tokens(message) for message in messages]
    total = 0
    for end, message in enumerate(messages, 1):
        total += sizes[end - 1]
        if total > budget and message["role"] != "assistant":  # no request is sent after a reply
            for index in _foldable(messages[:end]):
                if total <= budget * FOLD_TO:
                    break
                if index not in folded:
                    folded.add(index)
                    total -= sizes[index] - estimate_tokens(_stub(messages[index]))
    return [_stub(message) if index in folded else message for index, message in enumerate(messages)]


def _foldable(messages: list[Message]) -> list[int]:
    """Indices of the tool results that may be folded, the oldest first."""
    results = [index for index, message in enumerate(messages) if message["role"] == "tool"]
    scored = [(score, i) for i in results if (score := read_as(messages[i]["content"])) is not None]
    errors = [i for i in results if _is_error(messages[i]["content"])]
    kept = {*results[-NEWEST:], *errors[-1:]}
    if scored:
        kept.add(max(scored)[1])
    return [i for i in results if i not in kept and len(messages[i]["content"]) > MIN_CHARS]


def _is_error(content: str) -> bool:
    return content.startswith("error:") or (read_status(content) or "ok") != "ok"


def _stub(message: Message) -> Message:
    content = message["content"]
    status, score = read_status(content), read_as(content)
    verdict = f"; status: {status}, AS {score}" if status else ""
    first = content.split("\n", 1)[0][:80]
    text = f"[folded: {content.count(chr(10)) + 1} lines of {message['name']}, beginning '{first}'{verdict}]"
    return {**message, "content": text}
