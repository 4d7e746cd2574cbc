"""Trials: runs that `collect` makes of a task with a model, and what came of each.

The trials of one model in a database are its collection. `collections` has the time that was spent on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from passagent.store.database import Store
from passagent.store.runs import Run, get_run


class Spent(NamedTuple):
    """What runs have taken together."""

    tokens: int = 0
    """In and out."""
    cost: float = 0.0
    """USD, as far as prices are known."""
    evaluations: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    run: str
    task: str
    task_key: str
    model: str
    trial: int
    state: str
    """See Run.state."""
    reason: str | None
    """Why it ended, in words."""
    steps: int
    """Model calls."""
    evaluations: int
    """Candidates that were judged, answers from the store and refusals included."""
    tokens: int
    cost: float
    first_as: float | None
    """AS of the first judged candidate; None: there is none, or it was not timed."""
    best_as: float | None
    """The highest AS of its candidates, right or wrong."""
    is_correct: bool
    """A candidate is right on every subgraph."""
    went_back: bool
    """A right candidate was followed by a wrong one, and that by a right one."""

    @property
    def is_done(self) -> bool:
        """Whether the conversation came to its end."""
        return self.state == "finished"


_SPENT = (
    "SELECT coalesce(sum(input_tokens + output_tokens), 0) AS tokens, coalesce(sum(cost), 0.0) AS cost, "
    "coalesce(sum(evaluations), 0) AS evaluations FROM runs "
)


def find(store: Store, task_key: str, model: str, trial: int) -> Run | None:
    """The run of this trial, None if it has not begun."""
    return store.one(
        Run,
        "SELECT * FROM runs WHERE task_key = :task AND model = :model AND trial = :trial",
        {"task": task_key, "model": model, "trial": trial},
    )


def spent(store: Store, model: str) -> Spent:
    """What all trials of the model have taken."""
    row = store.row(_SPENT + "WHERE trial IS NOT NULL AND model = :model", {"model": model})
    return Spent(**(row or {}))


def spent_by(store: Store, run_ids: Iterable[str]) -> Spent:
    """What these runs have taken."""
    row = store.row(
        _SPENT + "WHERE id IN (SELECT value FROM json_each(:ids))", {"ids": json.dumps(list(run_ids))}
    )
    return Spent(**(row or {}))


def elapsed_s(store: Store, model: str) -> float:
    """The time that was spent on the model's collection, s."""
    row = store.row("SELECT elapsed_s FROM collections WHERE model = :model", {"model": model})
    return float(row["elapsed_s"]) if row else 0.0


def set_elapsed(store: Store, model: str, seconds: float) -> None:
    """So much time was spent on the model's collection, s."""
    store.execute(
        "INSERT INTO collections (model, elapsed_s) VALUES (:model, :seconds) "
        "ON CONFLICT (model) DO UPDATE SET elapsed_s = max(elapsed_s, excluded.elapsed_s)",
        {"model": model, "seconds": seconds},
    )


def outcomes(store: Store) -> Iterator[Outcome]:
    """What came of every trial in the database, in the order in which they began."""
    for row in store.rows("SELECT id FROM runs WHERE trial IS NOT NULL ORDER BY rowid"):
        yield outcome(store, row["id"])


def outcome(store: Store, run_id: str) -> Outcome:
    """What came of a trial so far."""
    run = get_run(store, run_id)
    assert run.trial is not None
    judged = store.rows(
        "SELECT status, as_score FROM nodes WHERE run_id = :run AND state = 'done' "
        "AND status != 'infrastructure' ORDER BY number, place",
        {"run": run_id},
    )
    steps = store.row("SELECT sum(steps) AS steps FROM episodes WHERE run_id = :run", {"run": run_id})
    scores = [row["as_score"] for row in judged]
    right = [row["status"] == "ok" for row in judged]
    return Outcome(
        run=run.id,
        task=run.task,
        task_key=run.task_key,
        model=run.model,
        trial=run.trial,
        state=run.state,
        reason=run.stop_reason,
        steps=(steps and steps["steps"]) or 0,
        evaluations=len(judged),
        tokens=run.tokens,
        cost=run.cost,
        first_as=scores[0] if scores else None,
        best_as=max((score for score in scores if score is not None), default=None),
        is_correct=any(right),
        went_back=_went_back(right),
    )


def _went_back(right: list[bool]) -> bool:
    """Whether a pass, a failure and a pass follow each other, with anything between them."""
    if True not in right:
        return False
    first, last = right.index(True), len(right) - 1 - right[::-1].index(True)
    return False in right[first:last]
