"""What the model is told of an evaluation: short, exact, and ending in two lines that a program can read.

status: wrong_result
AS: 0.4821            (`AS: none` where nothing was scored)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from passagent.agent.excerpt import excerpts
from passagent.agent.validator import opinion_line
from passagent.evaluator.result import Evaluation, GraphResult, Mismatch, Status

MAX_ERROR = 1800
MAX_ROWS = 14
"""Rows of the speedup table (the slowest and the fastest are shown of more) and of wrong results."""
MAX_FAILURES, MAX_VIOLATIONS = 6, 10

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


def observation(
    evaluation: Evaluation,
    parent_as: float | None = None,
    best_as: float | None = None,
    files: Mapping[str, str] | None = None,
    diagnosis: str = "",
) -> str:
    """The evaluation in words.

    A correct candidate is compared with `parent_as` and `best_as`, the AS of a correct parent and the run's
    best, where known. Of `files`, the candidate's, the lines that an error means are quoted; `diagnosis` says
    what limits a correct candidate.
    """
    graphs, sources = evaluation.graphs, files or {}
    stage = STAGES[evaluation.status]
    if evaluation.status == "ok" and evaluation.timing != "wall":
        stage = "correctness (Triton's interpreter: matching, results and integrity are judged, time is not)"
    parts = [f"stage reached: {stage}", _counts(graphs)]
    if evaluation.error and evaluation.error not in [graph.error for graph in graphs]:
        parts.append(_quoted(evaluation.error, sources))
    parts += [_violation_lines(evaluation, sources)] if evaluation.violations else []
    parts += _failures(graphs, sources)
    parts += _idle_passes(graphs)
    parts += _loose(graphs)
    parts += _speedups(graphs)
    parts.append(f"diagnosis: {diagnosis}" if diagnosis and evaluation.status == "ok" else "")
    if evaluation.validator and evaluation.status == "ok":
        parts.append(opinion_line(evaluation.validator))
    parts += [_score(evaluation, parent_as, best_as), evaluation.stopped_early or ""]
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


def _violation_lines(evaluation: Evaluation, sources: Mapping[str, str]) -> str:
    lines = [f"[{v.rule}] {v.file}:{v.line}: {v.message}" for v in evaluation.violations]
    quoted = excerpts("\n".join(lines), sources)
    said = "integrity violations (each scores as a failure at every t):\n" + _times(lines[:MAX_VIOLATIONS])
    more = len(lines) - MAX_VIOLATIONS
    said += f"\n  ... {more} more" if more > 0 else ""
    return said + (f"\n{_indent(quoted)}" if quoted else "")


def _times(lines: Iterable[str]) -> str:
    """Lines once each, in order, with how often they came."""
    counts: dict[str, int] = defaultdict(int)
    for line in lines:
        counts[line] += 1
    return "\n".join(
        f"  {line}" + (f" (x {number})" if number > 1 else "") for line, number in counts.items()
    )


def _failures(graphs: list[GraphResult], sources: Mapping[str, str]) -> list[str]:
    """One paragraph for each distinct failure, with the graphs it befell."""
    groups: dict[tuple[str, str], list[GraphResult]] = defaultdict(list)
    for graph in graphs:
        if graph.status != "ok":
            groups[(graph.status, _what(graph, sources))].append(graph)
    shown = [
        f"{status} {_where(members)}\n{_indent(what or _worst_of(members))}"
        for (status, what), members in groups.items()
    ]
    more = len(shown) - MAX_FAILURES
    return shown[:MAX_FAILURES] + ([f"... {more} more kinds of failure ..."] if more > 0 else [])


def _worst_of(members: list[GraphResult]) -> str:
    """Wrong results, a line for each graph."""
    if len(members) == 1:
        return _worst(members[0])
    rows = [f"{graph.name} ({graph.dtype}): {_worst(graph)}" for graph in members[:MAX_ROWS]]
    more = len(members) - len(rows)
    return "\n".join(rows) + (f"\n... {more} more graphs" if more else "")


def _what(graph: GraphResult, sources: Mapping[str, str]) -> str:
    """What failed, in words that are equal for equal failures; empty for wrong results, which all differ."""
    if graph.status == "mismatch" and graph.mismatches:
        return "\n".join(_mismatch(mismatch) for mismatch in graph.mismatches)
    if graph.status == "wrong_result" and graph.worst is not None and not graph.error:
        return ""
    return _quoted(graph.error or "(no message)", sources)


def _quoted(error: str, sources: Mapping[str, str]) -> str:
    """An error's message and the lines of the candidate that it means."""
    quoted = excerpts(error, sources)
    return _cut(error) + (f"\n{quoted}" if quoted else "")


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
    element = f"{worst.place} at {worst.index}: expected {worst.expected:.6g}, got {worst.got:.6g}; "
    return element + difference + passes + _against_float64(graph)


def _against_float64(graph: GraphResult) -> str:
    own, eager = graph.float64_error, graph.eager_float64_error
    if own is None or eager is None:
        return ""
    return f"; relative error against float64 {own:.2g}, eager's own {eager:.2g}"


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
    has_interval = any(g.speedup is not None and g.speedup.low is not None for _, g in timed)
    title = f"speedup over eager{' [95% interval]' if has_interval else ''}, slowest first:"
    return [title, *rows, *[_row(speedup, g) for speedup, g in tail]]


def _row(speedup: float, graph: GraphResult) -> str:
    times = f"{_us(graph.eager_ms)} -> {_us(graph.compiled_ms)} us"
    device = graph.speedup.device if graph.speedup else None
    on_device = "" if device is None else f", kernels alone {device:.2f}x"
    noisy = ", unstable timing" if graph.unstable else ""
    paced = f", stated for eager at {_us(graph.pace_ms)} us" if graph.pace_ms else ""
    low, high = (graph.speedup.low, graph.speedup.high) if graph.speedup else (None, None)
    interval = f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else ""
    return f"  {speedup:.3f}x{interval}  {times}{on_device}{noisy}{paced}  {graph.name} ({graph.dtype})"


def _us(milliseconds: float | None) -> str:
    return "?" if milliseconds is None else f"{milliseconds * 1000:.1f}"


def _score(evaluation: Evaluation, parent_as: float | None, best_as: float | None) -> str:
    score = evaluation.as_score
    if score is None:
        return ""
    said = f"AS {score:.4f}"
    if evaluation.as_low is not None and evaluation.as_high is not None:
        said += f" [{evaluation.as_low:.4f}, {evaluation.as_high:.4f}]"
    if evaluation.gmean_speedup is not None:
        said += f"; geometric mean speedup of the correct graphs {evaluation.gmean_speedup:.3f}x"
    if evaluation.fast_1 is not None:
        said += f"; {evaluation.fast_1:.0%} of the graphs correct and at least as fast as eager"
    for who, other in (("the parent's", parent_as), ("the best so far,", best_as)):
        if evaluation.status == "ok" and other:
            said += f"; {score / other - 1:+.1%} against {who} {other:.4f}"
    return said


def _cut(text: str) -> str:
    text = text.strip()
    half = MAX_ERROR // 2
    return text if len(text) <= MAX_ERROR else f"{text[:half]}\n... cut ...\n{text[-half:]}"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
