"""A training example before it takes a trainer's form: a conversation, and which of its replies are trained.

Every format (formats/) is a function of this. What a model said is read here once: its calls' arguments as
objects, and of its reasoning only what is plain text. Signed or hidden reasoning is never text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from passagent.models.types import LENGTH, REFUSAL
from passagent.store.trajectories import Call as Usage
from passagent.store.trajectories import Trajectory
from passagent.store.trajectories import Turn as Stored

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A call as a model made it."""

    id: str
    name: str
    arguments: dict[str, Any]
    """{} where what the model sent is no JSON object."""
    raw: str | None = None
    """The text that the model sent, where that is no JSON object."""


@dataclass(frozen=True)
class Turn:
    """One message of an example."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    """The calls of a reply."""
    reasoning: str | None = None
    """The thoughts behind a reply, where the provider gives them as plain text."""
    answers: str | None = None
    """The id of the call, for a tool's result."""
    name: str | None = None
    """The name of the tool, for a tool's result."""
    is_trained: bool = False
    """A student learns to say this; replies only."""
    at: str = ""
    """When it was stored, ISO 8601, UTC."""
    usage: Usage | None = None
    """The cost of a reply's model call."""


@dataclass(frozen=True)
class Example:
    """A conversation that is complete on its own: system and task message, and at least one trained reply."""

    id: str
    """`RUN/EPISODE`, or `RUN/EPISODE/NODE` for the step that made a node."""
    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...]
    """The tools offered: `name`, `description`, `parameters` (a JSON schema)."""
    trajectory: Trajectory
    columns: dict[str, Any] = field(default_factory=dict)
    """The columns of docs/training.md: all that is known but the conversation."""

    @property
    def replies(self) -> list[Turn]:
        """The replies of the model."""
        return [turn for turn in self.turns if turn.role == "assistant"]

    @property
    def reasoning(self) -> Literal["none", "some", "full"]:
        """The part of the replies whose reasoning is known."""
        texts_known = [turn.reasoning is not None for turn in self.replies]
        return "full" if all(texts_known) else "some" if any(texts_known) else "none"


Row = dict[str, Any]
"""One JSON object of an export."""
FileRow = tuple[str, Row]
"""The name of a file in the output directory, and a row of it."""
FILES = "files"
"""The column of `Example.columns` with the candidates' files, which the format `passagent` alone carries."""


class Stretch(NamedTuple):
    """`turns[begin:end]` of an example. It begins and ends with a trained reply, and holds no other reply."""

    begin: int
    end: int


def stretches(turns: Sequence[Turn]) -> list[Stretch]:
    """List the longest stretches of trained replies: together they hold each trained reply once."""
    trained: list[Stretch] = []
    is_open = False
    for place, turn in enumerate(turns):
        if turn.role != "assistant":
            continue
        if turn.is_trained:
            begin = trained.pop().begin if is_open else place
            trained.append(Stretch(begin, place + 1))
        is_open = turn.is_trained
    return trained


def has_untrained(turns: Sequence[Turn]) -> bool:
    """Return whether there is a reply that is not trained."""
    return any(turn.role == "assistant" and not turn.is_trained for turn in turns)


def provenance(example: Example) -> Row:
    """Return where an example comes from, and what is known of it: columns of every table.

    A column of the example is taken before what the trajectory says. `raw_arguments` is JSON text: an empty
    list has no type that a table could take.
    """
    return {
        "id": example.id,
        **example.trajectory.model_dump(include={"run", "episode", "model", "device"}),
        **{name: value for name, value in example.columns.items() if name != FILES},
        "reasoning": example.reasoning,
        "raw_arguments": json.dumps(raw_arguments(example), ensure_ascii=False),
    }


def raw_arguments(example: Example) -> list[dict[str, str]]:
    """List the arguments that are no JSON object, as the model sent them; the call has `{}`."""
    return [
        {"call": call.id, "arguments": call.raw}
        for turn in example.replies
        for call in turn.calls
        if call.raw is not None
    ]


def functions(example: Example) -> list[Row]:
    """Return the tools in the form that chat APIs and chat templates take."""
    return [{"type": "function", "function": dict(tool)} for tool in example.tools]


def whole(trajectory: Trajectory) -> Example:
    """The episode as one example.

    Not trained is a reply with arguments that are no JSON object, and one that is empty, cut off or declined.
    """
    [system, *rest] = [_turn(stored) for stored in trajectory.messages]
    return Example(
        id=f"{trajectory.run}/{trajectory.episode}",
        turns=(system, *rest),
        tools=tuple(trajectory.messages[0].message.get("tools", ())),
        trajectory=trajectory,
    )


def steps(trajectory: Trajectory) -> dict[int, Example]:
    """For each node that the episode made, the example of the step that led to it.

    The conversation up to the answer of the call that proposed the node: its result, or that it is being
    evaluated. Trained are the replies since that of the node before.
    """
    episode = whole(trajectory)
    node_of_call = {node.call_id: node.node for node in trajectory.nodes}
    examples, begin, roles = dict[int, Example](), 0, [turn.role for turn in episode.turns]
    for place, turn in enumerate(episode.turns):
        if turn.role != "tool" or turn.answers not in node_of_call:
            continue
        node = node_of_call[turn.answers]
        # of parallel calls the later ones are answered later: the step ends with its reply's last result
        end = next((at for at in range(place, len(roles)) if roles[at] != "tool"), len(roles))
        turns = tuple(
            replace(turn, is_trained=turn.is_trained and begin <= at)
            for at, turn in enumerate(episode.turns[:end])
        )
        if any(turn.is_trained for turn in turns):
            examples[node] = replace(episode, id=f"{episode.id}/{node}", turns=turns)
        begin = end
    return examples


def _turn(stored: Stored) -> Turn:
    message = stored.message
    role: Role = message["role"]
    if role != "assistant":
        return Turn(
            role,
            message["content"],
            answers=message.get("tool_call_id"),
            name=message.get("name"),
            at=stored.at,
        )
    calls = tuple(_call(call) for call in message["tool_calls"])
    return Turn(
        role,
        message["content"],
        calls=calls,
        reasoning=plain_reasoning(message.get("raw", {})),
        is_trained=_is_whole(message) and all(call.raw is None for call in calls),
        at=stored.at,
        usage=stored.usage,
    )


def _is_whole(message: dict[str, Any]) -> bool:
    is_said = bool(message["content"].strip() or message["tool_calls"])
    return is_said and message.get("stop_reason") not in (LENGTH, REFUSAL)


def _call(call: dict[str, str]) -> ToolCall:
    try:
        arguments = json.loads(call["arguments"].strip() or "{}")
        json.dumps(arguments, allow_nan=False)  # Python reads NaN and 1e999, which are no JSON
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return ToolCall(call["id"], call["name"], {}, call["arguments"])
    return ToolCall(call["id"], call["name"], arguments)


def plain_reasoning(raw: dict[str, Any]) -> str | None:
    """Return a reply's reasoning as plain text; None where it is signed, hidden or absent.

    raw: a message's `raw`, see models/types.py. A summary, which some providers give instead, is not what the
    model thought: it does not count.
    """
    reply = raw.get("openai", {})
    texts = [reply.get(name) for name in ("reasoning_content", "reasoning")]
    blocks = raw.get("anthropic", [])
    thoughts = [block.get("thinking") for block in blocks if block.get("type") == "thinking"]
    if not any(block.get("signature") for block in blocks):
        texts.append("\n".join(text for text in thoughts if isinstance(text, str)))
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)
