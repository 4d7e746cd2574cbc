"""PassNet's figures about a collection, as a table and as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from passagent.data.collect.campaign import Collected
from passagent.data.collect.trials import KEPT_ABOVE, Summary
from passagent.view.text import clock, number, table, thousands


def data(summaries: list[Summary]) -> list[dict[str, Any]]:
    """The table as plain data: shares from 0 to 1, figures in full."""
    return [
        {
            field.name: getattr(one, field.name)
            for field in dataclasses.fields(one)
            if not field.name.startswith("_") and field.name != "floor"
        }
        | {
            "kept_share": one.kept_share(),
            "as_score": one.as_score,
            "median_steps": one.steps,
            "median_evaluations": one.evaluations,
            "first_share": one.first_share,
            "went_back_share": one.went_back_share(),
        }
        for one in summaries
    ]


def all_data(collected: Collected) -> dict[str, Any]:
    """What came of a collection as plain data: what `passagent collect --json` prints."""
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


def rows(summaries: list[Summary]) -> list[tuple[str, list[str]]]:
    """A figure's name, and its value for each model."""
    found = [
        ("runs", [str(one.runs) for one in summaries]),
        (f"kept at AS > {KEPT_ABOVE:g}", [_of(one.kept, one.kept_share()) for one in summaries]),
        ("with a correct pass", [_of(one.correct, _share(one.correct, one.runs)) for one in summaries]),
        ("AS, geometric mean", [number(one.as_score) for one in summaries]),
        ("median steps", [_plain(one.steps) for one in summaries]),
        ("median evaluations", [_plain(one.evaluations) for one in summaries]),
        ("AS reached by the first evaluation", [_percent(one.first_share) for one in summaries]),
        (
            "pass -> fail -> pass, of the correct",
            [_of(one.went_back, one.went_back_share()) for one in summaries],
        ),
        ("tokens", [thousands(one.tokens) for one in summaries]),
        ("cost", [f"${one.cost:.2f}" for one in summaries]),
    ]
    if any(one.unfinished for one in summaries):
        found.insert(1, ("not finished", [str(one.unfinished) for one in summaries]))
    return found


def text(summaries: list[Summary]) -> str:
    """The figures below each other, a column for each model: they fit in 80 columns for one or two."""
    header = ["", *(f">{one.model}" for one in summaries)]
    return table(header, [[name, *cells] for name, cells in rows(summaries)], indent="")


def status_line(summary: Summary, total: int, spent_tokens: int, cost: float, left_s: float | None) -> str:
    """Where a collection stands, in less than 80 characters for up to 9,999 trials."""
    left = "" if left_s is None else f", {clock(left_s)} left"
    return (
        f"{summary.runs}/{total} done, {summary.kept} kept, AS {number(summary.as_score, 2)}, "
        f"{thousands(spent_tokens)} tokens, ${cost:.2f}{left}"
    )


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def _of(count: int, share: float | None) -> str:
    return str(count) if share is None else f"{count} ({share:.1%})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
