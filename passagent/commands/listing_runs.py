"""`passagent runs`: what the store holds."""

from __future__ import annotations

import json
from typing import Any

from passagent.report.run_summary import shown_state
from passagent.report.text import clock, number, table
from passagent.store import Store, confirmations, runs


def list_runs(runs_dir: str, as_json: bool) -> None:
    """Print all runs, the newest first."""
    with Store.open(runs_dir, create=False) as store:
        found: list[dict[str, Any]] = []
        for run in runs.list_runs(store):
            best = confirmations.winner(store, run.id)
            one = {
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
            found.append(one)
    if as_json:
        print(json.dumps({"runs": found}))
        return
    rows = [
        [
            *(one["run"], one["created_at"][:16].replace("T", " "), one["task"], one["model"], one["device"]),
            *(
                one["state"],
                f"{one['episodes']}/{'-' if one['iters'] is None else one['iters']}",
                number(one["best_as"]),
            ),
            clock(one["elapsed_s"]),
        ]
        for one in found
    ]
    header = ["run", "begun (UTC)", "task", "model", "device", "state", ">episodes", ">best AS", ">time"]
    print(table(header, rows, indent="", drop=["device", "begun (UTC)", "time", "model"]))
