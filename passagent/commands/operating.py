"""`passagent pause`, `drain`, `stop`: wishes, told to the processes that work on a run; `note`: on a run."""

from __future__ import annotations

import json

from passagent.search import wishes
from passagent.search.going_on import resume_command
from passagent.search.wishes import Wish
from passagent.store import Store, run_notes, runs

_TOLD = {
    "pause": "nothing new is begun, what is under way is finished; go on with",
    "drain": "the episodes under way are finished, then it stops; go on with",
    "stop": "model calls under way are finished and stored, evaluations only if they end in time; go on with",
}


def ask(name: str, what: Wish, runs_dir: str, as_json: bool) -> None:
    """Ask the processes that work on a run to pause, drain or stop. Raises UsageError if there are none."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        working = wishes.ask(store, run, what)
        if as_json:
            shown = [process._asdict() for process in working]
            print(json.dumps({"run": run.id, "wanted": what, "was": run.wanted, "processes": shown}))
        else:
            print(f"run {run.id}: asked to {what}; {_TOLD[what]} {resume_command(store, run.id)}")


def note(name: str, text: str, runs_dir: str, as_json: bool) -> None:
    """Keep a person's note on a run. Raises UsageError for an empty one."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        run_notes.add_note(store, run.id, text)
        count = len(run_notes.notes_of(store, run.id))
    print(json.dumps({"run": run.id, "notes": count}) if as_json else f"run {run.id}: noted")
