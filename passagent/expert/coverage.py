"""The operators of a task that the expert takes, those that stay with eager, and why; nothing is run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from passagent.errors import PassagentError, UsageError
from passagent.expert.author import author
from passagent.expert.choices import CHOICES, default
from passagent.expert.graph import is_free, op_name, operators
from passagent.expert.read.fusible_regions import is_view
from passagent.expert.read.reading import graphs

ALONE = "alone: a kernel would not pay"
VIEW = "a view, which costs nothing"


@dataclass(frozen=True)
class Left:
    """An operator that stays with eager."""

    operator: str
    why: str
    count: int
    """Over all graphs of the task."""


@dataclass(frozen=True)
class TaskCoverage:
    """The coverage of a task's operators under the default plan."""

    task: str
    graphs: int = 0
    kernels: int = 0
    """Graphs in which a kernel replaces something."""
    views: int = 0
    """Graphs in which nothing but views is rewritten."""
    regions: list[str] = field(default_factory=list)
    """The operators of each kind of region, such as `add + layer_norm`."""
    taken: int = 0
    """Operators inside regions, over all graphs."""
    left: list[Left] = field(default_factory=list)
    error: str | None = None
    """Why the task could not be read."""

    @property
    def covered(self) -> bool:
        """Tell whether a pass rewrites every graph."""
        return 0 < self.graphs == self.kernels + self.views


def cover(task: Path, target: str) -> TaskCoverage:
    """Find what the expert's first pass takes of a task. Raises UsageError for an unknown target."""
    if target not in CHOICES:
        raise UsageError(f"--device {target}: write {' or '.join(CHOICES)}")
    task_name = task.resolve().name
    try:
        captured = graphs(str(task))
    except PassagentError as error:
        return TaskCoverage(task_name, error=str(error))
    authored = author(list(captured), target, default(target))
    inside = {node for _, region in authored.taken for node in region.nodes}
    computed = {number for number, region in authored.taken if not all(map(is_view, region.nodes))}
    every = {number for number, _ in authored.taken}
    counts: Counter[tuple[str, str]] = Counter()
    for graph in captured:
        for node in operators(graph):
            if node not in inside:
                name = op_name(node)
                counts[name, VIEW if is_free(node) else authored.refused.get(name, ALONE)] += 1
    return TaskCoverage(
        task_name,
        len(captured),
        len(computed),
        len(every - computed),
        list(dict.fromkeys(authored.fused)),
        len(inside),
        [Left(operator, why, count) for (operator, why), count in counts.most_common()],
    )


@dataclass(frozen=True)
class Total:
    """An operator that stays with eager, over all tasks."""

    operator: str
    why: str
    tasks: int
    count: int


def totals(tasks: list[TaskCoverage]) -> list[Total]:
    """Operators that stay with eager, those of the most tasks first."""
    by_reason: dict[tuple[str, str], list[int]] = {}
    for missing in (missing for task in tasks for missing in task.left):
        by_reason.setdefault((missing.operator, missing.why), []).append(missing.count)
    result = [Total(*reason, len(counts), sum(counts)) for reason, counts in by_reason.items()]
    return sorted(result, key=lambda t: (-t.tasks, -t.count, t.operator))
