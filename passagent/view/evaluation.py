"""An evaluation for people: the verdict, a line for each graph, what is wrong and what to do about it."""

from __future__ import annotations

from passagent.agent.observe import failures, violations_text
from passagent.evaluator.result import Evaluation, Speedup
from passagent.view.text import TableData, by_column, interval, number

GRAPH_FIELDS = {
    "name", "dtype", "status", "speedup", "vs_reference", "passes_from_t", "eager_ms", "compiled_ms",
    "unstable", "max_abs_diff", "matches",
}  # fmt: skip
"""The fields that `--json` has for each subgraph of a run's best node and of a benchmark."""


def evaluation_text(evaluation: Evaluation) -> str:
    """The whole evaluation, several lines."""
    score = interval(evaluation.as_score, evaluation.as_low, evaluation.as_high, 4)
    parts = [
        f"{evaluation.task} on {evaluation.device} ({evaluation.dispatch}): {evaluation.status}, AS {score}",
        str(graph_table(evaluation)),
    ]
    if evaluation.es:
        scores_text = "  ".join(f"{t}: {value:.3f}" for t, value in evaluation.es.items() if int(t) >= -6)
        parts.append(f"ES(t)  {scores_text}")
    if evaluation.gmean_speedup is not None:
        parts.append(
            f"speedup over the correct graphs (geometric mean): {evaluation.gmean_speedup:.3f}; "
            f"correct and no slower than eager: {evaluation.fast_1 or 0:.0%} of the graphs"
        )
    if evaluation.gmean_vs_reference is not None:
        parts.append(
            f"speedup over {evaluation.reference} (geometric mean): {evaluation.gmean_vs_reference:.3f}"
        )
    parts.append(evaluation.stopped_early or "")
    if evaluation.edited:
        parts.append(f"edited, not as recorded: {', '.join(evaluation.edited)}")
    parts += [violations_text(evaluation.violations, {})] if evaluation.violations else []
    parts += failures([graph for graph in evaluation.graphs if graph.status != "refused"], {})
    if evaluation.error and not any(evaluation.error in part for part in parts):
        parts.append(evaluation.error)
    plans = f", plans {evaluation.plans[:12]}" if evaluation.plans else ""
    parts.append(f"evaluator {evaluation.evaluator_version}, {evaluation.seconds:.1f} s{plans}")
    return "\n".join(part for part in parts if part)


def graph_table(evaluation: Evaluation) -> TableData:
    """Return a row for each graph; the notes say what the figures are."""
    reference = {f">vs {evaluation.reference}": lambda graph: _shown(graph.vs_reference)}
    columns = {
        "graph": lambda graph: graph.name,
        "dtype": lambda graph: graph.dtype,
        "status": lambda graph: graph.status + (" (unstable)" if graph.unstable else ""),
        ">speedup [95%]": lambda graph: _shown(graph.speedup),
        **(reference if any(graph.vs_reference for graph in evaluation.graphs) else {}),
        ">eager ms": lambda graph: number(graph.eager_ms, 4),
        ">compiled ms": lambda graph: number(graph.compiled_ms, 4),
        ">max diff": lambda graph: "-" if graph.max_abs_diff is None else f"{graph.max_abs_diff:.2g}",
        ">matches": lambda graph: str(graph.matches),
    }
    notes = []
    if any(graph.speedup for graph in evaluation.graphs) and "estimator" in evaluation.protocol:
        notes.append(evaluation.protocol["estimator"])
    if (rounds := evaluation.protocol.get("rounds", 1)) > 1:
        notes.append(f"AS, speedups and times: geometric means over {rounds} rounds beside other finalists")
    drop = ["matches", "max diff", "compiled ms", "eager ms", "dtype"]
    return TableData(*by_column(evaluation.graphs, columns), drop, notes=notes)


def _shown(speedup: Speedup | None) -> str:
    return interval(speedup.e2e, speedup.low, speedup.high) if speedup else "-"
