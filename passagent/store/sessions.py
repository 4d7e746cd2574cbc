"""Sessions: from when a process begins to drive a run until it ends or dies.

One process drives a run at a time. It holds the run's byte of a lock file beside the database, so that a dead
process is known at once, and the next session frees what was in flight.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from passagent.errors import UsageError
from passagent.store import runs
from passagent.store.database import Store, now
from passagent.store.locks import is_locked, take_lock, this_process
from passagent.store.redaction import redact
from passagent.store.runs import Run

LOCKS = "runs.lock"
"""Name of the lock file. The id of a run, a number of eight hexadecimal digits, is its byte."""
SAVE_S = 5.0
"""Between two notes of the time searched, s: what a killed process has not counted."""
DIED = "it died"
"""Why a session ended that could not say so itself."""


@dataclass(frozen=True)
class StoredSession:
    """A row of `sessions`."""

    id: int
    run_id: str
    owner: str
    """The process, `HOST:PID`."""
    version: str
    config: str
    prompts: str
    environment: str
    changes: str
    """JSON list: what was different from the session before, a line each."""
    joined_at: str
    left_at: str | None
    """None: it goes on, or its process died and no other session has begun since."""
    left_because: str | None


class Driver(NamedTuple):
    """The process that drives a run."""

    host: str
    pid: int
    since: str
    """ISO 8601, UTC."""


def lock_run(store: Store, run_id: str) -> int | None:
    """The file descriptor that holds the run for this process until it is closed; None if it is driven."""
    return take_lock(store.runs_dir / LOCKS, int(run_id, 16))


def is_driven(store: Store, run_id: str) -> bool:
    """Tell whether a process drives the run now."""
    return is_locked(store.runs_dir / LOCKS, int(run_id, 16))


def driver(store: Store, run_id: str) -> Driver | None:
    """The process that drives the run now; None: the run is at rest."""
    session = last(store, run_id) if is_driven(store, run_id) else None
    if session is None or session.left_at is not None:  # it has just taken the lock, or is about to leave it
        return None
    host, _, pid = session.owner.rpartition(":")
    return Driver(host, int(pid), session.joined_at)


def begin(store: Store, run_id: str, **terms: str) -> list[str]:
    """Begin a session of this process, which holds the run's lock. Return what a person should know of it.

    `terms`: its version, config, prompts and environment, columns of `sessions`; scores of other terms are
    not simply comparable. Told are how they differ from those of the session before, and how many model calls
    were lost. What a dead process had in flight is free: its episodes go on, its nodes are evaluated anew.
    """
    terms = {"version": "", "config": "{}", "prompts": "", "environment": ""} | terms
    names = {"run": run_id, "at": now(), "died": DIED}
    with store.transaction():
        changes = _changes_between(last(store, run_id), terms)
        store.execute(
            "UPDATE sessions SET left_at = :at, left_because = :died WHERE run_id = :run AND left_at IS NULL",
            names,
        )
        store.execute(
            "UPDATE nodes SET state = 'proposed' WHERE run_id = :run AND state = 'evaluating'", names
        )
        lost = store.execute(
            "UPDATE calls SET state = 'lost', finished_at = :at, error = 'under way when the process died' "
            "WHERE run_id = :run AND state = 'started'",
            names,
        ).rowcount
        runs.update_run(store, run_id, state="running", stop_reason=None, finished_at=None, wanted="run")
        mine = {"run_id": run_id, "owner": this_process(), "joined_at": names["at"]}
        store.insert("sessions", **terms, **mine, changes=json.dumps(changes))
    died = f"at most {lost} model calls were lost, under way when the process died"
    return [*changes, died] if lost else changes


def _changes_between(before: StoredSession | None, terms: dict[str, str]) -> list[str]:
    """List what differs from the session before, and what is done about it, a line each."""
    if before is None or not before.version:
        return []
    changes = [
        f"the settings have changed: {change}" for change in changed_settings(before.config, terms["config"])
    ]
    if before.version != terms["version"]:
        changes.append(f"passagent has changed: {before.version}, now {terms['version']}")
    if before.prompts != terms["prompts"]:
        changes.append(
            "the prompts have changed: episodes that begin now see the new ones, begun ones keep theirs"
        )
    old, new = before.environment.split("; "), terms["environment"].split("; ")
    if len(old) != len(new):
        old, new = [before.environment], [terms["environment"]]
    changes += [
        f"the evaluator or its machine has changed: {a}, now {b}"
        for a, b in zip(old, new, strict=True)
        if a != b
    ]
    return changes


def changed_settings(before: str, after: str) -> list[str]:
    """`section.key OLD, now NEW` for each setting of two configurations (JSON) that differs."""
    old, new = _flat(json.loads(before)), _flat(json.loads(after))
    return [
        f"{key} {json.dumps(old.get(key))}, now {json.dumps(new.get(key))}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, values in config.items() for key, value in values.items()}


def end(store: Store, run_id: str, state: str, reason: str, elapsed_s: float) -> None:
    """End the session that drives the run, and leave the run in `state`."""
    reason = redact(reason)
    with store.transaction():
        save_time(store, run_id, elapsed_s)
        store.execute(
            "UPDATE sessions SET left_at = :at, left_because = :reason "
            "WHERE run_id = :run AND left_at IS NULL",
            {"run": run_id, "reason": reason, "at": now()},
        )
        runs.update_run(store, run_id, state=state, stop_reason=reason, finished_at=now())


def save_time(store: Store, run_id: str, elapsed_s: float) -> None:
    """Store how long the run was searched by now, s."""
    store.execute(
        "UPDATE runs SET elapsed_s = max(elapsed_s, :elapsed) WHERE id = :run",
        {"elapsed": elapsed_s, "run": run_id},
    )


def of_run(store: Store, run_id: str) -> list[StoredSession]:
    """The sessions of the run, the oldest first."""
    return store.all(StoredSession, "SELECT * FROM sessions WHERE run_id = :run ORDER BY id", {"run": run_id})


def last(store: Store, run_id: str) -> StoredSession | None:
    """The session that began last."""
    return store.one(
        StoredSession, "SELECT * FROM sessions WHERE run_id = :run ORDER BY id DESC LIMIT 1", {"run": run_id}
    )


def ask_to_stop(store: Store, run: Run, after_episodes: bool) -> Driver | None:
    """Ask the process that drives the run to stop, at once or after the episodes under way.

    Returns which process that is, if it has begun. Raises UsageError if there is none.
    """
    if not is_driven(store, run.id):
        state = "interrupted" if run.state == "running" else run.state
        raise UsageError(f"run {run.id} is {state}: no process works on it; nothing to stop")
    runs.want(store, run.id, "stop_after_episodes" if after_episodes else "stop")
    return driver(store, run.id)


def driven(store: Store, run_id: str) -> UsageError:
    """The error of a second process on the run."""
    who = "another process"
    if (holder := driver(store, run_id)) is not None:
        since = holder.since[:16].replace("T", " ")
        who = f"process {holder.pid} on {holder.host} since {since} UTC"
    return UsageError(
        f"{run_id} is driven by {who}; stop it with: passagent stop {run_id}{runs_dir_flag(store)}"
    )


def runs_dir_flag(store: Store) -> str:
    """` --runs-dir DIR` where a command needs it to find this store."""
    default = Path(os.environ.get("PASSAGENT_RUNS_DIR", "runs")).absolute()
    if store.runs_dir == default:
        return ""
    here = Path.cwd()
    runs_dir = store.runs_dir.relative_to(here) if store.runs_dir.is_relative_to(here) else store.runs_dir
    return f" --runs-dir {shlex.quote(str(runs_dir))}"


def resume_command(store: Store, run_id: str) -> str:
    """`passagent resume RUN`, with the flag above; of a run that clients fill, the server's command."""
    is_served = runs.get_run(store, run_id).is_served
    return f"passagent {'mcp' if is_served else f'resume {run_id}'}{runs_dir_flag(store)}"
