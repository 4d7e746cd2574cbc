"""`--compiler run`: a search on each task, whose best candidate is then measured afresh."""

from __future__ import annotations

from collections.abc import Callable

from passagent import __version__
from passagent.config import Config
from passagent.evaluator.result import Candidate
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.events import OnEvent
from passagent.models import open_model
from passagent.search.controller import search
from passagent.search.setup import new_run, open_session
from passagent.store import Store, confirmations, nodes, runs
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS, Run
from passagent.tasks import Task

Watching = Callable[[Store, Run], OnEvent | None]
"""Given the run: where the events of its search go."""


async def best_of_search(
    store: Store, task: Task, config: Config, pool: EvaluatorPool, watch: Watching
) -> tuple[str, Candidate | None]:
    """The run's id and the best candidate of its model, after a search that goes on where one was left.

    None if the model made no candidate that could be judged. Raises what the search raises.
    """
    run = _equal_run(store, task, config) or new_run(store, task, config)
    if run.state != "finished":
        await _search(store, run, task, config, pool, watch)
    node = confirmations.winner(store, run.id, own=True) or _best_failure(store, run.id)
    return run.id, Candidate(nodes.get_files(store, node)) if node else None


def _equal_run(store: Store, task: Task, config: Config) -> Run | None:
    """The newest run with this very task and configuration, finished or not."""
    wanted = (task.key, config.model_dump_json(), __version__)
    return next(
        (run for run in runs.list_runs(store) if (run.task_key, run.config, run.version) == wanted), None
    )


def _best_failure(store: Store, run_id: str) -> Node | None:
    """Where nothing is correct on every subgraph, the candidate with the best AS (PassNet 4.1)."""
    made = (node for node in nodes.of_run(store, run_id) if node.island != SEEDS and node.status != "ok")
    scored = [node for node in made if node.as_score is not None]
    return max(scored, key=lambda node: node.as_score or 0.0, default=None)


async def _search(
    store: Store, run: Run, task: Task, config: Config, pool: EvaluatorPool, watch: Watching
) -> None:
    model = open_model(config.model)
    try:
        await search(open_session(store, run, task, config, watch(store, run), model, pool))
    finally:
        await model.close()
