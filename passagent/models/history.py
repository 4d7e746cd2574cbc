"""History in a form that every API takes: messages are stored as received, and made valid when sent."""

from __future__ import annotations

import re
from collections.abc import Sequence

from passagent.models.types import Message, ToolSpec
from passagent.models.wire import arguments_text, clean

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]+")
"""Characters that no API takes in a tool's name, though replies hold them."""
MAX_NAME = 64
EMPTY = "(empty)"
"""Sent for a blank text that cannot be left out."""


def valid_history(
    messages: Sequence[Message], tools: Sequence[ToolSpec], plain_ids: bool = False
) -> list[Message]:
    """Return `messages` in a form that every API takes.

    Blank replies are left out. User messages in a row become one, as chat templates want turns to alternate.
    Each call has a name of allowed characters, an object as arguments, and an id of its own, which its result
    has, too; with `plain_ids` the id has a name's characters. A result of no call becomes a user message.
    """
    names = [tool.name for tool in tools]
    valid, waiting, used = list[Message](), list[tuple[str, str]](), set[str]()
    for message in messages:
        role, content = message["role"], clean(message["content"])
        if role == "assistant":
            calls, waiting = [], []
            for call in message["tool_calls"]:
                id_ = call["id"]
                if not id_ or id_ in used or (plain_ids and _REFUSED.search(id_)):
                    id_ = f"made{len(used):05}"  # nine characters: Mistral takes no others
                used.add(id_)
                waiting.append((call["id"], id_))
                name = (
                    meant_tool(call["name"], names) or _REFUSED.sub("_", call["name"]).strip("_")[:MAX_NAME]
                )
                arguments = arguments_text(call["arguments"])
                calls.append({"id": id_, "name": name or "unnamed", "arguments": arguments})
            if content.strip() or calls:  # a request may not end with a reply that ends with a space
                valid.append(message | {"content": content.rstrip(), "tool_calls": calls})
            continue
        content = content if content.strip() else EMPTY
        call_ids = next((ids for ids in waiting if ids[0] == message.get("tool_call_id")), None)
        if call_ids:
            waiting.remove(call_ids)
            valid.append(message | {"content": content, "tool_call_id": call_ids[1]})
        elif role != "system" and valid and valid[-1]["role"] == "user":
            valid[-1] = valid[-1] | {"content": f"{valid[-1]['content']}\n\n{content}"}
        else:
            valid.append({"role": "system" if role == "system" else "user", "content": content})
    return valid


def meant_tool(name: str, tools: Sequence[str]) -> str | None:
    """Return the one of `tools` that `name` holds as a word, as `functions.check` does; else None."""
    named = set(re.findall(r"[\w-]+", name)) & set(tools)
    return named.pop() if len(named) == 1 else None


def has_call_as_text(text: str, tools: Sequence[ToolSpec]) -> bool:
    """Tell whether a text is a call of one of `tools` that the server did not take for one."""
    names = "|".join(re.escape(tool.name) for tool in tools)
    call = rf"""<tool_call>|\[TOOL_CALLS\]|\b(name|functions?)["']?\s*[=:.]\s*["']?({names})\b"""
    return bool(names) and re.search(call, text) is not None
