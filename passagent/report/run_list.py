"""The runs of a store, a row each: as plain data, for `passagent runs` and the page."""

from __future__ import annotations

from typing import Any

from passagent.report.run_summary import shown_state
from passagent.store import Store, confirmations, runs
from passagent.store.runs import Run


def run_row(store: Store, run: Run) -> dict[str, Any]:
    """A run in a line."""
    best = confirmations.winner(store, run.id)
    return {
        "run": run.id,
        "task": run.task,
        "model": run.model,
        "device": run.device,
        "state": shown_state(store, run),
        "episodes": sum(island.episodes for island in runs.islands(store, run.id)),
        "iters": run.limit,
        "best_as": confirmations.score_of(store, best) if best else None,
        "created_at": run.created_at,
        "elapsed_s": round(run.elapsed_s, 3),
    }
