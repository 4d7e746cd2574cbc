"""From what was chosen to examples: read, checked at the door, with all that is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from passagent.data.dataset import door
from passagent.data.dataset.columns import Revision, Told
from passagent.data.dataset.example import Example, steps, whole
from passagent.data.dataset.selection import Chosen
from passagent.store.episodes import get_episode
from passagent.store.runs import get_run
from passagent.store.trajectories import Trajectory, trajectory


def build(chosen: Iterable[Chosen]) -> Iterator[Example]:
    """The examples, one at a time. Raises door.NotFit."""
    last: tuple[Told, Trajectory] | None = None
    for one in chosen:
        told, name = one.told, one.columns["id"]
        if last is None or last[0] is not told:
            last = told, _read(told)
        found = last[1]
        revisions = told.revisions if one.revision is None else (one.revision,)
        example = whole(found) if one.revision is None else steps(found)[one.revision.node]
        extra = _credit(one) | {
            "operators": one.columns["operators"].split(),
            "subgraphs": list(told.subgraphs),
            "reasoning": example.reasoning,
            "files": {r.files: door.check_node(told.store, name, r) for r in revisions},
        }
        example = replace(example, columns=one.columns | extra)
        door.check_secrets(name, [found.model_dump(), extra["files"]])
        yield example


def _read(told: Told) -> Trajectory:
    """The episode as it lies in the database: what would have to be taken out of it now is for the door."""
    return trajectory(
        told.store,
        get_run(told.store, told.columns["run"]),
        get_episode(told.store, told.episode_id),
        clean=False,
    )


def _credit(one: Chosen) -> dict[str, Any]:
    """Reward, return and advantage: of the step, or of each step of the episode."""
    if one.revision is not None:
        return _figures(one.revision)
    return {"credit": [{"node": r.node, **_figures(r)} for r in one.told.revisions]}


def _figures(revision: Revision) -> dict[str, Any]:
    return {"reward": revision.reward, "return": revision.returns, "advantage": revision.advantage}
