"""A search whose model is tiny_search's and whose evaluations go through a real pool to stub referees.

A program: `python tests/pool_search.py TASK RUNS_DIR ITERS ISLANDS POOL` begins such a run or goes on with
it. POOL as `--pool` has it. What the run tells goes to stderr.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import stub_worker
import tiny_search

from passagent.cli import running
from passagent.config import EvaluatorConfig
from passagent.evaluator.service import pool
from passagent.search.setup import Parts
from passagent.store import Store


def main() -> None:
    """The program."""
    task, runs_dir, iters, islands, name = sys.argv[1:]
    settings = tiny_search.settings(int(iters), int(islands), 7)
    settings |= {"evaluator.pool": name, "experience.library": "off"}
    # no migration: which elite comes depends on which island is faster
    settings |= {"search.stagnation": 1000}
    pool.PAUSES_S = (0.5, 2.0)
    evaluator: Any = None
    if name == "local":
        stubs: Any = pool
        stubs.RefereeProcess = stub_worker.StubOwner
        evaluator = pool.EvaluatorPool(EvaluatorConfig())
    if name.startswith("ray"):
        from passagent.evaluator.fleet import ray_fleet

        ray_fleet.make_host = stub_worker.make_host
    parts = Parts(
        tiny_search.PacedModel(float(os.environ.get("MODEL_SECONDS", "0"))), evaluator, tiny_search.diagnose
    )
    running.run(task, {"settings": settings, "runs_dir": runs_dir}, True, parts)


def tree(runs_dir: Path) -> list[tuple[Any, ...]]:
    """Every node by its episode and its place there, with what it came from and to; whatever its id is."""
    with Store.open(runs_dir, create=False) as store:
        rows = store.rows(
            "SELECT nodes.id, episodes.number, candidate_key, status, as_score, nodes.parent_id "
            "FROM nodes JOIN episodes ON episodes.id = episode_id ORDER BY episodes.number, nodes.id"
        )
    places: dict[int, tuple[int, int]] = {}
    seen: dict[int, int] = {}
    for row in rows:
        seen[row["number"]] = seen.get(row["number"], 0) + 1
        places[row["id"]] = row["number"], seen[row["number"]]
    return [
        (
            places[row["id"]],
            places.get(row["parent_id"]),
            row["candidate_key"],
            row["status"],
            row["as_score"],
        )
        for row in rows
    ]


def done(runs_dir: Path) -> int:
    """Nodes that are judged."""
    if not (runs_dir / "passagent.db").exists():
        return 0
    with Store.open(runs_dir, create=False) as store:
        [row] = store.rows("SELECT count(*) AS done FROM nodes WHERE state = 'done'")
    return int(row["done"])


def kept(runs_dir: Path) -> list[str]:
    """The candidate of every evaluation in the store."""
    with Store.open(runs_dir, create=False) as store:
        return [row["candidate_key"] for row in store.rows("SELECT candidate_key FROM evaluations")]


if __name__ == "__main__":
    from passagent.cli import guarded

    guarded(main)
