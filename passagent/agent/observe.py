"""Observations tell the model of an evaluation: short, exact, and ending in two lines.

status: wrong_result  (`refused (not run)` where its host code gave no plan, and no evaluation was used)
AS: 0.4821            (`AS: none` where nothing was scored)

In a conversation the line `left: ...` follows (episode.py). Programs read `verdict`, which travels as the
message's data.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from textwrap import indent
from typing import Any

from passagent.agent.tokens import CHARACTERS, cut_middle
from passagent.evaluator.result import Evaluation, GraphResult, Mismatch, Speedup, Status, Violation
from passagent.experience.diagnosis import excerpts, mismatch_text

MAX_LEFT = 30
"""Operators named that passes left."""
MAX_ERROR, MIN_ERROR = 4000, 900
"""Characters of all errors together, and of one of many."""
MAX_ROWS = 14
"""Rows of the speedup table (the slowest are shown of more) and of wrong results."""
MAX_FAILURES, MAX_VIOLATIONS = 12, 30
"""Distinct ones shown; equal ones once, with their number."""

_indent = partial(indent, prefix="  ")

STAGES: dict[Status, str] = {
    "refused": "integrity rules: refused",
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
    if evaluation.unrecorded:
        stage = f"{STAGES[evaluation.status]}, before anything was run; this used no evaluation"
    if evaluation.status == "ok" and evaluation.timing != "wall":
        stage = "correctness (matching, results and integrity are judged, time is not)"
    parts = [f"stage reached: {stage}", _counts(graphs)]
    if evaluation.error and evaluation.error not in [graph.error for graph in graphs]:
        parts.append(_quoted(evaluation.error, sources, MAX_ERROR))
    if evaluation.violations:
        parts.append("integrity violations (each scores as a failure at every t):")
        parts.append(violations_text(evaluation.violations, sources))
    parts += failures(graphs, sources)
    parts += _idle_passes(graphs)
    parts += _loose(graphs)
    parts += _speedups(graphs)
    parts.append(f"diagnosis: {diagnosis}" if diagnosis and evaluation.status == "ok" else "")
    parts += [_score(evaluation, parent_as, best_as), evaluation.stopped_early or ""]
    score = "none" if evaluation.as_score is None else f"{evaluation.as_score:.4f}"
    status = evaluation.status + (" (not run)" if evaluation.unrecorded else "")
    return "\n".join(part for part in parts if part) + f"\n\nstatus: {status}\nAS: {score}"


def verdict(evaluation: Evaluation) -> dict[str, Any]:
    """Return what programs read of an evaluation, as it stands in the data of the message that tells it.

    `is_loose`: a correct graph passes only at a looser tolerance than t = -5. `is_run`: the candidate gave
    plans and was run, which uses an evaluation.
    """
    return {
        "status": evaluation.status,
        "as_score": evaluation.as_score,
        "gmean_speedup": evaluation.gmean_speedup,
        "is_loose": bool(_loose_graphs(evaluation.graphs)),
        "is_run": not evaluation.unrecorded,
    }


def _counts(graphs: list[GraphResult]) -> str:
    """`graphs: 3 ok; rewritten: 2 of 3, operators 9 -> 3 (left: dropout)`; its passes are not left over."""
    counts = Counter(graph.status for graph in graphs)
    text = f"graphs: {', '.join(f'{number} {status}' for status, number in sorted(counts.items()))}"
    rewritten = [graph for graph in graphs if graph.matches]
    if not rewritten:
        return text if graphs else ""
    spans: set[tuple[int, int, tuple[str, ...]]] = set()
    for graph in rewritten:
        names = tuple(name for name in graph.left if name not in {*graph.applied, "getitem"})
        spans.add((graph.nodes_before, graph.nodes_after, names))
    lines = []
    for before, after, names in sorted(spans)[:4]:
        more = ", ..." if len(names) > MAX_LEFT else ""
        named = f" (left: {', '.join(names[:MAX_LEFT])}{more})" if names else ""
        lines.append(f"{before} -> {after}{named}")
    operators = ", ".join(lines + ["..."] * (len(spans) > 4))
    return f"{text}; rewritten: {len(rewritten)} of {len(graphs)}, operators {operators}"


def why_unrecorded(evaluation: Evaluation, sources: Mapping[str, str]) -> str:
    """Why a candidate gives no plan."""
    if evaluation.violations:
        return f"integrity rules broken:\n{violations_text(evaluation.violations, sources)}"
    return "\n".join([f"it fails, {STAGES[evaluation.status]}:", *failures(evaluation.graphs, sources)])


def violations_text(violations: list[Violation], sources: Mapping[str, str]) -> str:
    """A line for each rule that is broken in one way, with all places; then the `sources`' lines meant."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for violation in violations:
        places[(violation.rule, violation.message)].append(violation.place)
    lines = []
    for (rule, message), where in places.items():
        others = [place for place in dict.fromkeys(where) if place != where[0]]
        also = f": also {', '.join(others)}" if others else ""
        times = f" (x {len(where)}{also})" if len(where) > 1 else ""
        lines.append(f"[{rule}] {where[0]}: {message}{times}")
    more = len(lines) - MAX_VIOLATIONS
    first_lines = lines[:MAX_VIOLATIONS] + ([f"... {more} more"] if more > 0 else [])
    quoted = excerpts("\n".join(lines), sources)
    return _indent("\n".join([*first_lines, *([quoted] if quoted else [])]))


def failures(graphs: list[GraphResult], sources: Mapping[str, str]) -> list[str]:
    """Write one paragraph for each distinct failure, with the graphs it befell."""
    groups: dict[tuple[str, str], list[GraphResult]] = defaultdict(list)
    for graph in graphs:
        if graph.status != "ok":
            groups[(graph.status, _what(graph))].append(graph)
    limit = max(MAX_ERROR // max(len(groups), 1), MIN_ERROR)
    paragraphs = [
        f"{status} {_where(members)}\n"
        + _indent("\n".join(part for part in (_quoted(what, sources, limit), _worst_of(members)) if part))
        for (status, what), members in groups.items()
    ]
    more = len(paragraphs) - MAX_FAILURES
    return paragraphs[:MAX_FAILURES] + ([f"... {more} more kinds of failure ..."] if more > 0 else [])


def _worst_of(members: list[GraphResult]) -> str:
    """Wrong results, a line for each graph of which an element is kept."""
    wrong = [graph for graph in members if graph.status == "wrong_result" and graph.worst is not None]
    if len(members) == 1:
        return "".join(map(_worst, wrong))
    rows = [f"{graph.name} ({graph.dtype}): {_worst(graph)}" for graph in wrong[:MAX_ROWS]]
    more = len(wrong) - len(rows)
    return "\n".join(rows) + (f"\n... {more} more graphs" if more else "")


def _what(graph: GraphResult) -> str:
    """Name what failed, equally for equal failures; empty for wrong results, which all differ."""
    if graph.status in ("mismatch", "refused") and graph.mismatches and not graph.matches:
        lines = [mismatch_text(mismatch, {}) for mismatch in graph.mismatches]
        return "\n".join([*lines, *([graph.error] if graph.error else [])])
    if graph.status == "wrong_result" and graph.worst is not None and not graph.error:
        return ""
    return graph.error or "(no message)"


def _quoted(error: str, sources: Mapping[str, str], limit: int) -> str:
    """An error's message, cut to so many characters, and the candidate's lines that it means; "" as it is."""
    quoted = excerpts(error, sources)
    return cut_middle(error.strip(), limit // CHARACTERS) + (f"\n{quoted}" if quoted else "")


def _where(members: list[GraphResult]) -> str:
    names = ", ".join(f"{g.name} ({g.dtype})" for g in members[:3])
    return f"x {len(members)} graphs: {names}, ..." if len(members) > 3 else f"in {names}:"


def _worst(graph: GraphResult) -> str:
    difference = "" if graph.max_abs_diff is None else f"; largest difference {graph.max_abs_diff:.3g}"
    credit = "" if graph.passes_from_t is None else " (full credit needs t <= -5)"
    error, eager = graph.float64_error, graph.eager_float64_error
    if error is not None and eager is not None:
        difference += f"; relative error against float64 {error:.2g}, eager's own {eager:.2g}"
    return f"{graph.worst_element}{credit}{difference}"


def _idle_passes(graphs: list[GraphResult]) -> list[str]:
    """Passes that matched in no graph though others did."""
    applied = {name for graph in graphs for name in graph.applied}
    idle: dict[str, Mismatch] = {}
    for graph in graphs:
        if graph.matches:
            for mismatch in graph.mismatches:
                if mismatch.pass_name not in applied:
                    idle.setdefault(mismatch.pass_name, mismatch)
    return [f"matched in no graph:\n{_indent(mismatch_text(mismatch, {}))}" for mismatch in idle.values()]


def _loose_graphs(graphs: list[GraphResult]) -> list[GraphResult]:
    """Return correct graphs that pass only at a loose tolerance: where AS is lost without an error."""
    return [g for g in graphs if g.status == "ok" and g.passes_from_t is not None and g.passes_from_t > -5]


def _loose(graphs: list[GraphResult]) -> list[str]:
    loose = _loose_graphs(graphs)
    if not loose:
        return []
    worst = max(loose, key=lambda g: g.passes_from_t or -10)
    return [f"less exact than t = -5 {_where(loose)}\n{_indent(f'{worst.name}: {_worst(worst)}')}"]


def _speedups(graphs: list[GraphResult]) -> list[str]:
    timed = [(g.speedup, g) for g in graphs if g.speedup is not None and g.status == "ok"]
    if not timed:
        return []
    timed.sort(key=lambda pair: pair[0].e2e)
    rows = [_row(speedup, graph) for speedup, graph in timed[:MAX_ROWS]]
    if len(timed) > MAX_ROWS:
        rows.append(f"  ... {len(timed) - MAX_ROWS} more ...")
    has_interval = any(speedup.low is not None for speedup, _ in timed)
    return [f"speedup over eager{' [95% interval]' if has_interval else ''}, slowest first:", *rows]


def _row(speedup: Speedup, graph: GraphResult) -> str:
    interval = (
        "" if speedup.low is None or speedup.high is None else f" [{speedup.low:.3f}, {speedup.high:.3f}]"
    )
    times = f"{_us(graph.eager_ms)} -> {_us(graph.compiled_ms)} us"
    noisy = ", unstable timing" if graph.unstable else ""
    return f"  {speedup.e2e:.3f}x{interval}  {times}{noisy}  {graph.name} ({graph.dtype})"


def _us(milliseconds: float | None) -> str:
    return "?" if milliseconds is None else f"{milliseconds * 1000:.1f}"


def _score(evaluation: Evaluation, parent_as: float | None, best_as: float | None) -> str:
    score = evaluation.as_score
    if score is None:
        return ""
    text = f"AS {score:.4f}"
    if evaluation.as_low is not None and evaluation.as_high is not None:
        text += f" [{evaluation.as_low:.4f}, {evaluation.as_high:.4f}]"
    if evaluation.gmean_speedup is not None:
        text += f"; geometric mean speedup of the correct graphs {evaluation.gmean_speedup:.3f}x"
    if evaluation.fast_1 is not None:
        text += f"; {evaluation.fast_1:.0%} of the graphs correct and at least as fast as eager"
    for who, other in (("the parent's", parent_as), ("the best so far,", best_as)):
        if evaluation.status == "ok" and other:
            text += f"; {score / other - 1:+.1%} against {who} {other:.4f}"
    return text
