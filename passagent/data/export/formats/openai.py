"""OpenAI's fine-tuning: chat messages with arguments as text, and a `weight` of 0 or 1 on each reply.

The endpoint refuses keys that it does not know, so a row has no provenance: it is in the side file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from passagent.data.export.example import Example, ToolCall, Turn
from passagent.data.export.formats.common import Row, chat_message, functions, stretches

FILE = "train.jsonl"


def rows(example: Example) -> Iterator[Row]:
    """One row up to the last trained reply. Replies that are empty are left out, as they are when sent."""
    trained = stretches(example.turns)
    if not trained:
        return
    yield {
        "messages": [_message(turn) for turn in example.turns[: trained[-1].end] if not _is_empty(turn)],
        "tools": functions(example),
        "parallel_tool_calls": True,
    }


def arguments_text(call: ToolCall) -> str:
    """A call's arguments as the text of a JSON object."""
    return json.dumps(call.arguments, ensure_ascii=False)


def _is_empty(turn: Turn) -> bool:
    return turn.role == "assistant" and not turn.calls and not turn.content.strip()


def _message(turn: Turn) -> Row:
    message = chat_message(turn, arguments_text)
    if turn.role == "tool":
        del message["name"]  # not in the API's message
    if turn.role == "assistant":
        message["weight"] = int(turn.is_trained)
        if not turn.content:
            del message["content"]
    return message
