"""`passagent runs`: what the store holds."""

from __future__ import annotations

import json

from passagent.report.run_list import run_row
from passagent.report.text import clock, number, table
from passagent.store import Store, runs


def list_runs(runs_dir: str, as_json: bool) -> None:
    """Print all runs, the newest first."""
    with Store.open(runs_dir, create=False) as store:
        found = [run_row(store, run) for run in runs.list_runs(store)]
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
                f"{number(one['seed'])} ({one['seed_from'].split()[0]})" if one["seed_from"] else "-",
            ),
            clock(one["elapsed_s"]),
        ]
        for one in found
    ]
    header = ["run", "begun (UTC)", "task", "model", "device", "state", ">episodes", ">best AS", "seed"]
    header.append(">time")
    print(table(header, rows, indent="", drop=["device", "begun (UTC)", "time", "model", "seed"]))
