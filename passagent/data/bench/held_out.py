"""Unseen shapes: who writes passes sees a part of a task's subgraphs; all are measured.

AgentKernelArena's protocol for configurations that an author never saw, with AS of either part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from passagent.data.bench.summary import Estimate, Summary, summarise
from passagent.evaluator.result import Evaluation
from passagent.tasks import Task, load_task
from passagent.tasks.reader import GRAPH_LIST

SEEN = "seen"
"""Beside the results: the tasks as their authors see them."""


@dataclass(frozen=True)
class Unseen:
    """What an author's passes are worth on shapes that it saw, and on those that it did not."""

    compiler: str
    tasks: int
    """With subgraphs that were held out."""
    subgraphs: int
    """Held out."""
    as_seen: Estimate
    as_unseen: Estimate

    @property
    def ratio(self) -> float | None:
        """AS unseen / AS seen."""
        seen, unseen = self.as_seen.value, self.as_unseen.value
        return None if not seen or unseen is None else unseen / seen


def held_out(names: Sequence[str], share: float) -> set[str]:
    """Which subgraphs are held out: the same for every author and every run; at least one stays."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return set(ordered[: min(int(len(names) * share), len(names) - 1)])


def seen_part(task: Task, share: float, directory: Path) -> Task:
    """The task without what is held out, as a directory of its own, `DIR/seen/KEY/NAME`."""
    hidden = held_out([one.name for one in task.subgraphs], share)
    if not hidden:
        return task
    place = directory / SEEN / task.key[:12] / task.name
    place.mkdir(parents=True, exist_ok=True)
    paths = [str(one.path.resolve()) for one in task.subgraphs if one.name not in hidden]
    (place / GRAPH_LIST).write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    return load_task(place)


def unseen(
    compiler: str, evaluations: Sequence[Evaluation], share: float, b: float, p: float
) -> Unseen | None:
    """Both scores of an author; None where no subgraph of its tasks was held out."""
    parts: list[tuple[Evaluation, Evaluation]] = []
    count = 0
    for evaluation in evaluations:
        hidden = held_out([graph.name for graph in evaluation.graphs], share)
        if hidden:
            count += len(hidden)
            parts.append((_only(evaluation, hidden, False), _only(evaluation, hidden, True)))
    if not parts:
        return None
    scores: list[Summary] = [summarise(compiler, part, len(parts), b, p) for part in zip(*parts, strict=True)]
    return Unseen(compiler, len(parts), count, scores[0].as_score, scores[1].as_score)


def _only(evaluation: Evaluation, names: set[str], inside: bool) -> Evaluation:
    graphs = [graph for graph in evaluation.graphs if (graph.name in names) == inside]
    return evaluation.model_copy(update={"graphs": graphs})
