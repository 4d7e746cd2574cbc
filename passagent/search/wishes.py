"""What a person asks of the processes that work on a run: for the commands and the page."""

from __future__ import annotations

from typing import Literal

from passagent.errors import UsageError
from passagent.search import attendance
from passagent.search.attendance import Process
from passagent.store import Store, runs
from passagent.store.runs import Run

Wish = Literal["pause", "drain", "stop"]


def ask(store: Store, run: Run, what: Wish) -> list[Process]:
    """Ask the processes that work on the run to pause, drain or stop; who they are.

    Raises UsageError if there are none.
    """
    working = attendance.processes(store, run)
    if not working:
        state = "interrupted" if run.state == "running" else run.state
        raise UsageError(f"run {run.id} is {state}: no process works on it; nothing to {what}")
    runs.want(store, run.id, what)
    return working


def lift_pause(store: Store, run: Run) -> bool:
    """Let a live run that is paused go on in its own processes; False if it is not one."""
    if run.wanted != "pause" or not attendance.processes(store, run):
        return False
    runs.want(store, run.id, "run")
    return True
