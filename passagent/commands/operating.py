"""`passagent pause`, `drain` and `stop`: one wish or another, told to the processes that work on a run."""

from __future__ import annotations

import json
from typing import Literal

from passagent.errors import UsageError
from passagent.report.run_summary import shown_state
from passagent.search import attendance
from passagent.search.going_on import resume_command
from passagent.store import Store, runs

_TOLD = {
    "pause": "nothing new is begun, what is under way is finished; go on with",
    "drain": "the episodes under way are finished, then it stops; go on with",
    "stop": "model calls under way are finished and stored, evaluations only if they end in time; go on with",
}


def ask(name: str, what: Literal["pause", "drain", "stop"], runs_dir: str, as_json: bool) -> None:
    """Ask the processes that work on a run to pause, drain or stop. Raises UsageError if there are none."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        working = attendance.processes(store, run)
        if not working:
            raise UsageError(
                f"run {run.id} is {shown_state(store, run)}: no process works on it; nothing to {what}"
            )
        runs.want(store, run.id, what)
        if as_json:
            shown = [process._asdict() for process in working]
            print(json.dumps({"run": run.id, "wanted": what, "was": run.wanted, "processes": shown}))
        else:
            print(f"run {run.id}: asked to {what}; {_TOLD[what]} {resume_command(store, run.id)}")
