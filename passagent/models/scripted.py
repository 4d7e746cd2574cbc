"""Models whose replies are there beforehand: scripted for tests, yours and ours, or recorded from a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from passagent.errors import PassagentError, UsageError
from passagent.models.types import END, TOOLS, Message, Reply, ToolSpec, Usage, assistant
from passagent.store.trajectories import Trajectory

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
        """Implement Model.complete."""
        self.calls.append(list(messages))
        if callable(self.replies):
            return as_reply(self.replies(messages, tools))
        if len(self.calls) > len(self.replies):
            raise PassagentError(f"{self.name}: all {len(self.replies)} scripted replies are used up")
        return as_reply(self.replies[len(self.calls) - 1])

    async def close(self) -> None:
        """Implement Model.close."""


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


class ReplayModel:
    """Plays a file back (`replay:FILE`). Raises UsageError naming the line that is no recorded reply.

    The file is JSONL, one model call a line, as a store exports it:

        {"episode": "123", "usage": {...},
         "message": {"role": "assistant", "content": "", "tool_calls": [...]}}

    `message` is a neutral assistant message (models/types.py), `usage` holds Usage's fields and may be left
    out. A line may also be a whole episode as `passagent show RUN EPISODE --json` prints it
    (passagent.trajectory/1).

    Lines of one `episode` are its replies in order. An episode whose label is the seed of the conversation
    (its task message's data has it) is played to that conversation; other labels are taken in the order of
    the file as new conversations come. Which reply is next is counted in the conversation itself, so a
    resumed episode goes on where it was.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = f"replay:{path}"
        self._episodes = read_replies(Path(path))
        self._assigned: dict[str, str] = {}

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """Implement Model.complete. Raises UsageError where the recording ends."""
        episode = self._episode(messages)
        # a note that stands in place of earlier replies (agent/tokens.py) says how many they were
        position = sum(m["role"] == "assistant" or m.get("replies", 0) for m in messages)
        replies = self._episodes[episode]
        if position >= len(replies):
            raise UsageError(f"{self.name}: episode {episode} has {len(replies)} replies, not {position + 1}")
        return replies[position]

    async def close(self) -> None:
        """Implement Model.close."""

    def _episode(self, messages: list[Message]) -> str:
        start = [m["content"] for m in messages[:2]]
        seed = next((str(m["data"]["seed"]) for m in messages[:2] if "seed" in m.get("data", {})), "")
        if seed in self._episodes:
            return seed
        key = hashlib.sha256(json.dumps(start).encode()).hexdigest()
        if key not in self._assigned:
            free = [name for name in self._episodes if name not in self._assigned.values()]
            if not free:
                raise UsageError(f"{self.name}: only {len(self._episodes)} episodes are recorded")
            self._assigned[key] = free[0]
        return self._assigned[key]


def read_replies(path: Path) -> dict[str, list[Reply]]:
    """The replies of each episode of a recording. Raises UsageError naming file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"replay:{path}: cannot be read: {reason}") from error
    episodes: dict[str, list[Reply]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
                if "format" in record:
                    label, replies = _episode(Trajectory.model_validate(record))
                    if label in episodes:
                        raise ValueError(f"a second episode with seed {label}")
                    episodes[label] = replies
                else:
                    episodes.setdefault(str(record["episode"]), []).append(_reply(record))
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(f"replay:{path}, line {number}: not a recorded reply: {error!r}") from error
    if not episodes:
        raise UsageError(f"replay:{path}: holds no replies")
    return episodes


def _episode(trajectory: Trajectory) -> tuple[str, list[Reply]]:
    """An episode's label, its seed, and its replies."""
    names = {field.name for field in fields(Usage)}
    return str(trajectory.seed), [
        _reply(
            {
                "message": turn.message,
                "usage": turn.usage.model_dump(include=names, exclude_none=True) if turn.usage else {},
            }
        )
        for turn in trajectory.messages
        if turn.message["role"] == "assistant"
    ]


def _reply(record: dict[str, Any]) -> Reply:
    recorded = record["message"]
    calls = []
    for position, call in enumerate(recorded.get("tool_calls") or []):
        arguments = call["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append({"id": call.get("id") or f"call_{position}", "name": call["name"], "arguments": text})
    message = assistant(recorded.get("content") or "", calls)
    stop = recorded.get("stop_reason") or (TOOLS if calls else END)
    return Reply(message, Usage(**(record.get("usage") or {})), stop)
