"""The common part of the providers' APIs: a history that each of them takes, and counts of tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from passagent.models.types import Message, ToolSpec

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
"""Characters that no API takes in a tool's name, though replies hold them."""
MAX_NAME = 64
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(value: Any) -> Any:
    """`value` (JSON-able) without lone surrogates, which UTF-8 cannot hold: models write half an emoji."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return value


def valid_history(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """Return `messages` in a form that every API takes.

    Blank replies are left out. User messages in a row become one, as chat templates want turns to alternate.
    Each call has a name of allowed characters and an object as arguments.
    """
    names, valid = [tool.name for tool in tools], list[Message]()
    for message in messages:
        if message["role"] == "assistant":
            calls = []
            for call in message["tool_calls"]:
                name = _NO_NAME.sub("_", call["name"]).strip("_")[:MAX_NAME] or "unnamed"
                name = meant_tool(call["name"], names) or name
                calls.append(call | {"name": name, "arguments": _sent_arguments(call["arguments"])})
            if message["content"].strip() or calls:
                valid.append(message | {"tool_calls": calls})
        elif message["role"] == "user" and valid and valid[-1]["role"] == "user":
            valid[-1] = valid[-1] | {"content": f"{valid[-1]['content']}\n\n{message['content']}"}
        else:
            valid.append(message)
    cleaned: list[Message] = clean(valid)
    return cleaned


def _sent_arguments(text: str) -> str:
    """A call's arguments; what is no JSON object becomes `{"invalid_json": text}`.

    Servers parse the arguments of earlier calls too, and refuse the whole request over a broken one.
    """
    try:
        value = json.loads(text or "{}")
        json.dumps(value, allow_nan=False)  # NaN is no JSON, though Python reads it: it cannot be sent back
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return text or "{}"
    return json.dumps({"invalid_json": text})


def meant_tool(name: str, tools: Sequence[str]) -> str | None:
    """Return the one of `tools` that `name` holds as a word, as `functions.check` does; else None."""
    named = set(re.findall(r"[\w-]+", name)) & set(tools)
    return named.pop() if len(named) == 1 else None
