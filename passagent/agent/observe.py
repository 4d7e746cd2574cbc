"""What the model is told of an evaluation: short, exact, and ending in two lines that a program can read.

status: wrong_result
AS: 0.4821            (`AS: none` where nothing was scored)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from passagent.evaluator.result import Evaluation, GraphResult, Mismatch, Status

MAX_ERROR = 1800
MAX_ROWS = 14
"""Rows of the speedup table; the slowest and the fastest are shown of more."""

STAGES: dict[Status, str] = {
    "refused": "integrity rules: refused, nothing was run",
    "load_error": "loading the pass files",
    "mismatch": "matching",
    "compile_error": "compiling the kernels",
    "runtime_error": "running the rewritten graphs",
    "timeout": "running the rewritten graphs",
    "out_of_memory": "running the rewritten graphs",
    "wrong_result": "correctness",
    "ok": "performance",
    "infrastructure": "none: the machine failed, this says nothing of your pass",
}


def observation(evaluation: Evaluation, parent_as: float | None = None, best_as: float | None = None) -> str:
    """The evaluation in words; `parent_as` and `best_as` (of the run) are compared with where known."""
    graphs = evaluation.graphs
    stage = STAGES[evaluation.status]
    if evaluation.status == "ok" and evaluation.timing != "wall":
        stage = "correctness (Triton's interpreter: matching, results and integrity are judged, time is not)"
    parts = [f"stage reached: {stage}", _counts(graphs)]
    if evaluation.error and evaluation.error not in [graph.error for graph in graphs]:
        parts.append(_cut(evaluation.error))
    parts += [_violation_lines(evaluation)] if evaluation.violations else []
    parts += _failures(graphs)
    parts += _idle_passes(graphs)
    parts += _loose(graphs)
    parts += _speedups(graphs)
    parts.append(_score(evaluation, parent_as, best_as))
    score = "none" if evaluation.as_score is None else f"{evaluation.as_score:.4f}"
    return "\n".join(part for part in parts if part) + f"\n\nstatus: {evaluation.status}\nAS: {score}"


def read_status(text: str) -> str | None:
    """The status at the end of an observation; None in any other text."""
    found = re.search(r"^status: (\w+)\nAS: \S+\s*\Z", text, re.M)
    return found.group(1) if found else None


def read_as(text: str) -> float | None:
    """The AS at the end of an observation; None where there is none."""
    found = re.search(r"^status: \w+\nAS: ([\d.]+)\s*\Z", text, re.M)
    return float(found.group(1)) if found else None


def _counts(graphs: list[GraphResult]) -> str:
    by_status: dict[str, int] = defaultdict(int)
    for graph in graphs:
        by_status[graph.status] += 1
    counts = ", ".join(f"{number} {status}" for status, number in sorted(by_status.items()))
    rewritten = [g for g in graphs if g.matches]
    if not rewritten:
        return f"graphs: {counts}" if graphs else ""
    operators = _span([(g.nodes_before, g.nodes_after) for g in rewritten])
    return f"graphs: {counts}; rewritten: {len(rewritten)} of {len(graphs)}, operators {operators}"


def _span(pairs: list[tuple[int, int]]) -> str:
    distinct = sorted(set(pairs))
    shown = ", ".join(f"{before} -> {after}" for before, after in distinct[:4])
    return shown + (", ..." if len(distinct) > 4 else "")


def _violation_lines(evaluation: Evaluation) -> str:
    lines = [f"[{v.rule}] {v.file}:{v.line}: {v.message}" for v in evaluation.violations]
    return "integrity violations (each scores as a failure at every t):\n" + _times(lines)


def _times(lines: Iterable[str]) -> str:
    """Lines once each, in order, with how often they came."""
    counts: dict[str, int] = defaultdict(int)
    for line in lines:
        counts[line] += 1
    return "\n".join(
        f"  {line}" + (f" (x {number})" if number > 1 else "") for line, number in counts.items()
    )


def _failures(graphs: list[GraphResult]) -> list[str]:
    """One paragraph for each distinct failure, with the graphs it befell."""
    groups: dict[tuple[str, str], list[GraphResult]] = defaultdict(list)
    for graph in graphs:
        if graph.status != "ok":
            groups[(graph.status, _what(graph))].append(graph)
    return [
        f"{status} {_where(members)}\n{_indent(what or _worst(members[0]))}"
        for (status, what), members in groups.items()
    ]


def _what(graph: GraphResult) -> str:
    """What failed, in words that are equal for equal failures; empty for wrong results, which all differ."""
    if graph.status == "mismatch" and graph.mismatches:
        return "\n".join(_mismatch(mismatch) for mismatch in graph.mismatches)
    if graph.status == "wrong_result" and graph.worst is not None and not graph.error:
        return ""
    return _cut(graph.error or "(no message)")


def _where(members: list[GraphResult]) -> str:
    names = ", ".join(f"{g.name} ({g.dtype})" for g in members[:3])
    return f"x {len(members)} graphs: {names}, ..." if len(members) > 3 else f"in {names}:"


def _mismatch(mismatch: Mismatch) -> str:
    far = f"{mismatch.matched_nodes} of {mismatch.pattern_nodes} pattern nodes matched"
    against = (
        f"graph node: {mismatch.graph_node}" if mismatch.graph_node else "the graph has no node of its kind"
    )
    return (
        f"pass {mismatch.pass_name} did not match: {far}, then {mismatch.reason}\n"
        f"  pattern node: {mismatch.pattern_node}\n  {against}"
    )


def _worst(graph: GraphResult) -> str:
    from_t = graph.passes_from_t
    passes = (
        "it passes at no t"
        if from_t is None
        else f"it passes from t = {from_t} on (full credit needs t <= -5)"
    )
    difference = "" if graph.max_abs_diff is None else f"largest difference {graph.max_abs_diff:.3g}; "
    if graph.worst is None:
        return difference + passes
    worst = graph.worst
    element = f"output {worst.output} at {worst.index}: expected {worst.expected:.6g}, got {worst.got:.6g}; "
    return element + difference + passes


def _idle_passes(graphs: list[GraphResult]) -> list[str]:
    """Passes that matched in no graph though others did."""
    applied = {name for graph in graphs for name in graph.applied}
    idle: dict[str, Mismatch] = {}
    for graph in graphs:
        if graph.status != "mismatch":
            for mismatch in graph.mismatches:
                if mismatch.pass_name not in applied:
                    idle.setdefault(mismatch.pass_name, mismatch)
    return [f"matched in no graph:\n{_indent(_mismatch(mismatch))}" for mismatch in idle.values()]


def _loose(graphs: list[GraphResult]) -> list[str]:
    """Correct graphs that pass only at a loose tolerance: where AS is lost without an error."""
    loose = [g for g in graphs if g.status == "ok" and g.passes_from_t is not None and g.passes_from_t > -5]
    if not loose:
        return []
    worst = max(loose, key=lambda g: g.passes_from_t or -10)
    return [f"less exact than t = -5 {_where(loose)}\n{_indent(f'{worst.name}: {_worst(worst)}')}"]


def _speedups(graphs: list[GraphResult]) -> list[str]:
    timed = [(g.speedup.e2e, g) for g in graphs if g.speedup is not None and g.status == "ok"]
    if not timed:
        return []
    timed.sort(key=lambda pair: pair[0])
    head, tail = timed, []
    if len(timed) > MAX_ROWS:
        head, tail = timed[: MAX_ROWS - 4], timed[-4:]
    rows = [_row(speedup, g) for speedup, g in head]
    if tail:
        rows.append(f"  ... {len(timed) - len(head) - len(tail)} more ...")
    return ["speedup over eager, slowest first:", *rows, *[_row(speedup, g) for speedup, g in tail]]


def _row(speedup: float, graph: GraphResult) -> str:
    times = f"{_us(graph.eager_ms)} -> {_us(graph.compiled_ms)} us"
    device = graph.speedup.device if graph.speedup else None
    on_device = "" if device is None else f", kernels alone {device:.2f}x"
    noisy = ", unstable timing" if graph.unstable else ""
    return f"  {speedup:.3f}x  {times}{on_device}{noisy}  {graph.name} ({graph.dtype})"


def _us(milliseconds: float | None) -> str:
    return "?" if milliseconds is None else f"{milliseconds * 1000:.1f}"


def _score(evaluation: Evaluation, parent_as: float | None, best_as: float | None) -> str:
    score = evaluation.as_score
    if score is None:
        return ""
    said = f"AS {score:.4f}"
    if evaluation.gmean_speedup is not None:
        said += f"; geometric mean speedup of the correct graphs {evaluation.gmean_speedup:.3f}x"
    if evaluation.fast_1 is not None:
        said += f"; {evaluation.fast_1:.0%} of the graphs correct and at least as fast as eager"
    for who, other in (("the parent's", parent_as), ("the best so far,", best_as)):
        if other is not None:
            said += f"; {score / other - 1:+.1%} against {who} {other:.4f}" if other > 0 else ""
    return said


def _cut(text: str) -> str:
    text = text.strip()
    half = MAX_ERROR // 2
    return text if len(text) <= MAX_ERROR else f"{text[:half]}\n... cut ...\n{text[-half:]}"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
