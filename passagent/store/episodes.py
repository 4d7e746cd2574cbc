"""Episodes and their conversations. A run's episodes are numbered from 1 and each number exists once.

Episode n belongs to island (n - 1) mod islands, so an island's episodes follow each other whatever the others
do, and its tree does not depend on which model answered first.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

from passagent.errors import PassagentError
from passagent.store import blobs
from passagent.store.database import Store, now
from passagent.store.runs import SEEDS, Run
from passagent.system.redaction import redacted


@dataclass(frozen=True)
class Episode:
    """A row of `episodes`: one conversation that starts from a node (or the task) and leaves new nodes."""

    id: int
    run_id: str
    number: int
    """1, 2, ... in the run."""
    island: int
    parent_id: int | None
    migrated: int
    """1 if the parent came from another island."""
    seed: int
    state: str
    """`running` (also after a crash: it will be continued) or `done`."""
    end_reason: str | None
    steps: int
    """Model calls so far."""
    input_tokens: int
    output_tokens: int
    best_node: int | None
    best_as: float | None
    gain: float | None
    """ln(best AS / the AS it started from), 1 standing for the task itself; None without a correct node."""
    created_at: str
    finished_at: str | None
    model: str | None = None
    """The model that writes it; None before it has begun."""
    hints: str | None = None
    """JSON list: ids of the hints in its prompt, see hint_uses.record_uses."""
    held_out: str | None = None
    """JSON list: ids of learned hints that were held from it."""


_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens")
_ADD_STEP = (
    f"INSERT INTO steps (episode_id, seq, message_id, at_ms, {', '.join(_TOKENS)}) "
    f"VALUES (:episode, :seq, :message, :at, {', '.join(':' + kind for kind in _TOKENS)})"
)


class NotYet(Exception):
    """Raised until the other islands have come far enough to decide whether this one has another episode."""


def next_episode(store: Store, run: Run, island: int, seeds: int = 0) -> Episode | None:
    """The island's next episode: its last one, where that was left unfinished, else a new one.

    None when all `iters` are made; on the island of the seeds, when as many as `seeds` are, or the search has
    begun without them. Raises NotYet.
    """
    with store.transaction():
        last = store.one(
            Episode,
            "SELECT * FROM episodes WHERE run_id = :run AND island = :island ORDER BY number DESC LIMIT 1",
            {"run": run.id, "island": island},
        )
        if last and last.state == "running":
            return last
        return _make(store, run, island, last, seeds)


def _make(store: Store, run: Run, island: int, last: Episode | None, seeds: int) -> Episode | None:
    """The episode that follows on the island's `last` one; see next_episode."""
    first, step, end = (1 - seeds, 1, 0) if island == SEEDS else (island + 1, run.islands, run.iters)
    number = last.number + step if last else first
    if island == SEEDS:
        number = max(number, first)
    if island != SEEDS and not _is_its_own(store, run, island, number, end):
        return None
    if island == SEEDS and number > end:
        return None
    if island == SEEDS and not _may_seed(store, run):
        return None
    return store.one(
        Episode,
        "INSERT INTO episodes (run_id, number, island, seed, state, created_at) "
        "VALUES (:run, :number, :island, :seed, 'running', :at) RETURNING *",
        {
            "run": run.id,
            "island": island,
            "number": number,
            "seed": episode_seed(run.seed, number),
            "at": now(),
        },
    )


def _is_its_own(store: Store, run: Run, island: int, number: int, iters: int) -> bool:
    """Tell whether the island may make episode `number`: one of `iters`, or a resting island's.

    What is left follows on the last number, round by round, to those that do not rest. Raises NotYet while
    another island may still come to rest.
    """
    rows = store.rows(
        "SELECT island, episodes, rests_from FROM islands WHERE run_id = :run AND island != :seeds",
        {"run": run.id, "seeds": SEEDS},
    )
    rests = {row["island"]: row["rests_from"] for row in rows if row["rests_from"] is not None}
    if island in rests or number <= iters or not rests:
        return island not in rests and number <= iters
    if any(
        row["episodes"] < len(range(row["island"] + 1, iters + 1, run.islands))
        for row in rows
        if row["island"] not in rests
    ):
        raise NotYet
    passed_on = sum(len(range(rest + run.islands, iters + 1, run.islands)) for rest in rests.values())
    more = sum((n - 1) % run.islands not in rests for n in range(iters + 1, number + 1))
    return more <= passed_on


def rest(store: Store, episode: Episode) -> None:
    """The island is at the speed of light with this episode."""
    store.execute(
        "UPDATE islands SET rests_from = coalesce(rests_from, :number) "
        "WHERE run_id = :run AND island = :island",
        {"number": episode.number, "run": episode.run_id, "island": episode.island},
    )


def _may_seed(store: Store, run: Run) -> bool:
    """Tell whether the search has not begun yet. The island of the seeds is there then."""
    names = {"run": run.id, "seeds": SEEDS}
    if store.row("SELECT 1 FROM episodes WHERE run_id = :run AND number > 0 LIMIT 1", names):
        return False
    store.execute("INSERT OR IGNORE INTO islands (run_id, island, role) VALUES (:run, :seeds, 'seed')", names)
    return True


def begin_served(store: Store, run: Run, client: str) -> Episode:
    """A new episode on the island of a served run: what `client`, its model, does from now on."""
    with store.transaction():
        row = store.row("SELECT max(number) AS last FROM episodes WHERE run_id = :run", {"run": run.id})
        number = max(0, (row and row["last"]) or 0) + 1
        [episode] = store.all(
            Episode,
            "INSERT INTO episodes (run_id, number, island, seed, state, created_at, model) "
            "VALUES (:run, :number, 0, :seed, 'running', :at, :client) RETURNING *",
            {
                "run": run.id,
                "number": number,
                "seed": episode_seed(run.seed, number),
                "at": now(),
                "client": client,
            },
        )
    return episode


def episode_seed(run_seed: int, number: int) -> int:
    """The seed of episode `number`, 0 to 2^31 - 1: a function of the run's seed, so no stream can be lost."""
    digest = hashlib.sha256(f"{run_seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def get_episode(store: Store, episode_id: int) -> Episode:
    """The episode of this id."""
    episode = store.one(Episode, "SELECT * FROM episodes WHERE id = :id", {"id": episode_id})
    if episode is None:
        raise PassagentError(f"{episode_id}: no such episode in {store.runs_dir}")
    return episode


def running(store: Store, run_id: str) -> list[Episode]:
    """The run's episodes that have not come to their end."""
    return store.all(
        Episode,
        "SELECT * FROM episodes WHERE run_id = :run AND state = 'running' ORDER BY number",
        {"run": run_id},
    )


def set_parent(store: Store, episode: Episode) -> None:
    """Store where the episode starts from, and which model writes it."""
    store.execute(
        "UPDATE episodes SET parent_id = :parent, migrated = :migrated, model = :model WHERE id = :id",
        {
            "parent": episode.parent_id,
            "migrated": episode.migrated,
            "model": episode.model,
            "id": episode.id,
        },
    )


def add_message(
    store: Store, episode: Episode, message: dict[str, Any], usage: dict[str, int] | None
) -> None:
    """Append a message, without secrets, to the conversation; `usage` (of models) marks a model's reply."""
    add_messages(store, episode, [(redacted(message), usage)])


def add_messages(
    store: Store,
    episode: Episode,
    messages: list[tuple[dict[str, Any], dict[str, int] | None]],
) -> None:
    """Append messages that hold no secret (redaction.redacted), all or none; see add_message."""
    add_packed(store, episode, [(blobs.pack_message(message), usage) for message, usage in messages])


def _last(store: Store, episode_id: int) -> int:
    """The number of the conversation's last message; 0: there is none."""
    [row] = store.rows(
        "SELECT coalesce(max(seq), 0) AS last FROM steps WHERE episode_id = :episode", {"episode": episode_id}
    )
    return int(row["last"])


def add_packed(store: Store, episode: Episode, messages: list[tuple[bytes, dict[str, int] | None]]) -> None:
    """Append messages of conversations.pack, all or none."""
    with store.transaction():
        at, steps = int(time.time() * 1000), []
        for seq, (packed, usage) in enumerate(messages, _last(store, episode.id) + 1):
            message_id = blobs.add_message(store, packed, seq)
            step: dict[str, int | None] = {"episode": episode.id, "seq": seq, "message": message_id, "at": at}
            steps.append(step | {kind: usage.get(kind) if usage else None for kind in _TOKENS})
            if usage is not None:
                _count(store, episode, usage)
        store.execute_many(_ADD_STEP, steps)


def _count(store: Store, episode: Episode, usage: dict[str, int]) -> None:
    """Add a reply to the sums of episode and run."""
    for table, key in (("episodes", episode.id), ("runs", episode.run_id)):
        steps = "steps = steps + 1, " if table == "episodes" else ""
        store.execute(
            f"UPDATE {table} SET {steps}input_tokens = input_tokens + :input, "
            "output_tokens = output_tokens + :output WHERE id = :key",
            {"input": usage["input_tokens"], "output": usage["output_tokens"], "key": key},
        )


def conversation(store: Store, episode_id: int) -> list[dict[str, Any]]:
    """The episode's messages in order."""
    rows = store.rows(
        "SELECT body FROM steps JOIN messages ON messages.id = message_id "
        "WHERE episode_id = :id ORDER BY seq",
        {"id": episode_id},
    )
    return [blobs.unpack_message(row["body"]) for row in rows]


def finish(store: Store, episode: Episode, reason: str, gain: float | None, is_progress: bool) -> Episode:
    """The episode is done, for `reason`; its best node is found among what it left.

    Its island's stagnation is counted: `is_progress` starts the count anew.
    """
    store.execute(
        "UPDATE islands SET episodes = episodes + 1, "
        "stagnant = CASE WHEN :progress THEN 0 ELSE stagnant + 1 END "
        "WHERE run_id = :run AND island = :island",
        {"progress": int(is_progress), "run": episode.run_id, "island": episode.island},
    )
    [done] = store.all(
        Episode,
        "UPDATE episodes SET state = 'done', end_reason = :reason, gain = :gain, finished_at = :at, "
        "(best_node, best_as) = (SELECT id, as_score FROM nodes WHERE episode_id = :id AND status = 'ok' "
        "ORDER BY as_score DESC NULLS LAST, id LIMIT 1) WHERE id = :id RETURNING *",
        {"reason": reason, "gain": gain, "at": now(), "id": episode.id},
    )
    return done
