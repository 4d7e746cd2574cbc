"""What a person asks of the process that drives a run, and what a second process is told."""

from __future__ import annotations

from passagent.errors import UsageError
from passagent.search.going_on import runs_dir_flag
from passagent.store import Store, runs, sessions
from passagent.store.runs import Run
from passagent.store.sessions import Driver


def ask_to_stop(store: Store, run: Run, after_episodes: bool) -> Driver | None:
    """Ask the process that drives the run to stop, at once or after the episodes under way.

    Returns which process that is, if it has begun. Raises UsageError if there is none.
    """
    if not sessions.is_driven(store, run.id):
        state = "interrupted" if run.state == "running" else run.state
        raise UsageError(f"run {run.id} is {state}: no process works on it; nothing to stop")
    runs.want(store, run.id, "stop_after_episodes" if after_episodes else "stop")
    return sessions.driver(store, run.id)


def driven(store: Store, run_id: str) -> UsageError:
    """The error of a second process on the run."""
    driver, flag = sessions.driver(store, run_id), runs_dir_flag(store)
    who = "another process"
    if driver is not None:
        since = driver.since[:16].replace("T", " ")
        who = f"process {driver.pid} on {driver.host} since {since} UTC"
    return UsageError(f"{run_id} is driven by {who}; stop it with: passagent stop {run_id}{flag}")
