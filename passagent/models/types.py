"""What a model is asked and what it answers: neutral messages; each provider's module translates them.

`valid_history` makes of messages what every provider takes.

Messages are plain JSON-able dicts, stored as they are:

    {"role": "system" | "user", "content": str}
    {"role": "assistant", "content": str, "tool_calls": [{"id", "name", "arguments"}], "raw": {...}}
    {"role": "tool", "tool_call_id": str, "name": str, "content": str}

`arguments` is the JSON text that the model sent, valid or not. `raw` is optional: what a provider needs back
verbatim (thinking blocks, reasoning items), under the API's name.

`data` is what programs read of a message that the program wrote; no provider is sent it. Of a task message
see agent/prompt.py. Of a call's answer: `error` (true: it could not be done as asked), `edit` (`wrote` or
`restored`), `is_sound` (of a check), and `evaluation` (agent/observe.verdict).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Message = dict[str, Any]

END, TOOLS, LENGTH, REFUSAL = "end", "tools", "length", "refusal"
"""The stop reasons: the model is done; it called tools; it ran out of output tokens; it declined."""

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
"""Characters that no API takes in a tool's name, though replies hold them."""
MAX_NAME = 64
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a model sees it: the one source of every API's schema."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments, an object."""

    @functools.cached_property
    def size(self) -> int:
        """Characters of it as JSON."""
        return len(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Usage:
    """Tokens of one call, as the server counted them."""

    input_tokens: int = 0
    """All of the prompt, cached parts included."""
    output_tokens: int = 0
    """All that was generated, reasoning included."""
    cached_tokens: int = 0
    """Part of input_tokens that was read from a cache."""
    reasoning_tokens: int = 0
    """Part of output_tokens, where the provider tells."""
    cache_write_tokens: int = 0
    """Part of input_tokens that was written to a cache, where the provider tells."""


@dataclass(frozen=True)
class Reply:
    """One complete answer of a model."""

    message: Message
    usage: Usage
    stop_reason: str
    """`end`, `tools`, `length` or `refusal`; a provider's other reasons as they are."""


def assistant(content: str, tool_calls: list[dict[str, str]] | None = None) -> Message:
    """An assistant message; `tool_calls` of `{"id", "name", "arguments"}`."""
    return {"role": "assistant", "content": content, "tool_calls": tool_calls or []}


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
