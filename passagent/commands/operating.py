"""`passagent stop`: ask the processes that work on a run to stop."""

from __future__ import annotations

import json

from passagent.search import attendance
from passagent.search.going_on import resume_command
from passagent.store import Store, runs


def stop(name: str, after_episodes: bool, runs_dir: str, as_json: bool) -> None:
    """Ask a live run to stop. Raises UsageError if no process works on it."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        working = attendance.ask_to_stop(store, run, after_episodes)
        if as_json:
            shown = [process._asdict() for process in working]
            wanted = runs.get_run(store, run.id).wanted
            print(json.dumps({"run": run.id, "wanted": wanted, "was": run.wanted, "processes": shown}))
            return
        finished = "model calls under way are finished and stored, evaluations only if they end in time"
        if after_episodes:
            finished = "the episodes under way are finished first"
        print(f"run {run.id}: asked to stop; {finished}; go on with {resume_command(store, run.id)}")
