"""PassNet's figures about a collection, as a table and as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from passagent.data.collect.campaign import Collected
from passagent.data.collect.trials import KEPT_ABOVE, Summary
from passagent.view.text import TableData, number, thousands


def data(summaries: list[Summary]) -> list[dict[str, Any]]:
    """The table as plain data: shares from 0 to 1, figures in full."""
    return [
        {
            field.name: getattr(summary, field.name)
            for field in dataclasses.fields(summary)
            if not field.name.startswith("_") and field.name != "floor"
        }
        | {
            "kept_share": summary.kept_share(),
            "as_score": summary.as_score,
            "median_steps": summary.steps,
            "median_evaluations": summary.evaluations,
            "first_share": summary.first_share,
            "went_back_share": summary.went_back_share(),
        }
        for summary in summaries
    ]


def all_data(collected: Collected) -> dict[str, Any]:
    """Return a collection as plain data, as `passagent collect --json` prints it."""
    return {
        "runs_dir": str(collected.runs_dir),
        "table": data(collected.summaries),
        "trials": collected.trials,
        "elapsed_s": collected.elapsed_s,
        "stopped": collected.stopped,
        "unfinished": collected.unfinished,
        "failed": collected.failed,
        "broken": collected.broken,
    }


def figures_table(summaries: list[Summary]) -> TableData:
    """Return the figures below each other, a column for each model: 80 columns hold one or two."""
    figures: list[tuple[str, Callable[[Summary], str]]] = [
        ("runs", lambda s: str(s.runs)),
        ("not finished", lambda s: str(s.unfinished)),
        (f"kept at AS > {KEPT_ABOVE:g}", lambda s: _with_share(s.kept, s.kept_share())),
        ("with a correct pass", lambda s: _with_share(s.correct, s.correct / s.runs if s.runs else None)),
        ("AS, geometric mean", lambda s: number(s.as_score)),
        ("median steps", lambda s: "-" if s.steps is None else f"{s.steps:g}"),
        ("median evaluations", lambda s: "-" if s.evaluations is None else f"{s.evaluations:g}"),
        (
            "AS reached by the first evaluation",
            lambda s: "-" if s.first_share is None else f"{s.first_share:.1%}",
        ),
        ("pass -> fail -> pass, of the correct", lambda s: _with_share(s.went_back, s.went_back_share())),
        ("tokens", lambda s: thousands(s.tokens)),
        ("cost", lambda s: f"${s.cost:.2f}"),
    ]
    if not any(summary.unfinished for summary in summaries):
        del figures[1]
    header = ["figure", *(f">{summary.model}" for summary in summaries)]
    return TableData(header, [[name, *map(cell, summaries)] for name, cell in figures], indent="")


def _with_share(count: int, share: float | None) -> str:
    return str(count) if share is None else f"{count} ({share:.1%})"
