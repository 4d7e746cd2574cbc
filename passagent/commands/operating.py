"""`passagent status`, `pause`, `drain` and `stop`: a run that another process works on, from any terminal."""

from __future__ import annotations

import json
from typing import Literal

from passagent.errors import UsageError
from passagent.report.status import status_data, status_text
from passagent.report.summary import shown_state
from passagent.search.going_on import resume_command
from passagent.store import Store, looking, runs
from passagent.store.runs import Run

_TOLD = {
    "pause": "nothing new is begun, what is under way is finished; go on with",
    "drain": "the episodes under way are finished, then it stops; go on with",
    "stop": "model calls under way are finished and stored, evaluations only if they end in time; go on with",
}


def status(name: str | None, runs_dir: str, as_json: bool) -> None:
    """Print how a run is doing; without a name all that are worked on, or the newest. Raises UsageError."""
    with Store.open(runs_dir, create=False) as store:
        found = [runs.find_run(store, name)] if name is not None else _current(store)
        data = [status_data(store, run) for run in found]
        if as_json:
            print(json.dumps(data[0] if name is not None else {"runs": data}))
        else:
            print("\n\n".join(status_text(store, of_run) for of_run in data))


def _current(store: Store) -> list[Run]:
    live = [run for run in runs.list_runs(store) if looking.processes(store, run)]
    return live or [runs.find_run(store, "last")]


def ask(name: str, what: Literal["pause", "drain", "stop"], runs_dir: str, as_json: bool) -> None:
    """Ask the processes that work on a run to pause, drain or stop. Raises UsageError if there are none."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        working = looking.processes(store, run)
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
