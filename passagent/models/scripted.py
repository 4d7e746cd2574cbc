"""A model whose replies are written beforehand: for tests, yours and ours, without mocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from passagent.errors import PassagentError
from passagent.models.types import END, TOOLS, Message, Reply, ToolSpec, Usage, assistant

Scripted = Reply | Message | str
"""A whole reply, an assistant message, or a text."""


class ScriptedModel:
    """Gives `replies` in order, or what the function `replies(messages, tools)` makes of each conversation.

    `calls` keeps the messages of every call. Raises PassagentError when the replies run out.
    """

    def __init__(
        self,
        replies: Sequence[Scripted] | Callable[[list[Message], list[ToolSpec]], Scripted],
        name: str = "scripted",
    ) -> None:
        self.name, self.replies = name, replies
        self.calls: list[list[Message]] = []

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """See Model.complete."""
        self.calls.append(list(messages))
        if callable(self.replies):
            return as_reply(self.replies(messages, tools))
        if len(self.calls) > len(self.replies):
            raise PassagentError(f"{self.name}: all {len(self.replies)} scripted replies are used up")
        return as_reply(self.replies[len(self.calls) - 1])

    async def close(self) -> None:
        """See Model.close."""


def as_reply(scripted: Scripted) -> Reply:
    """The Reply that a text or an assistant message stands for; its usage is one token of each kind."""
    if isinstance(scripted, Reply):
        return scripted
    message = assistant(scripted) if isinstance(scripted, str) else scripted
    return Reply(message, Usage(1, 1), TOOLS if message["tool_calls"] else END)


def calling(*calls: tuple[str, dict[str, Any] | str], content: str = "", ids: Sequence[str] = ()) -> Message:
    """An assistant message with tool calls: `calling(("file_editor", {"command": "view", "path": "."}))`.

    Arguments given as a str are sent as they are, valid JSON or not. Calls without an id get one that is
    unique within the message only.
    """
    return assistant(
        content,
        [
            {
                "id": ids[i] if i < len(ids) else f"call_{i}",
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            }
            for i, (name, arguments) in enumerate(calls)
        ],
    )
