"""The ledger: a row for every request to a model, written before it is sent, ended when its outcome is known.

A reply's row is ended in the transaction that stores the reply: what was paid and has arrived is never asked
for again. Replies that arrived broken are rows too, with what the server said it counted, so that the sums
are the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from passagent.store.database import Store, now
from passagent.store.episodes import Episode, next_step

KINDS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
"""The kinds of tokens, fields of models.types.Usage."""


@dataclass(frozen=True)
class Spent:
    """The cost of a group of requests."""

    group: str
    """The model's name, or the island's number."""
    requests: int
    replies: int
    broken: int
    """Replies that could not be used, tried again."""
    failed: int
    """Requests that the server answered with an error, or that never reached it."""
    lost: int
    """Requests under way when a process died: what they cost is not known."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    unpriced: int
    """Requests with tokens whose price is not known: `cost` lacks them."""
    cost: float
    """USD."""
    latency_s: float | None
    """Mean over the replies."""


def start(
    store: Store, episode: Episode, *, role: str, model: str, endpoint: str | None, attempt: int
) -> int:
    """A request is about to be sent for the episode's next message; the call's id."""
    about = {"role": role, "model": model, "endpoint": endpoint, "attempt": attempt}
    place = {"run_id": episode.run_id, "island": episode.island, "episode_id": episode.id}
    step = next_step(store, episode.id)
    return store.insert("calls", **place, step=step, **about, state="started", started_at=now())


def mean_latency_s(store: Store, run_id: str, model: str) -> float:
    """The mean latency of the model's newest 20 replies in the run, s; 0 before the first."""
    row = store.row(
        "SELECT avg(latency_s) AS mean FROM (SELECT latency_s FROM calls WHERE run_id = :run "
        "AND model = :model AND state = 'done' ORDER BY id DESC LIMIT 20)",
        {"run": run_id, "model": model},
    )
    return float(row["mean"] or 0.0) if row else 0.0


def spent(store: Store, run_id: str, by: str = "model") -> list[Spent]:
    """The run's requests, grouped by `model`, `island` or `role`, in the groups' order."""
    assert by in ("model", "island", "role")
    states = ", ".join(
        f"sum(state = '{state}') AS {name}"
        for name, state in (("replies", "done"), ("broken", "broken"), ("failed", "failed"), ("lost", "lost"))
    )
    sums = ", ".join(f"sum({kind}) AS {kind}" for kind in KINDS)
    return store.all(
        Spent,
        f'SELECT CAST({by} AS TEXT) AS "group", count(*) AS requests, {states}, {sums}, '
        "sum(cost IS NULL AND input_tokens + output_tokens > 0) AS unpriced, "
        "coalesce(sum(cost), 0.0) AS cost, avg(CASE WHEN state = 'done' THEN latency_s END) AS latency_s "
        f"FROM calls WHERE run_id = :run GROUP BY {by} ORDER BY {by}",
        {"run": run_id},
    )


def end(store: Store, call_id: int, state: str, tokens: Mapping[str, int], **outcome: Any) -> None:
    """End a request, and add what it took to the sums of its episode and run.

    Where its reply arrived (`done`), call it in the transaction that stores the reply. Else it is `broken`
    (the server counted tokens), `failed`, or `lost`: given up while it was under way. `tokens`: by their
    kinds, what the server counted. `outcome`: its `cost`, `latency_s`, `stop_reason`, `error`, where known.
    """
    counts = {kind: tokens.get(kind, 0) for kind in KINDS}
    names = counts | {"cost": outcome.get("cost"), "id": call_id}
    sums = "input_tokens = input_tokens + :input_tokens, output_tokens = output_tokens + :output_tokens"
    with store.transaction():
        store.update("calls", call_id, state=state, finished_at=now(), **counts, **outcome)
        store.execute(
            f"UPDATE episodes SET {sums}, steps = steps + (SELECT state = 'done' AND role = 'agent' "
            "FROM calls WHERE id = :id) WHERE id = (SELECT episode_id FROM calls WHERE id = :id)",
            names,
        )
        store.execute(
            f"UPDATE runs SET {sums}, cost = cost + coalesce(:cost, 0) "
            "WHERE id = (SELECT run_id FROM calls WHERE id = :id)",
            names,
        )
