"""PassNet's figures about a collection, as a table and as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from passagent.data.collect.campaign import Collection
from passagent.data.collect.trials import KEPT_ABOVE, Summary
from passagent.view.text import TableData, number, thousands


def all_data(collected: Collection) -> dict[str, Any]:
    """Return the result of a collection as plain data, as `passagent collect --json` prints it."""
    return {
        "runs_dir": str(collected.store.runs_dir),
        "table": [dataclasses.asdict(summary) for summary in collected.summaries],
        "trials": len(collected.trials),
        "elapsed_s": collected.elapsed_s,
        "stopped": collected.stop_reason,
        "unfinished": collected.unfinished,
        "failed": collected.failed,
        "broken": collected.broken,
    }


def figures_table(summaries: list[Summary]) -> TableData:
    """Return the figures below each other, a column for each model: 80 columns hold one or two."""
    rows = [
        ("runs", [str(summary.runs) for summary in summaries]),
        (f"kept at AS > {KEPT_ABOVE:g}", [_of(summary.kept, summary.runs) for summary in summaries]),
        ("with a correct pass", [_of(summary.correct, summary.runs) for summary in summaries]),
        ("AS, geometric mean", [number(summary.as_score) for summary in summaries]),
        ("median steps", [_plain(summary.median_steps) for summary in summaries]),
        ("median evaluations", [_plain(summary.median_evaluations) for summary in summaries]),
        ("AS reached by the first evaluation", [_percent(summary.first_share) for summary in summaries]),
        (
            "pass -> fail -> pass, of the correct",
            [_of(summary.went_back, summary.correct) for summary in summaries],
        ),
        ("tokens", [thousands(summary.tokens) for summary in summaries]),
        ("cost", [f"${summary.cost:.2f}" for summary in summaries]),
    ]
    if any(summary.unfinished for summary in summaries):
        rows.insert(1, ("not finished", [str(summary.unfinished) for summary in summaries]))
    header = ["figure", *(f">{summary.model}" for summary in summaries)]
    return TableData(header, [[name, *cells] for name, cells in rows], indent="")


def _of(count: int, total: int) -> str:
    return f"{count} ({count / total:.1%})" if total else str(count)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
