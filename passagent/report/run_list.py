"""The runs of a store, a row each: as plain data, for `passagent runs` and the page."""

from __future__ import annotations

from typing import Any

from passagent.report.run_summary import shown_state
from passagent.search.planting import author_of
from passagent.store import Store, bests, confirmations, runs
from passagent.store.runs import SEEDS, Run


def run_row(store: Store, run: Run) -> dict[str, Any]:
    """A run in a line: the best that its model made, and what it began with."""
    best = confirmations.winner(store, run.id, own=True)
    seed = next(iter(bests.best_of_island(store, run.id, SEEDS, 1)), None)
    return {
        "run": run.id,
        "task": run.task,
        "model": run.model,
        "device": run.device,
        "state": shown_state(store, run),
        "episodes": sum(island.episodes for island in runs.islands(store, run.id)),
        "iters": run.limit,
        "best_as": confirmations.score_of(store, best) if best else None,
        "seed": None if seed is None else confirmations.score_of(store, seed),
        "seed_from": None if seed is None else author_of(store, run, seed),
        "created_at": run.created_at,
        "elapsed_s": round(run.elapsed_s, 3),
    }
