"""`bench --explain`: where a compiler loses, as in PassNet's Appendix G (Tables 7 and 8), and on what.

A subgraph loses if it is correct and slower than eager, end to end. Its root cause is found as there: if its
kernels are no slower, it is the cost of a call, of a small graph or of a fast one; if they are, it is the
kernels. That takes the time of the device, so on the CPU only the size of the graph is known.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from passagent.data.bench.results import Row
from passagent.evaluator.result import GraphResult
from passagent.tasks import Task

SMALL = 15
"""Operators below which a graph is small (PassNet, Table 8)."""
FAST_MS = 2.0
"""The longest time of eager on a fast graph (Table 8), ms."""
BOUNDS = (1.0, 1.2, 2.0)
"""Between the ranges of Table 7."""
CAUSES = (
    "small graph: cost of a call",
    "fast graph: cost of a call",
    "slower kernels",
    "other",
    "device time unknown",
)


@dataclass(frozen=True)
class Group:
    """Some subgraphs of a compiler."""

    name: str
    """The root cause, or the category."""
    subgraphs: int
    slower: int
    """The number of them that are slower than eager."""
    wrong: int
    """The number of them that are wrong, or without a result."""
    median: float | None
    """The median of the end-to-end speedups of the correct ones."""


@dataclass(frozen=True)
class Losses:
    """The losses of one compiler."""

    compiler: str
    is_kernel: bool
    """The ranges are of kernel speedups; else of those end to end, as no device time is known."""
    ranges: tuple[int, ...]
    """Correct subgraphs in each range between BOUNDS."""
    causes: list[Group]
    """The slower ones by their root cause."""
    categories: list[Group]
    """All of them by category."""


def losses(tasks: dict[str, Task], rows: Sequence[Row], compiler: str) -> Losses | None:
    """Count where a compiler loses; `tasks` by their keys. None without a timed subgraph."""
    by_category: dict[str, list[GraphResult]] = defaultdict(list)
    for row in rows:
        if row.compiler == compiler and row.error is None and row.evaluation is not None:
            by_category[category(tasks[row.task_key].operators)] += row.evaluation.graphs
    right = [graph for graphs in by_category.values() for graph in graphs if _speedup(graph) is not None]
    if not right:
        return None
    kernels = [graph.speedup.device for graph in right if graph.speedup and graph.speedup.device is not None]
    is_kernel = len(kernels) == len(right)
    speeds = kernels if is_kernel else [_speedup(graph) or 0.0 for graph in right]
    by_cause: dict[str, list[GraphResult]] = {name: [] for name in CAUSES}
    for graph in right:
        if (_speedup(graph) or 0.0) < 1:
            by_cause[cause(graph)].append(graph)
    return Losses(
        compiler=compiler,
        is_kernel=is_kernel,
        ranges=tuple(
            sum(low <= speed < high for speed in speeds)
            for low, high in zip((0.0, *BOUNDS), (*BOUNDS, float("inf")), strict=True)
        ),
        causes=[_group(name, graphs) for name, graphs in by_cause.items() if graphs],
        categories=[_group(name, by_category[name]) for name in sorted(by_category)],
    )


def cause(graph: GraphResult) -> str:
    """Return why a subgraph is slower than eager (PassNet, Table 8)."""
    assert graph.speedup is not None
    if graph.speedup.device is None:
        return "small graph: cost of a call" if graph.nodes_before < SMALL else "device time unknown"
    if graph.speedup.device < 1:
        return "slower kernels"
    if graph.nodes_before < SMALL:
        return "small graph: cost of a call"
    return "fast graph: cost of a call" if (graph.eager_ms or 0.0) < FAST_MS else "other"


_CATEGORIES = {
    "convolution": ("conv",),
    "attention": ("scaled_dot_product", "attention"),
    "recurrent": ("lstm", "gru", "rnn"),
    "matrix product": ("matmul", "linear", "bmm", "mm", "einsum", "baddbmm", "addmm"),
    "norm": ("norm",),
    "softmax": ("softmax", "logsumexp"),
    "loss": ("loss", "cross_entropy", "kl_div"),
    "pooling": ("pool",),
    "scan": ("cumsum", "cumprod", "sort"),
    "reduction": ("sum", "mean", "prod", "max", "min", "argmax", "argmin", "amax", "amin", "var", "std"),
    "indexing": ("index", "gather", "scatter", "embedding", "roll", "cat", "getitem"),
}
"""By words in operators' names, the first that is there."""
_EXACT = {"mm", "sum", "max", "min", "mean", "prod", "var", "std", "rnn", "sort"}
"""Words that are a whole name, or a part of other ones."""


def category(operators: Sequence[str]) -> str:
    """Return the kind of a task: the heaviest kind of operator in it."""
    for name, words in _CATEGORIES.items():
        for word in words:
            if any(operator == word if word in _EXACT else word in operator for operator in operators):
                return name
    return "elementwise"


def _speedup(graph: GraphResult) -> float | None:
    """Return the end-to-end speedup of a correct subgraph; None for one that is wrong or not timed."""
    return graph.speedup.e2e if graph.status == "ok" and graph.speedup else None


def _group(name: str, graphs: Sequence[GraphResult]) -> Group:
    speeds = [speed for graph in graphs if (speed := _speedup(graph)) is not None]
    return Group(
        name=name,
        subgraphs=len(graphs),
        slower=sum(speed < 1 for speed in speeds),
        wrong=len(graphs) - len(speeds),
        median=statistics.median(speeds) if speeds else None,
    )
