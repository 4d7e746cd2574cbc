"""From an evaluation to a diagnosis: the error of a wrong candidate, the limiter of a right one.

The signals are light: the bytes that inputs and outputs must move against the machine's bandwidth, the
operators left against the cost of issuing one, and the measured time. No profiler is involved, so a
limiter is a reading of shares, not a proof; the text gives the numbers behind it.

Of a wrong candidate it is the first error in one line, with the source line that it means: `File.py:12`,
`kernel.cpp:3` or `kernel.cu(3)`.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

from passagent.errors import one_line
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.result import EXACT_T, Evaluation, GraphResult, Mismatch, Status
from passagent.evaluator.score import geometric_mean

LIMITERS = ("memory_bound", "latency_bound", "unexplained")
_FAILURES = tuple(status for status in get_args(Status) if status != "ok")
LABELS: tuple[str, ...] = ("start", "untimed", "inexact", *LIMITERS, *_FAILURES)
"""Labels of a diagnosis. `start`: there is no candidate yet; `untimed`: correct, but not timed; `inexact`:
correct, but AS is far below what the speedups alone would give."""

PLAUSIBLE = 0.7
"""A headroom below this says that the rates were measured on a busy machine, not that a pass is so fast."""
SHARE = 0.4
"""A limiter must explain this share of the time; where none does, nothing measured explains the time."""


class _Shares(NamedTuple):
    """The figures that explain the time of one correct and timed subgraph."""

    limiter: str
    memory_share: float
    """Time to move the bytes at full bandwidth / measured time."""
    latency_share: float
    """Time to issue the operators that are left / measured time."""
    headroom: float
    """Measured time / (speed of light + issuing one launch): 1 where nothing is left to gain."""


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a candidate: what limits it."""

    label: str
    """One of LABELS: hints are retrieved by it."""
    text: str
    """A paragraph for the author."""
    headroom: float | None = None
    """Over the timed subgraphs, the geometric mean of their headroom; None where one is not plausible."""

    def as_json(self) -> str:
        """The JSON that is stored with a node."""
        return json.dumps(vars(self))


START = Diagnosis("start", "No candidate has been evaluated yet.")


def diagnose(evaluation: Evaluation, machine: Machine) -> Diagnosis:
    """The diagnosis of `evaluation`."""
    if evaluation.status != "ok":
        failed = sum(graph.status != "ok" for graph in evaluation.graphs)
        where = f"{failed} of {len(evaluation.graphs)} subgraphs fail: " if failed else ""
        return Diagnosis(evaluation.status, where + first_error(evaluation, {}))
    timed = [g for g in evaluation.graphs if g.speedup is not None and g.compiled_ms]
    if loose := evaluation.inexact():
        return Diagnosis("inexact", _inexactness(evaluation, loose))
    if evaluation.dispatch == "graph":  # issuing is not in the times
        machine = replace(machine, issue_s=0.0)
    shares = [_shares(graph, machine) for graph in timed]
    if not shares:
        return Diagnosis("untimed", "Every subgraph is correct; nothing was timed.")
    counts = Counter(graph.limiter for graph in shares)
    speedups = [graph.speedup.e2e for graph in timed if graph.speedup]
    slowest = speedups.index(min(speedups))
    worst, result = shares[slowest], timed[slowest]
    # among limiters that are equally frequent, the one of the slowest subgraph
    label = max(counts, key=lambda limiter: (counts[limiter], limiter == worst.limiter))
    name, ms = _NAMES.get(label, label.replace("_", "-")), result.compiled_ms or 0.0
    lines = [f"Correct on all subgraphs; {name} on {counts[label]} of {len(shares)}: {_MEANING[label]}."]
    if slow := sum(speedup < 1 for speedup in speedups):
        lines.append(f"{slow} of {len(shares)} subgraphs are slower than eager.")
    lines.append(
        f"The least gain is on {result.name} ({result.dtype}): {speedups[slowest]:.2f}x, "
        f"{ms:.4f} ms against {result.eager_ms or 0:.4f} ms; {result.nodes_before} operators became "
        f"{result.nodes_after}; moving its {result.moved_bytes / 1e6:.2f} MB takes "
        f"{worst.memory_share * ms:.4f} ms ({worst.memory_share:.0%} of the time), issuing takes "
        f"{worst.latency_share * ms:.4f} ms ({worst.latency_share:.0%}). Its time is {worst.headroom:.2f} "
        f"times what the speed of light and one launch take."
    )
    if any(graph.unstable for graph in timed):
        lines.append("Some timings were unstable; do not read small differences into them.")
    headrooms = [graph.headroom for graph in shares]
    headroom = round(geometric_mean(headrooms), 3) if min(headrooms) >= PLAUSIBLE else None
    return Diagnosis(label, " ".join(lines), headroom)


def _shares(graph: GraphResult, machine: Machine) -> _Shares:
    assert graph.compiled_ms is not None
    seconds = graph.compiled_ms * 1e-3
    memory = graph.moved_bytes / machine.bandwidth(graph.moved_bytes) / seconds
    latency = max(graph.nodes_after, 1) * machine.issue_s / seconds
    limiter = "unexplained"
    if max(memory, latency) >= SHARE:
        limiter = "memory_bound" if memory >= latency else "latency_bound"
    light = machine.light_s(graph.moved_bytes, graph.flops or 0, graph.dtype) + machine.issue_s
    return _Shares(limiter, memory, latency, seconds / light)


ADVICE = {
    "memory": "only fewer bytes help: fuse, read each input once, keep the dtype small",
    "latency": "fewer operators, launches, allocations and copies help; faster arithmetic does not",
}
"""Advice for a limit that a diagnosis and a profile (profiling/evidence.py) can both show."""
_MEANING = {
    "memory_bound": f"the time is close to what moving the inputs and outputs takes; {ADVICE['memory']}",
    "latency_bound": f"the time is mostly that of issuing operators and kernels; {ADVICE['latency']}",
    "unexplained": "the code inside the kernel, its access pattern, its parallelism, or an operator "
    "that was left as it is decides; no counter was read that says which",
}
_NAMES = {"unexplained": "neither memory traffic nor issuing explains the time"}
"""Descriptions of limiters that no measurement shows directly."""


def _inexactness(evaluation: Evaluation, loose: list[GraphResult]) -> str:
    """Say where AS is lost: subgraphs, and the t at which they fail."""
    where = "; ".join(f"{g.name} ({g.dtype}) fails at t = {(g.passes_from_t or 0) - 1}" for g in loose[:3])
    more = f"; so do {len(loose) - 3} more at t = {EXACT_T} or looser" if len(loose) > 3 else ""
    return (
        f"Correct on all subgraphs, but inexact: AS is {evaluation.as_score:.3f}, the geometric mean of the "
        f"speedups {evaluation.gmean_speedup:.3f}. {where}{more}. A t that fails scores as wrong. Round "
        "where eager stores a result, and use no approximations."
    )


AROUND = 2
"""Lines shown before and after the one that is meant."""
MAX_EXCERPTS = 6
MAX_WIDTH, MAX_LINE = 160, 220
"""Characters of a source line that is shown, and of a first error."""
_PYTHON = re.compile(r"(?<![\w/])(?P<name>[\w/]+\.py)(?:\", line |:)(?P<line>\d+)")
_KERNEL = re.compile(r"\b(?P<name>\w+)\.(?:cpp:|cu[:(])(?P<line>\d+)")


def first_error(evaluation: Evaluation, files: Mapping[str, str]) -> str:
    """`Fused.py:14: error: 'b' was not declared`, of an evaluation of `files`; empty if correct."""
    if evaluation.status == "ok":
        return ""
    if evaluation.violations:
        first = evaluation.violations[0]
        return one_line(f"{first.file}:{first.line}: {first.message} (rule {first.rule})", MAX_LINE)
    failed = [graph for graph in evaluation.graphs if graph.status != "ok"]
    graph = next((graph for graph in failed if graph.status == evaluation.status), None)
    if graph and graph.status == "mismatch" and graph.mismatches:
        best = max(graph.mismatches, key=lambda m: m.matched_nodes / max(m.pattern_nodes, 1))
        return one_line(mismatch_text(best, files), MAX_LINE)
    if graph and graph.status == "wrong_result" and graph.worst:
        rest = f"; {graph.error}" if graph.error else ""
        return one_line(f"{graph.name}: {graph.worst_element}{rest}", MAX_LINE)
    return _error((graph.error if graph else None) or evaluation.error or "no reason was recorded", files)


def mismatch_text(mismatch: Mismatch, files: Mapping[str, str]) -> str:
    """Return how far a pass came, and where its pattern is."""
    file = f"{mismatch.pass_name}.py"
    lines = files.get(file, "").splitlines()
    line = next((number for number, text in enumerate(lines, 1) if text.startswith("def pattern")), None)
    against = f", held against {mismatch.graph_node}" if mismatch.graph_node else ""
    return (
        f"{file}{f':{line}' if line else ''}: the pattern matched {mismatch.matched_nodes} of "
        f"{mismatch.pattern_nodes} nodes, not {mismatch.pattern_node}{against}: {mismatch.reason}"
    )


def _error(text: str, files: Mapping[str, str]) -> str:
    """The line of a compiler's or an interpreter's message that says what is wrong, after the place meant."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [text]
    message = next((line for line in lines if "error: " in line), lines[0])
    if message.endswith(":") and message != lines[-1]:
        message = f"{message} {lines[-1]}"  # what is between quotes the source
    place = next((f"{file}:{line}" for file, line in places(text, files)), None)
    message = f"{place}: {message.removesuffix(f' ({place})')}" if place else message
    return one_line(message, MAX_LINE)


def excerpts(message: str, files: Mapping[str, str]) -> str:
    """The lines of `files` (name to text) that `message` names, the line meant marked by `>`; "" if none.

    A line of a kernel's C++ or CUDA source is looked up in the Python file that holds it as a literal.
    """
    quoted: dict[tuple[str, int], str] = {}
    for name, line in places(message, files):
        lines = files[name].split("\n")
        near = any(name == file and abs(line - at) <= AROUND for file, at in quoted)
        if 1 <= line <= len(lines) and not near and len(quoted) < MAX_EXCERPTS:
            quoted[(name, line)] = _excerpt(name, lines, line)
    return "\n".join(quoted.values())


def places(message: str, files: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """`(file, line)` of each line of `files` that `message` means, those inside of kernels first."""
    for place in _KERNEL.finditer(message):
        kernel, line = place["name"], int(place["line"])
        yield from ((name, first + line - 1) for name, first in _literals(kernel, line, files))
    by_last_part = {name.rpartition("/")[2]: name for name in files}
    for place in _PYTHON.finditer(message):
        last_part = place["name"].rpartition("/")[2]
        file = place["name"] if place["name"] in files else by_last_part.get(last_part)
        if file:
            yield file, int(place["line"])


def _literals(kernel: str, line: int, files: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """`(file, first line)` of string literals that define a function `kernel` and have so many lines."""
    for name, text in files.items():
        try:
            tree = ast.parse(text) if name.endswith(".py") and kernel in text else ast.Module([], [])
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines = node.value.count("\n")
                # lines of the literal are lines of the file only where it spells them out
                is_plain = node.end_lineno is not None and node.end_lineno - node.lineno == lines
                if is_plain and lines >= line - 1 and re.search(rf"\b{kernel}\s*\(", node.value):
                    yield name, node.lineno


def _excerpt(name: str, lines: list[str], line: int) -> str:
    first = max(1, line - AROUND)
    rows = [
        f"{'>' if number == line else ' '}{number:>3}  {text[:MAX_WIDTH]}"
        for number, text in enumerate(lines[first - 1 : line + AROUND], first)
    ]
    return "\n".join([f"{name}:", *rows])
