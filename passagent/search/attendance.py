"""What goes on in a run now, for operators: its processes, and the episodes under way."""

from __future__ import annotations

from typing import NamedTuple

from passagent.errors import UsageError
from passagent.store import participants, runs
from passagent.store.database import Store
from passagent.store.participants import Watch, Worker
from passagent.store.runs import Run


class Process(NamedTuple):
    """A process that works on a run."""

    host: str
    pid: int
    since: str
    """ISO 8601, UTC."""
    role: str
    """`search`, or `end`: nothing is left for it to do."""


class UnderWay(NamedTuple):
    """An episode that has not ended."""

    episode: int
    island: int
    model: str | None
    parent: int | None
    is_held: bool
    """A process works on it now."""
    steps: int
    """Model calls answered."""
    nodes: int
    """Candidates proposed."""
    asked_at: str | None
    """When the model call under way was sent; None: none is."""
    evaluating: int | None
    """The node that is being evaluated, or waits for it."""
    evaluating_since: str | None
    begun_at: str


def processes(store: Store, run: Run) -> list[Process]:
    """The processes that work on the run; one of another host counts until somebody found it dead."""
    return _told(store, run)[0]


def ask_to_stop(store: Store, run: Run, after_episodes: bool) -> list[Process]:
    """Ask the processes that work on the run to stop, at once or after the episodes under way.

    Returns these processes. Raises UsageError if there are none.
    """
    working = processes(store, run)
    if not working:
        state = "interrupted" if run.state == "running" else run.state
        raise UsageError(f"run {run.id} is {state}: no process works on it; nothing to stop")
    runs.want(store, run.id, "stop_after_episodes" if after_episodes else "stop")
    return working


def _told(store: Store, run: Run) -> tuple[list[Process], list[Worker]]:
    """Who works on the run, and the dead whose work nobody took over yet."""
    watch, alive, dead = Watch(), [], []
    for worker in participants.present(store, run.id):
        if watch.judge(worker) == "dead":
            dead.append(worker)
        else:
            host, pid, _ = worker.owner.rsplit(":", 2)
            alive.append(Process(host, int(pid), worker.joined_at, worker.role))
    return alive, dead


class Attendance(NamedTuple):
    """The processes that ever worked on a run."""

    joined: int
    alive: list[Process]
    died: int
    not_taken_over: list[int]
    """Pids of dead processes whose work is not free yet."""
    lost_calls: int
    """Model calls that were under way when a process died."""


def attendance(store: Store, run: Run) -> Attendance:
    """Who joined, who died, and whether what the dead held was taken over."""
    [row] = store.rows(
        "SELECT count(*) AS joined, coalesce(sum(left_because IN ('it died', 'another session began')), 0) "
        "AS died FROM workers WHERE run_id = :run",
        {"run": run.id},
    )
    [lost] = store.rows(
        "SELECT count(*) AS count FROM calls WHERE run_id = :run AND state = 'lost'", {"run": run.id}
    )
    alive, dead = _told(store, run)
    pids = [int(worker.owner.rsplit(":", 2)[1]) for worker in dead]
    return Attendance(row["joined"], alive, row["died"] + len(dead), pids, lost["count"])


def under_way(store: Store, run_id: str) -> list[UnderWay]:
    """The episodes that have not ended, by island; those of dead processes, too."""
    rows = store.rows(
        "SELECT number AS episode, island, model, parent_id AS parent, owner IS NOT NULL AS is_held, steps, "
        "created_at AS begun_at, "
        "(SELECT count(*) FROM nodes WHERE episode_id = episodes.id) AS nodes, "
        "(SELECT max(started_at) FROM calls WHERE episode_id = episodes.id AND state = 'started') "
        "AS asked_at, "
        "(SELECT max(id) FROM nodes WHERE episode_id = episodes.id AND state != 'done') AS evaluating, "
        "(SELECT max(created_at) FROM nodes WHERE episode_id = episodes.id AND state != 'done') "
        "AS evaluating_since "
        # + : by the index of the few that run
        "FROM episodes WHERE run_id = :run AND state = 'running' ORDER BY +island, +number",
        {"run": run_id},
    )
    return [UnderWay(**{**row, "is_held": bool(row["is_held"])}) for row in rows]
