"""The processes that work on a run: any number may join and leave, and what a dead one held is free again.

What a process holds (an episode and with it an island, a node under evaluation, room in a budget) bears its
name. It holds it as long as it lives. A process of this machine is asked for at once; one of another host is
dead when its `beats` have not moved for STALE_S by the clock of whoever watches, which no one can set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal

from passagent.errors import PassagentError
from passagent.redaction import redact
from passagent.store import runs
from passagent.store.database import Store, now
from passagent.store.owner import is_here, is_running, this_process

BEAT_S = 5.0
"""Between two signs of life, s."""
STALE_S = 60.0
"""Without a beat from another host, by the watcher's monotonic clock; then the process counts as dead, s."""


@dataclass(frozen=True)
class Terms:
    """What a session works with: scores and prompts of other terms are not simply comparable."""

    version: str = ""
    """Of passagent."""
    config: str = "{}"
    """JSON of the whole Config."""
    prompts: str = ""
    """Hash over the prompt files."""
    environment: str = ""
    """Evaluator version and environment."""


@dataclass(frozen=True)
class Worker:
    """A row of `workers`: a process at work on a run, from joining to leaving."""

    id: int
    run_id: str
    owner: str
    role: str
    """`search`, or `end`: nothing is left for it to do, it waits for the others."""
    beats: int
    version: str
    config: str
    prompts: str
    environment: str
    changes: str
    """JSON list: what was different from the session before, a line each."""
    joined_at: str
    left_at: str | None
    left_because: str | None


@dataclass
class Watch:
    """Tells dead workers from living ones by its own clock alone."""

    clock: Callable[[], float] = time.monotonic
    _seen: dict[int, tuple[int, float, bool]] = field(default_factory=dict)
    """Of each worker of another host: its beats, since when they are so many, and whether they ever moved."""

    def judge(self, worker: Worker) -> Literal["alive", "dead", "unknown"]:
        """`unknown`: of another host, neither seen to beat nor watched for STALE_S yet."""
        if is_here(worker.owner):
            return "alive" if is_running(worker.owner) else "dead"
        beats, since, moved = self._seen.get(worker.id, (worker.beats, self.clock(), False))
        if beats != worker.beats:
            beats, since, moved = worker.beats, self.clock(), True
        self._seen[worker.id] = beats, since, moved
        if self.clock() - since >= STALE_S:
            return "dead"
        return "alive" if moved else "unknown"


def join(store: Store, run_id: str, terms: Terms | None = None, changes: str = "[]") -> str:
    """This process works on the run from now on; its name as an owner.

    What an earlier session of this process left behind is freed, and what an owner holds that is not among
    the run's workers. Who is alone makes the run `running` anew.
    """
    me = this_process()
    with store.transaction():
        has_ended = runs.get_run(store, run_id).state != "running"  # then who is there yet is about to leave
        for worker in present(store, run_id):
            if worker.owner == me or has_ended:
                bury(store, worker, "another session began")
        _free(store, run_id)
        if not present(store, run_id):
            store.execute(
                "UPDATE runs SET state = 'running', stop_reason = NULL, finished_at = NULL, wanted = 'run', "
                "owner = NULL WHERE id = :run",
                {"run": run_id},
            )
        values = asdict(terms or Terms()) | {"run": run_id, "me": me, "changes": changes, "at": now()}
        store.execute(
            "INSERT INTO workers (run_id, owner, role, version, config, prompts, environment, changes, "
            "joined_at) VALUES (:run, :me, 'search', :version, :config, :prompts, :environment, :changes, "
            ":at)",
            values,
        )
    return me


def present(store: Store, run_id: str) -> list[Worker]:
    """Those that joined and did not leave, dead ones included, the oldest first."""
    rows = store.rows(
        "SELECT * FROM workers WHERE run_id = :run AND left_at IS NULL ORDER BY id", {"run": run_id}
    )
    return [Worker(**row) for row in rows]


def of_run(store: Store, run_id: str) -> list[Worker]:
    """All that ever worked on the run, the oldest first."""
    return [
        Worker(**row)
        for row in store.rows("SELECT * FROM workers WHERE run_id = :run ORDER BY id", {"run": run_id})
    ]


def last(store: Store, run_id: str) -> Worker | None:
    """The one that joined last."""
    row = store.row("SELECT * FROM workers WHERE run_id = :run ORDER BY id DESC LIMIT 1", {"run": run_id})
    return Worker(**row) if row else None


def is_live(store: Store, run_id: str) -> bool:
    """Whether a process works on the run now; one of another host counts until somebody found it dead."""
    watch = Watch()
    return any(watch.judge(worker) != "dead" for worker in present(store, run_id))


def beat(store: Store, run_id: str, owner: str, elapsed_s: float) -> float:
    """A sign of life. The run's time searched is at least `elapsed_s`; what it is now, s.

    Raises PassagentError if the owner was taken for dead.
    """
    with store.transaction():
        changed = store.execute(
            "UPDATE workers SET beats = beats + 1 WHERE run_id = :run AND owner = :owner AND left_at IS NULL",
            {"run": run_id, "owner": owner},
        )
        if not changed.rowcount:
            raise taken_over(run_id)
        _note_time(store, run_id, elapsed_s)
        return runs.get_run(store, run_id).elapsed_s


def _note_time(store: Store, run_id: str, elapsed_s: float) -> None:
    """The run's time searched is at least so long, s."""
    store.execute(
        "UPDATE runs SET elapsed_s = max(elapsed_s, :elapsed) WHERE id = :run",
        {"elapsed": elapsed_s, "run": run_id},
    )


def taken_over(run_id: str) -> PassagentError:
    """What a process is told that was taken for dead."""
    return PassagentError(
        f"{run_id}: another process took over what this one held; nothing is lost, that one goes on"
    )


def bury_dead(store: Store, run_id: str, me: str, watch: Watch) -> tuple[list[Worker], list[Worker], int]:
    """Free what dead processes held: the living others, the dead, and how many model calls are lost."""
    others = [worker for worker in present(store, run_id) if worker.owner != me]
    dead = [worker for worker in others if watch.judge(worker) == "dead"]
    lost = sum(bury(store, worker, "it died") for worker in dead)
    return [worker for worker in others if worker not in dead], dead, lost


def bury(store: Store, worker: Worker, reason: str) -> int:
    """The worker is gone and holds nothing any more; how many of its model calls are lost."""
    with store.transaction():
        changed = store.execute(
            "UPDATE workers SET left_at = :at, left_because = :reason WHERE id = :id AND left_at IS NULL",
            {"at": now(), "reason": redact(reason), "id": worker.id},
        )
        return _free(store, worker.run_id) if changed.rowcount else 0


def _free(store: Store, run_id: str) -> int:
    """Take from whoever is not present all that they hold; how many of their model calls are lost."""
    names = {"run": run_id}
    gone = (
        "owner IS NOT NULL AND owner NOT IN "
        "(SELECT owner FROM workers WHERE run_id = :run AND left_at IS NULL)"
    )
    lost = store.execute(
        "UPDATE calls SET state = 'lost', finished_at = :at, error = 'under way when the process died' "
        "WHERE run_id = :run AND state = 'started' "
        f"AND episode_id IN (SELECT id FROM episodes WHERE run_id = :run AND {gone})",
        names | {"at": now()},
    ).rowcount
    store.execute(f"UPDATE episodes SET owner = NULL WHERE run_id = :run AND {gone}", names)
    store.execute(
        "UPDATE nodes SET owner = NULL, state = 'proposed' "
        f"WHERE run_id = :run AND state != 'done' AND {gone}",
        names,
    )
    store.execute(f"DELETE FROM reservations WHERE run_id = :run AND {gone}", names)
    store.execute(f"UPDATE runs SET owner = NULL WHERE id = :run AND {gone}", names)
    return lost


def take_run(store: Store, run_id: str, owner: str, role: Literal["search", "end"]) -> bool:
    """Have the run for this process alone, to measure what all rely on; False if another one has it.

    At the `end` also while others still search.
    """
    with store.transaction():
        store.execute(
            "UPDATE workers SET role = :role WHERE run_id = :run AND owner = :owner AND left_at IS NULL",
            {"role": role, "run": run_id, "owner": owner},
        )
        others = [worker for worker in present(store, run_id) if worker.owner != owner]
        if role == "end" and any(worker.role == "search" for worker in others):
            return False
        changed = store.execute(
            "UPDATE runs SET owner = :owner WHERE id = :run AND (owner IS NULL OR owner = :owner)",
            {"owner": owner, "run": run_id},
        )
        return bool(changed.rowcount)


def give_run(store: Store, run_id: str, owner: str) -> None:
    """The run is no longer this process's alone."""
    store.execute(
        "UPDATE runs SET owner = NULL WHERE id = :run AND owner = :owner", {"run": run_id, "owner": owner}
    )


def is_over(store: Store, run_id: str, owner: str) -> bool:
    """Whether the run was ended by another process, or goes on without this one."""
    row = store.row(
        "SELECT 1 FROM runs JOIN workers ON run_id = runs.id WHERE runs.id = :run AND state = 'running' "
        "AND workers.owner = :owner AND left_at IS NULL",
        {"run": run_id, "owner": owner},
    )
    return row is None


def version_of_data(store: Store) -> int:
    """Changes when another process has written to the database."""
    row = store.row("PRAGMA data_version")
    assert row is not None
    return int(row["data_version"])


def leave(
    store: Store, run_id: str, owner: str, watch: Watch, state: str, reason: str, elapsed_s: float
) -> bool:
    """This process works on the run no longer. Whether it was it that ended the run, in `state`.

    The last one ends it, whatever its state is; `finished` ends it for those that wait, too. Who leaves after
    that may know of more time searched than the one that ended it, which may have joined late.
    """
    with store.transaction():
        others, _, _ = bury_dead(store, run_id, owner, watch)
        mine = [worker for worker in present(store, run_id) if worker.owner == owner]
        if not mine:
            return False
        bury(store, mine[0], reason)
        _note_time(store, run_id, elapsed_s)
        if others and state != "finished":
            return False
        changed = store.execute(
            "UPDATE runs SET state = :state, stop_reason = :reason, finished_at = :at, owner = NULL "
            "WHERE id = :run AND state = 'running'",
            {"state": state, "reason": redact(reason), "at": now(), "run": run_id},
        )
        return bool(changed.rowcount)
