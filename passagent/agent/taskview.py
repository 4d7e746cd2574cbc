"""A task as a model is shown it: each distinct graph once, its variants as differences, shapes in a table."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from passagent.agent.tokens import cut_end, fit, tokens
from passagent.tasks import Subgraph, Task

MAX_VARIANTS = 12
MAX_ROWS = 40
_RELEASE = re.compile(r"^\s*(\w+\s*=\s*)+None\s*$")


@dataclass(frozen=True)
class Variant:
    """Graphs with the same source."""

    label: str
    """A, B, ..."""
    text: str
    """forward in full, or the lines in which it differs from A."""
    is_difference: bool
    graphs: int
    file: str
    """The first graph's model.py as the file_editor names it."""


@dataclass(frozen=True)
class Row:
    """Graphs with the same source and shapes."""

    label: str
    inputs: str
    """Such as `in_0 T[64, 1], in_1 int64[2]`; T is the graph's own dtype."""
    dtypes: str
    largest: str
    """Size of the largest input."""


@dataclass(frozen=True)
class TaskView:
    """What the task template shows; `more_*` count what is left out."""

    variants: list[Variant]
    more_variants: int
    rows: list[Row]
    more_rows: int


@dataclass(frozen=True)
class _Known:
    """A task that is equal to another one by its files' contents."""

    path: Path
    key: str
    task: Task = field(compare=False)


def view_task(task: Task, budget: int) -> TaskView:
    """The graphs of a task, grouped; at most `budget` tokens of them, two thirds of these for the sources.

    Made once a process for each task and budget.
    """
    return _view(_Known(task.path, task.key, task), budget)


@functools.lru_cache(maxsize=16)
def _view(known: _Known, budget: int) -> TaskView:
    task = known.task
    by_source: dict[str, list[Subgraph]] = defaultdict(list)
    for graph in task.subgraphs:
        by_source[forward_source(graph.source)].append(graph)
    first = next(iter(by_source))
    variants, labels = [], {}
    for index, (source, graphs) in enumerate(by_source.items()):
        labels[source] = _label(index)
        changed = _changed_lines(first, source) if index else None
        text = source if changed is None else changed
        where = graphs[0].path.relative_to(task.path).as_posix()
        file = "task/model.py" if where == "." else f"task/{where}/model.py"
        text = text if index else cut_end(text, budget * 2 // 3, f"; view {file}")
        variants.append(Variant(_label(index), text, changed is not None, len(graphs), file))
    shown = max(1, fit(variants[:MAX_VARIANTS], lambda variant: variant.text, budget * 2 // 3))
    left = budget - sum(tokens(variant.text) for variant in variants[:shown])
    rows = _rows(task, labels)
    shown_rows = fit(rows[:MAX_ROWS], lambda row: row.inputs + row.dtypes, left)
    return TaskView(variants[:shown], len(variants) - shown, rows[:shown_rows], len(rows) - shown_rows)


@functools.lru_cache(maxsize=64)
def forward_source(source: str) -> str:
    """`forward` of a model.py, dedented, without the lines that only release temporaries."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            lines = lines[node.lineno - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(line for line in lines if not _RELEASE.match(line))).strip()


def _changed_lines(first: str, other: str) -> str | None:
    """The lines of `other` that are not as in `first`; None if lines came or went, or most are changed."""
    old, new = first.splitlines(), other.splitlines()
    changed = [line.strip() for before, line in zip(old, new, strict=False) if before != line]
    return "\n".join(changed) if len(old) == len(new) and len(changed) <= len(new) // 2 else None


def _rows(task: Task, labels: dict[str, str]) -> list[Row]:
    groups: dict[tuple[str, str], list[Subgraph]] = defaultdict(list)
    for graph in task.subgraphs:
        groups[(labels[forward_source(graph.source)], _inputs(graph))].append(graph)
    rows = []
    for (label, inputs), graphs in groups.items():
        counts = {graph.dtype: sum(g.dtype == graph.dtype for g in graphs) for graph in graphs}
        dtypes = ", ".join(name + (f" (x {n})" if n > 1 else "") for name, n in counts.items())
        largest = max((meta.numel for meta in graphs[0].inputs if not meta.is_python_scalar), default=0)
        rows.append(Row(label, inputs, dtypes, _count(largest)))
    return rows


def _inputs(graph: Subgraph) -> str:
    shown = []
    for meta in graph.inputs:
        if meta.is_python_scalar:
            shown.append(f"{meta.name} = {meta.data} (Python {meta.dtype})")
        else:
            dtype = "T" if meta.dtype == graph.dtype else meta.dtype
            shown.append(f"{meta.name} {dtype}{list(meta.shape)}")
    return ", ".join(shown)


def _count(elements: int) -> str:
    if elements >= 1_000_000:
        return f"{elements / 1e6:.1f} M"
    return f"{elements / 1e3:.1f} k" if elements >= 1000 else str(elements)


def _label(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"V{index}"
