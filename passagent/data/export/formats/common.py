"""Parts that the formats share: columns of provenance, tool schemas, and the replies that a row trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from passagent.data.export.example import Example, Turn

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
