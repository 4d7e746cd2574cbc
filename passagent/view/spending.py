"""What a run's model calls came to: tokens, money, time, tries; by model, island and role."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from passagent.store import Store, ledger
from passagent.store.ledger import Spent
from passagent.view.text import number, table, thousands


def spending_data(store: Store, run_id: str) -> dict[str, Any]:
    """The ledger's sums as plain data; `cost_usd` is None where a price is not known."""
    groups = {by: ledger.spent(store, run_id, by) for by in ("model", "island", "role")}
    models = groups["model"]
    return {
        "cost_usd": None if any(group.unpriced for group in models) else sum(group.cost for group in models),
        "requests": sum(group.requests for group in models),
        "lost": sum(group.lost for group in models),
        **{f"by_{by}": [asdict(group) for group in found] for by, found in groups.items()},
    }


def spending_text(store: Store, run_id: str) -> str:
    """A line a model, and what else a person should know of the money; empty if no model was asked."""
    found = ledger.spent(store, run_id)
    header, rows = spending_cells(found)
    if not rows:
        return ""
    lines = [table(header, rows, drop=["reasoning", "cached", "s/reply", "again"])]
    return "\n".join([*lines, *spending_notes(found)])


def spending_cells(found: list[Spent]) -> tuple[list[str], list[list[str]]]:
    """A header (right-aligned columns begin with `>`), and a row for each model; none if none was asked."""
    header = ["model", ">replies", ">again", ">in", ">cached", ">out", ">reasoning", ">s/reply", ">USD"]
    if not any(group.input_tokens + group.output_tokens + group.broken + group.failed for group in found):
        return header, []
    return header, [_row(group) for group in found]


def spending_notes(found: list[Spent]) -> list[str]:
    """What else a person should know of the money."""
    lines = []
    lost = sum(group.lost for group in found)
    if lost:
        lines.append(f"{lost} calls were under way when a process died: what they cost is not known")
    if any(group.estimated for group in found):
        lines.append("a server reports no token usage: its tokens are estimated")
    return lines


def _row(group: Spent) -> list[str]:
    again = group.broken + group.failed
    return [
        group.group,
        str(group.replies),
        str(again),
        thousands(group.input_tokens),
        thousands(group.cached_tokens),
        thousands(group.output_tokens),
        thousands(group.reasoning_tokens),
        number(group.latency_s, 1),
        "unknown" if group.unpriced else f"{group.cost:.4f}",
    ]
