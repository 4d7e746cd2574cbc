"""A training example before it takes a trainer's form: a conversation, and which of its replies are trained.

Every format (formats.py) is a function of this. What a model said is read here once: its calls' arguments as
objects, and of its reasoning only what is plain text. Signed or hidden reasoning is never text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from passagent.models.types import LENGTH, REFUSAL
from passagent.store.trajectories import Call, Trajectory
from passagent.store.trajectories import Turn as Stored

Row = dict[str, Any]
"""One JSON object of an export."""
FILES = "files"
"""The column of `Example.columns` with the candidates' files, which the format `passagent` alone carries."""


@dataclass(frozen=True)
class Turn:
    """One message of an example."""

    message: Row
    """It as chat templates take it: `role`, `content`; of a reply `tool_calls`, whose arguments are objects,
    and `reasoning_content`, where it is plain text; of a tool's result `tool_call_id`, `name`."""
    raw: tuple[Row, ...] = ()
    """`call` and `arguments` as the model sent them, where they are no JSON object; the call has `{}`."""
    is_trained: bool = False
    """A student learns to say this; replies only."""
    at: str = ""
    """When it was stored, ISO 8601, UTC."""
    usage: Call | None = None
    """The cost of a reply's model call."""

    @property
    def role(self) -> str:
        """`system`, `user`, `assistant` or `tool`."""
        return str(self.message["role"])


@dataclass(frozen=True)
class Example:
    """A conversation that is complete on its own: system and task message, and at least one trained reply."""

    id: str
    """`RUN/EPISODE`, or `RUN/EPISODE/NODE` for the step that made a node."""
    turns: tuple[Turn, ...]
    tools: tuple[Row, ...]
    """The tools offered: `name`, `description`, `parameters` (a JSON schema)."""
    trajectory: Trajectory
    columns: Row = field(default_factory=dict)
    """The columns of docs/training.md: all that is known but the conversation."""

    @property
    def replies(self) -> list[Turn]:
        """The replies of the model."""
        return [turn for turn in self.turns if turn.role == "assistant"]

    @property
    def functions(self) -> list[Row]:
        """The tools in the form that chat APIs and chat templates take."""
        return [{"type": "function", "function": dict(tool)} for tool in self.tools]

    def provenance(self) -> Row:
        """Return where the example comes from, and what is known of it: columns of every table.

        A column of the example is taken before what the trajectory says. `raw_arguments` is JSON text: an
        empty list has no type that a table could take. `reasoning` is `full`, `some` or `none`.
        """
        texts_known = ["reasoning_content" in turn.message for turn in self.replies]
        raw = [arguments for turn in self.turns for arguments in turn.raw]
        return {
            "id": self.id,
            **self.trajectory.model_dump(include={"run", "episode", "model", "device"}),
            **{name: value for name, value in self.columns.items() if name != FILES},
            "reasoning": "full" if all(texts_known) else "some" if any(texts_known) else "none",
            "raw_arguments": json.dumps(raw, ensure_ascii=False),
        }


def stretches(turns: Sequence[Turn]) -> list[tuple[int, int]]:
    """List the longest stretches `turns[begin:end]` of trained replies.

    Each begins and ends with a trained reply and holds no other reply; together they hold each once.
    """
    trained: list[tuple[int, int]] = []
    is_open = False
    for place, turn in enumerate(turns):
        if turn.role != "assistant":
            continue
        if turn.is_trained:
            begin = trained.pop()[0] if is_open else place
            trained.append((begin, place + 1))
        is_open = turn.is_trained
    return trained


def whole(trajectory: Trajectory) -> Example:
    """The episode as one example.

    Not trained is a reply with arguments that are no JSON object, and one that is empty, cut off or declined.
    """
    return Example(
        id=f"{trajectory.run}/{trajectory.episode}",
        turns=tuple(_turn(stored) for stored in trajectory.messages),
        tools=tuple(trajectory.messages[0].message.get("tools", ())),
        trajectory=trajectory,
    )


def steps(trajectory: Trajectory) -> dict[int, Example]:
    """For each node that the episode made, the example of the step that led to it.

    The conversation up to the result of the call that proposed the node. Trained are the replies since that
    of the node before.
    """
    episode = whole(trajectory)
    node_of_call = {node.call_id: node.node for node in trajectory.nodes}
    examples, begin, roles = dict[int, Example](), 0, [turn.role for turn in episode.turns]
    for place, turn in enumerate(episode.turns):
        node = node_of_call.get(turn.message.get("tool_call_id", ""))
        if node is None:
            continue
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
    names = ("role", "content", "tool_call_id", "name")
    fields: Row = {name: message[name] for name in names if name in message}
    if message["role"] != "assistant":
        return Turn(fields, at=stored.at)
    calls, raw = list[Row](), list[Row]()
    for call in message["tool_calls"]:
        try:
            arguments = json.loads(call["arguments"].strip() or "{}")
            json.dumps(arguments, allow_nan=False)  # Python reads NaN and 1e999, which are no JSON
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raw.append({"call": call["id"], "arguments": call["arguments"]})
            arguments = {}
        function = {"name": call["name"], "arguments": arguments}
        calls.append({"id": call["id"], "type": "function", "function": function})
    reasoning = _plain_reasoning(message.get("raw", {}))
    if calls:
        fields["tool_calls"] = calls
    if reasoning is not None:
        fields["reasoning_content"] = reasoning
    is_said = bool(message["content"].strip() or calls)
    is_whole = is_said and message.get("stop_reason") not in (LENGTH, REFUSAL)
    return Turn(fields, tuple(raw), is_whole and not raw, stored.at, stored.usage)


def _plain_reasoning(raw: Row) -> str | None:
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
