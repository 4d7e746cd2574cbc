"""A task as a model is shown it, and figures of the target to plan a kernel with.

Each distinct graph is shown once, its variants as differences, shapes in a table. A figure is measured here,
or a vendor's nominal value; else unknown.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import statistics
import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from passagent.agent.tokens import cut_end, fit, tokens
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.reference.eager import EagerGraph, Output
from passagent.tasks import Subgraph, Task
from passagent.tasks.reader import find_forward, operator_names

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
    operators: tuple[str, ...]
    """The first graph's, as captured; before it is captured, as its text has them."""


@dataclass(frozen=True)
class TaskView:
    """The data of the task template; `more_*` count what is left out."""

    variants: list[Variant]
    more_variants: int
    rows: list[str]
    """Graphs with the same source and shapes: a row of the table each."""
    more_rows: int


@functools.lru_cache(maxsize=16)
def view_task(task: Task, budget: int, eager: tuple[EagerGraph, ...] = ()) -> TaskView:
    """The graphs of a task, grouped; at most `budget` tokens of them, two thirds of these for the sources.

    `eager`: what is known of eager on them. Made once a process for each task, budget and that.
    """
    measured = {graph_facts.name: graph_facts for graph_facts in eager}
    by_source: dict[str, list[Subgraph]] = defaultdict(list)
    for graph in task.subgraphs:
        by_source[forward_source(graph.source)].append(graph)
    first = next(iter(by_source))
    variants, labels = [], {}
    for index, (source, graphs) in enumerate(by_source.items()):
        labels[source] = chr(ord("A") + index) if index < 26 else f"V{index}"
        changed = _changed_lines(first, source) if index else None
        text = source if changed is None else changed
        where = graphs[0].path.relative_to(task.path).as_posix()
        file = "task/model.py" if where == "." else f"task/{where}/model.py"
        text = text if index else cut_end(text, budget * 2 // 3, f"; view {file}")
        facts = measured.get(graphs[0].name)
        forward = find_forward(graphs[0].source, graphs[0].path / "model.py")
        operators = facts.operators if facts else operator_names(forward)
        variants.append(Variant(labels[source], text, changed is not None, len(graphs), file, operators))
    count = max(1, fit(variants[:MAX_VARIANTS], lambda variant: variant.text, budget * 2 // 3))
    rest = budget - sum(tokens(variant.text) for variant in variants[:count])
    rows = _rows(task, labels, measured)
    shown_rows = fit(rows[:MAX_ROWS], str, rest)
    return TaskView(variants[:count], len(variants) - count, rows[:shown_rows], len(rows) - shown_rows)


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


def _rows(task: Task, labels: dict[str, str], measured: dict[str, EagerGraph]) -> list[str]:
    """Return `| source | inputs | dtypes | elements of the largest | outputs | eager |` for each."""
    groups: dict[tuple[str, str, str], list[Subgraph]] = defaultdict(list)
    for graph in task.subgraphs:
        outputs = _outputs(graph, measured.get(graph.name))
        groups[(labels[forward_source(graph.source)], _inputs(graph), outputs)].append(graph)
    rows = []
    for (label, inputs, outputs), graphs in groups.items():
        counts = Counter(graph.dtype for graph in graphs)
        dtypes = ", ".join(name + (f" (x {n})" if n > 1 else "") for name, n in counts.items())
        largest = max((meta.numel for meta in graphs[0].inputs if not meta.is_python_scalar), default=0)
        columns = (label, inputs, dtypes, f"{largest:,}", outputs, _times(graphs, measured))
        rows.append(f"| {' | '.join(columns)} |")
    return rows


def _outputs(graph: Subgraph, measured: EagerGraph | None) -> str:
    if measured is None:
        return "not known yet"
    texts = []
    for output in measured.outputs:
        dtype = "T" if output.dtype == graph.dtype else output.dtype
        strides = "" if _is_contiguous(output) else f" strides {output.strides}"
        texts.append(f"{dtype}{list(output.shape)}{strides}")
    return "; ".join(texts)


def _is_contiguous(output: Output) -> bool:
    expected = 1
    for size, stride in zip(output.shape[::-1], output.strides[::-1], strict=True):
        if size != 1 and stride != expected:
            return 0 in output.shape
        expected *= size
    return True


def _times(graphs: list[Subgraph], measured: dict[str, EagerGraph]) -> str:
    """Eager's time for each dtype; of several graphs of one dtype the median."""
    by_dtype: dict[str, list[float]] = defaultdict(list)
    for graph in graphs:
        if graph.name in measured:
            by_dtype[graph.dtype].append(measured[graph.name].eager_us)
    medians = {dtype: statistics.median(times) for dtype, times in by_dtype.items()}
    texts = [f"{dtype} {us:.0f} us" if us >= 100 else f"{dtype} {us:.1f} us" for dtype, us in medians.items()]
    return ", ".join(texts) or "not measured yet"


def _inputs(graph: Subgraph) -> str:
    texts = []
    for meta in graph.inputs:
        if meta.is_python_scalar:
            texts.append(f"{meta.name} = {meta.data} (Python {meta.dtype})")
        else:
            dtype = "T" if meta.dtype == graph.dtype else meta.dtype
            texts.append(f"{meta.name} {dtype}{list(meta.shape)}")
    return ", ".join(texts)


_GPUS = {
    "B200": (148, 8000, 126, 227, 75, 2250),
    "H200": (132, 4800, 50, 227, 67, 989),
    "H100": (132, 3350, 50, 227, 67, 989),
    "A100": (108, 2039, 40, 163, 19.5, 312),
    "A30": (56, 933, 24, 163, 10.3, 165),
    "L40S": (142, 864, 96, 99, 91.6, 362),
    "RTX 4090": (128, 1008, 72, 99, 82.6, 165),
}
"""SMs, memory GB/s, L2 MB, shared memory a block KB, fp32 TFLOP/s, dense bf16 TFLOP/s; largest variant.

NVIDIA's data sheets and architecture white papers; shared memory: CUDA C++ Programming Guide, "Compute
Capabilities" (maximum per thread block: 227 KB for 9.0 and 10.0, 163 KB for 8.0, 99 KB for 8.9).
"""

_VECTORS = {
    "avx512f": "AVX-512",
    "avx2": "AVX2",
    "f16c": "F16C",
    "avx512_bf16": "AVX-512 BF16",
    "asimd": "NEON",
}


@functools.lru_cache(maxsize=16)
def figures(
    target: str, device_name: str, machine: Machine | None = None, threads: int | None = None
) -> tuple[str, ...]:
    """The device's name, then a line for each figure: measured (of `machine`), nominal, or unknown.

    `threads`: OpenMP threads of a timed call. Read once a process.
    """
    return (device_name, *(_gpu(device_name) if target == "cuda" else _cpu(threads)), *_measured(machine))


def _gpu(device_name: str) -> list[str]:
    name = next((name for name in _GPUS if re.search(rf"\b{name}\b", device_name)), None)
    if name is None:
        return ["SMs, peak bandwidth, FLOP/s, L2 and shared memory: unknown (not in passagent's table)"]
    sms, bandwidth, l2, shared, fp32, bf16 = _GPUS[name]
    return [
        f"{sms} SMs; {shared} KB shared memory a block; {l2} MB L2 (nominal)",
        f"peak memory bandwidth: {bandwidth} GB/s (nominal)",
        f"peak arithmetic: {fp32} TFLOP/s fp32, {bf16} TFLOP/s bf16 on tensor cores (nominal)",
    ]


def _cpu(threads: int | None) -> list[str]:
    cores = len(os.sched_getaffinity(0))
    info = Path("/proc/cpuinfo")
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", info.read_text(), re.M) if info.exists() else None
    flags = line.group(1).split() if line else []
    vectors = [name for flag, name in _VECTORS.items() if flag in flags]
    return [
        f"OpenMP threads in a timed call, eager's and yours: {threads or 'unknown'} (omp_get_max_threads() "
        f"there; no clause takes more){'; parallel regions gain nothing' if threads == 1 else ''}",
        f"cores of this machine: {cores}",
        f"vectors: {', '.join(vectors) or 'unknown'}",
        f"caches of a core: {_caches() or 'unknown'}",
        "peak FLOP/s: unknown",
    ]


def _measured(machine: Machine | None) -> list[str]:
    if machine is None:
        return ["bandwidth and cost of a launch on this machine: unknown (not measured)"]
    counts = machine.copy_threads or (0,) * len(machine.bandwidths)
    rates = ", ".join(
        f"{rate / 1e9:.3g} GB/s at {size >> 20} MiB{f' with threads: {count}' if count else ''}"
        for (size, rate), count in zip(machine.bandwidths, counts, strict=True)
    )
    return [
        f"bandwidth of a copy, read and written bytes together: {rates} (measured here)",
        f"issuing one eager operator: {machine.issue_s * 1e6:.2g} us (measured here)",
    ]


def _caches() -> str:
    caches = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = (index / "type").read_text().strip()
        if kind != "Instruction":
            caches.append(f"L{(index / 'level').read_text().strip()} {(index / 'size').read_text().strip()}")
    return ", ".join(caches)
