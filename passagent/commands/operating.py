"""`passagent pause`, `drain`, `stop`: wishes, told to the process that drives a run; `note`: on a run."""

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
    """Ask the process that drives a run to pause, drain or stop. Raises UsageError if there is none."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        driver = wishes.ask(store, run, what)
        if as_json:
            shown = driver._asdict() if driver else None
            print(json.dumps({"run": run.id, "wanted": what, "was": run.wanted, "process": shown}))
        else:
            print(f"run {run.id}: asked to {what}; {_TOLD[what]} {resume_command(store, run.id)}")


def note(name: str, text: str, runs_dir: str, as_json: bool) -> None:
    """Keep a person's note on a run. Raises UsageError for an empty one."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        run_notes.add_note(store, run.id, text)
        count = len(run_notes.notes_of(store, run.id))
    print(json.dumps({"run": run.id, "notes": count}) if as_json else f"run {run.id}: noted")
