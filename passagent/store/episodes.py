"""Episodes and their conversations. A run's episodes are numbered from 1 and each number exists once.

Episode n belongs to island (n - 1) mod islands, so an island's episodes follow each other whatever the others
do, and its tree does not depend on which model answered first.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from passagent.errors import PassagentError
from passagent.store.database import Store, now
from passagent.store.redaction import redacted
from passagent.store.runs import SEEDS, Run


@dataclass(frozen=True)
class Episode:
    """A row of `episodes`: one conversation that starts from a node (or the task) and leaves new nodes."""

    id: int
    run_id: str
    number: int
    """1, 2, ... in the run."""
    island: int
    parent_id: int | None
    migration: str | None
    """Why the parent came from another island; None: it did not."""
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
    """JSON list: ids of the hints in its prompt, in order; None: none were chosen."""
    held_out: str | None = None
    """JSON list: ids of learned hints that were held from it."""

    @property
    def shown_hints(self) -> list[str]:
        """`hints` as a list."""
        return list(json.loads(self.hints or "[]"))


def next_episode(store: Store, run: Run, island: int, seeds: int = 0) -> Episode | None:
    """The island's next episode: its last one, where that was left unfinished, else a new one.

    None when all `iters` are made; on the island of the seeds, when as many as `seeds` are, or the search has
    begun without them.
    """
    with store.transaction():
        last = store.one(
            Episode,
            "SELECT * FROM episodes WHERE run_id = :run AND island = :island ORDER BY number DESC LIMIT 1",
            {"run": run.id, "island": island},
        )
        if last and last.state == "running":
            return last
        if island == SEEDS:
            number, end = max(1 - seeds, last.number + 1 if last else -seeds), 0
        else:
            number, end = (last.number + run.islands if last else island + 1), run.iters
        if number > end or (island == SEEDS and not _may_seed(store, run)):
            return None
        return _make(store, run, island, number)


def _make(store: Store, run: Run, island: int, number: int, model: str | None = None) -> Episode:
    """A new episode of this number."""
    terms = {"run_id": run.id, "island": island, "number": number, "model": model}
    seed = episode_seed(run.seed, number)
    return get_episode(store, store.insert("episodes", state="running", created_at=now(), seed=seed, **terms))


def _may_seed(store: Store, run: Run) -> bool:
    """Tell whether the search has not begun yet. The island of the seeds is there then."""
    names = {"run": run.id, "seeds": SEEDS}
    if store.row("SELECT 1 FROM episodes WHERE run_id = :run AND number > 0 LIMIT 1", names):
        return False
    store.execute("INSERT OR IGNORE INTO islands (run_id, island, role) VALUES (:run, :seeds, 'seed')", names)
    return True


def plant_episode(store: Store, run: Run, number: int, model: str) -> Episode:
    """A seed's episode `number`, below 1. `model`: who wrote the seed, or where it is from."""
    with store.transaction():
        _may_seed(store, run)
        return _make(store, run, SEEDS, number, model)


def seed_origins(store: Store, run_id: str) -> list[str]:
    """Where the run's seeds are from, see nodes.author_of."""
    sql = "SELECT DISTINCT model FROM episodes WHERE run_id = :run AND island = :seeds AND model IS NOT NULL"
    return [row["model"] for row in store.rows(sql, {"run": run_id, "seeds": SEEDS})]


def begin_served(store: Store, run: Run, client: str) -> Episode:
    """A new episode on the island of a served run: what `client`, its model, does from now on."""
    with store.transaction():
        row = store.row("SELECT max(number) AS last FROM episodes WHERE run_id = :run", {"run": run.id})
        return _make(store, run, 0, max(0, (row and row["last"]) or 0) + 1, client)


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


@dataclass(frozen=True)
class EliteMigration:
    """An episode that started from another island's elite."""

    from_island: int
    to_island: int
    node_id: int
    reason: str


def list_migrations(store: Store, run_id: str) -> list[EliteMigration]:
    """All migrations of a run in order."""
    return store.all(
        EliteMigration,
        "SELECT nodes.island AS from_island, episodes.island AS to_island, nodes.id AS node_id, "
        "migration AS reason FROM episodes JOIN nodes ON nodes.id = episodes.parent_id "
        "WHERE episodes.run_id = :run AND migration IS NOT NULL ORDER BY episodes.id",
        {"run": run_id},
    )


def set_start(store: Store, episode: Episode) -> None:
    """Store where the episode starts from, which model writes it, and its hints.

    With a migrant its island's count of stagnation starts anew.
    """
    store.execute(
        "UPDATE islands SET stagnant = 0 WHERE run_id = :run_id AND island = :island "
        "AND :migration IS NOT NULL",
        vars(episode),
    )
    chosen = ("parent_id", "migration", "model", "hints", "held_out")
    store.update("episodes", episode.id, **{name: getattr(episode, name) for name in chosen})


def add_messages(store: Store, episode: Episode, messages: Sequence[dict[str, Any]]) -> None:
    """Append messages, without what is a secret, to the conversation: all or none."""
    with store.transaction():
        for seq, message in enumerate(messages, next_step(store, episode.id)):
            message_id = _add_message(store, episode, redacted(message), seq)
            at_ms = int(time.time() * 1000)
            store.insert("steps", episode_id=episode.id, seq=seq, message_id=message_id, at_ms=at_ms)


def next_step(store: Store, episode_id: int) -> int:
    """The place of the episode's next message."""
    sql = "SELECT coalesce(max(seq), 0) + 1 AS next FROM steps WHERE episode_id = :id"
    return int(store.rows(sql, {"id": episode_id})[0]["next"])


SYSTEM_SEQ, PROMPT_SEQ = 1, 2
"""The places of the system message and of the task message in a conversation."""
SHORT = 1000
"""Characters of a message up to which no other is taken for its dictionary."""
_OWN = "SELECT :id"
_FIRST = "SELECT id FROM episodes WHERE run_id = :run_id AND island = :island ORDER BY number LIMIT 1"


def _add_message(store: Store, episode: Episode, message: dict[str, Any], seq: int) -> int:
    """The id of the stored message, the conversation's number `seq`. To be called in a transaction.

    Nearly all episodes begin with the same system message, so one that is equal to the last is there once.
    The task messages of an island differ little, and replies repeat what they quote of them: zlib is given
    the island's first one, or the episode's own, as a dictionary.
    """
    text = json.dumps(message).encode()  # ASCII: a lone surrogate of a model is stored, too
    if seq == SYSTEM_SEQ:
        body = zlib.compress(text)
        last = store.row(
            "SELECT message_id AS id, body FROM steps JOIN messages ON messages.id = message_id "
            "WHERE seq = :seq ORDER BY episode_id DESC LIMIT 1",
            {"seq": seq},
        )
        return int(last["id"]) if last and last["body"] == body else store.insert("messages", body=body)
    like = None
    if len(text) > SHORT:
        like = store.row(
            "SELECT messages.* FROM steps JOIN messages ON messages.id = message_id "
            f"WHERE episode_id = ({_OWN if seq > PROMPT_SEQ else _FIRST}) AND seq = {PROMPT_SEQ}",
            vars(episode),
        )
    if like is None:
        return store.insert("messages", body=zlib.compress(text))
    packer = zlib.compressobj(zdict=_texts(store, [like])[0])
    return store.insert("messages", like_id=like["id"], body=packer.compress(text) + packer.flush())


def unpack_messages(store: Store, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of these rows of `messages`, in order."""
    return [json.loads(text) for text in _texts(store, rows)]


def _texts(store: Store, rows: Sequence[dict[str, Any]]) -> list[bytes]:
    """The JSON of these rows of `messages`, in order."""
    texts: dict[int | None, bytes] = {None: b""}

    def text_of(row: dict[str, Any]) -> bytes:
        if row["like_id"] not in texts:
            [like] = store.rows("SELECT * FROM messages WHERE id = :like_id", {"like_id": row["like_id"]})
            texts[like["id"]] = text_of(like)
        return zlib.decompressobj(zdict=texts[row["like_id"]]).decompress(row["body"])

    return [text_of(row) for row in rows]


def conversation(store: Store, episode_id: int) -> list[dict[str, Any]]:
    """The episode's messages in order."""
    rows = store.rows(
        "SELECT messages.* FROM steps JOIN messages ON messages.id = message_id "
        "WHERE episode_id = :id ORDER BY seq",
        {"id": episode_id},
    )
    return unpack_messages(store, rows)


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
