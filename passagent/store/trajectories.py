"""An episode whole, as plain data: the format `passagent.trajectory/1`, built from the database on demand.

The models below are the format's only definition; docs/formats.md explains it. A change that an old
reader would misread gets a new number.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from passagent.errors import UsageError
from passagent.store import nodes, runs
from passagent.store.database import Store, written
from passagent.store.episodes import Episode, get_episode, unpack_messages
from passagent.store.redaction import redacted
from passagent.store.runs import Run

FORMAT: Literal["passagent.trajectory/1"] = "passagent.trajectory/1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Call(_Part):
    """The cost of the model call behind a reply, as far as it is known."""

    model: str | None
    input_tokens: int | None
    """All of the prompt, cached parts included."""
    output_tokens: int | None
    """All that was generated, reasoning included."""
    cached_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    cost: float | None
    """USD; None: the price is not known."""
    latency_s: float | None


class Turn(_Part):
    """One message of the conversation, in order."""

    message: dict[str, Any]
    """Exactly as stored: `role`, `content`, and by role `tool_calls`, `raw`, `stop_reason`, `input_tokens`
    (a reply), `tool_call_id`, `name` (a tool's result), `tools` (the system message: the tools offered),
    `data` (what programs read of it)."""
    usage: Call | None = None
    """The cost of a model's reply."""
    at: str
    """When it was stored, ISO 8601, UTC."""


class Candidate(_Part):
    """A node that the episode made."""

    node: int
    call_id: str
    """The call of `pass_evaluator` that proposed it."""
    parent: int | None
    state: str
    status: str | None
    as_score: float | None
    note: str
    files: str
    """The key of its files (`Store.get_files`)."""
    repeat_of: int | None


class Trajectory(_Part):
    """An episode with all that was said, done and scored."""

    format: Literal["passagent.trajectory/1"] = FORMAT
    passagent: str
    """The version that made the run."""
    run: str
    episode: int
    """Its number in the run, from 1."""
    task: str
    task_key: str
    """sha256 of the subgraphs' content."""
    operators: list[str]
    model: str
    device: str
    island: int
    role: str
    seed: int
    parent: int | None
    """The node it started from; None: the task itself."""
    parent_as: float | None
    state: Literal["running", "done"]
    end_reason: str | None
    steps: int
    """Model calls."""
    input_tokens: int
    output_tokens: int
    best_node: int | None
    best_as: float | None
    gain: float | None
    """ln(best_as / parent_as); eager itself (1) where there is no correct parent."""
    created_at: str
    finished_at: str | None
    messages: list[Turn] = Field(default_factory=list)
    nodes: list[Candidate] = Field(default_factory=list)
    columns: dict[str, Any] = Field(default_factory=dict)
    """The columns of an exported episode, which docs/training.md describes."""
    files: dict[str, dict[str, str]] = Field(default_factory=dict)
    """The files of an exported episode's nodes, by their keys."""


def find_episode(store: Store, run: Run, number: int) -> Episode:
    """The episode of this number in the run. Raises UsageError."""
    row = store.row(
        "SELECT id FROM episodes WHERE run_id = :run AND number = :number", {"run": run.id, "number": number}
    )
    if row is None:
        [numbers] = store.rows(
            "SELECT min(number) AS first, max(number) AS last FROM episodes WHERE run_id = :run",
            {"run": run.id},
        )
        has = "none yet" if numbers["last"] is None else "{first} to {last}".format(**numbers)
        raise UsageError(f"run {run.id} has no episode {number}; it has {has}")
    return get_episode(store, row["id"])


_OF_EPISODE = (
    "island", "seed", "state", "end_reason", "steps", "input_tokens", "output_tokens", "best_node", "best_as",
    "gain", "created_at", "finished_at",
)  # fmt: skip
"""Fields of a trajectory that are columns of its episode."""


def trajectory(store: Store, run: Run, episode: Episode, clean: bool = True) -> Trajectory:
    """The episode as it is now, finished or not.

    clean: once more without what is a secret, which may have been learned since it was stored.
    """
    cleaned = redacted if clean else (lambda value: value)
    rows = store.rows(
        "SELECT body, like_id, at_ms, calls.* FROM steps JOIN messages ON messages.id = message_id "
        "LEFT JOIN calls ON calls.episode_id = steps.episode_id AND calls.step = steps.seq "
        "AND calls.state = 'done' AND calls.role = 'agent' "
        "WHERE steps.episode_id = :id ORDER BY seq",
        {"id": episode.id},
    )
    parent = nodes.get_node(store, episode.parent_id) if episode.parent_id is not None else None
    return Trajectory(
        **{name: getattr(run, name) for name in ("task", "task_key", "model", "device")},
        **{name: getattr(episode, name) for name in _OF_EPISODE},
        passagent=run.version,
        run=run.id,
        episode=episode.number,
        operators=json.loads(run.operators),
        role=runs.get_island(store, run.id, episode.island).role,
        parent=episode.parent_id,
        parent_as=parent.as_score if parent else None,
        messages=[
            _turn(row, cleaned(message))
            for row, message in zip(rows, unpack_messages(store, rows), strict=True)
        ],
        nodes=[_candidate(node, cleaned(node.note)) for node in nodes.of_episode(store, episode.id)],
    )


def _turn(row: dict[str, Any], message: dict[str, Any]) -> Turn:
    usage = Call(**{key: row[key] for key in Call.model_fields}) if message["role"] == "assistant" else None
    return Turn(message=message, usage=usage, at=written(row["at_ms"]))


def _candidate(node: nodes.Node, note: str) -> Candidate:
    same = {name: getattr(node, name) for name in ("call_id", "state", "status", "as_score", "repeat_of")}
    return Candidate(node=node.id, parent=node.parent_id, note=note, files=node.candidate_key, **same)
