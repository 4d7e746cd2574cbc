"""A benchmark's table for people, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from passagent.benchmark.held_out import Unseen
from passagent.benchmark.results import Row
from passagent.benchmark.summary import METRICS, Estimate, Summary
from passagent.report.text import number, table

HEADERS = {
    "fast_1": "fast_1 (%)",
    "sample_cr": "Samp. CR (%)",
    "subgraph_cr": "Sub. CR (%)",
    "gmean_speedup": "G-mean",
    "as_score": "AS",
}
_GRAPH_FIELDS = {
    "name",
    "dtype",
    "status",
    "speedup",
    "vs_reference",
    "passes_from_t",
    "eager_ms",
    "compiled_ms",
    "pace_ms",
    "unstable",
}


def text(summaries: Sequence[Summary]) -> str:
    """A line for each compiler, the 95% intervals in brackets."""
    header = ["compiler", "dispatch", *(f">{name}" for name in ("tasks", "subgraphs", *HEADERS.values()))]
    drop = ["dispatch", "subgraphs", "Sub. CR (%)", "fast_1 (%)", "Samp. CR (%)"]
    return table(header, [_cells(summary) for summary in summaries], indent="", drop=drop)


def unseen_text(both: Sequence[Unseen]) -> str:
    """A line for each author: AS on shapes that it saw, and on those that were held out."""
    header = ["compiler", ">tasks", ">held out", ">AS seen", ">AS unseen", ">unseen/seen"]
    rows = [
        [
            one.compiler,
            str(one.tasks),
            str(one.subgraphs),
            *(_figure("as_score", score) for score in (one.as_seen, one.as_unseen)),
            number(one.ratio, 3),
        ]
        for one in both
    ]
    return table(header, rows, indent="")


def markdown(summaries: Sequence[Summary]) -> str:
    """PassNet's Table 1 in Markdown, the 95% intervals in brackets."""
    header = ["compiler", "dispatch", "tasks", "subgraphs", *HEADERS.values()]
    lines = [header, ["---"] * 2 + ["---:"] * (len(header) - 2), *map(_cells, summaries)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(summary: Summary, metric: str) -> str:
    """A figure in the table's unit, its interval in brackets."""
    return _figure(metric, getattr(summary, metric))


def _cells(summary: Summary) -> list[str]:
    figures = [cell(summary, metric) for metric in METRICS]
    return [summary.compiler, summary.dispatch, _tasks(summary), str(summary.subgraphs), *figures]


def data(summaries: Sequence[Summary], rows: Sequence[Row]) -> dict[str, Any]:
    """The table and what it is made of, raw samples left out."""
    return {
        "compilers": [asdict(summary) for summary in summaries],
        "results": [
            {
                "task": row.task,
                "compiler": row.compiler,
                "run": row.run,
                "left_to_eager": row.left,
                "status": row.evaluation.status,
                "as_score": row.evaluation.as_score,
                "graphs": [
                    graph.model_dump(mode="json", include=_GRAPH_FIELDS) for graph in row.evaluation.graphs
                ],
            }
            for row in rows
            if row.evaluation is not None
        ],
    }


def _tasks(summary: Summary) -> str:
    return str(summary.tasks) if summary.tasks == summary.asked else f"{summary.tasks}/{summary.asked}"


def _figure(metric: str, estimate: Estimate) -> str:
    percent = metric in ("fast_1", "sample_cr", "subgraph_cr")

    def shown(value: float | None) -> str:
        return number(None if value is None else value * 100, 1) if percent else number(value, 3)

    ends = "" if estimate.low is None else f" [{shown(estimate.low)}-{shown(estimate.high)}]"
    return shown(estimate.value) + ends
