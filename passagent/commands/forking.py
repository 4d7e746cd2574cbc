"""`passagent fork`: a new run that starts from a node of another one."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from passagent.commands.beginning import Parts, begin
from passagent.commands.searching import search_run
from passagent.config import Config, override
from passagent.errors import UsageError
from passagent.evaluator import known
from passagent.evaluator.devices import find_devices, first_device
from passagent.evaluator.known import Known
from passagent.evaluator.result import Candidate
from passagent.models import open_model
from passagent.search.setup import check_money, diagnoser, new_run, stored_config, stored_task
from passagent.store import Store, forking, nodes, runs
from passagent.store.database import now
from passagent.tasks import Task


def fork(
    name: str,
    node_id: int,
    settings: dict[str, Any],
    runs_dir: str,
    as_json: bool,
    parts: Parts | None = None,
) -> None:
    """Search on from a node of a run, in a new run under that one's settings with `settings` changed.

    Raises UsageError if the run has no such node, or it was not evaluated; and what a search raises.
    """
    parts = parts or Parts()
    with Store.open(runs_dir, create=False) as store:
        run, origin = runs.find_run(store, name), nodes.get_node(store, node_id)
        if origin.run_id != run.id:
            raise UsageError(f"run {run.id} has no node {node_id}; it is of run {origin.run_id}")
        if origin.state != "done":
            raise UsageError(f"node {node_id} has not been evaluated yet; resume run {run.id} first")
        # what a search without a node to start from begins with, unless it is asked for
        anew = {"search.drafts": 0, "search.expert_seeds": 0}
        config = override(stored_config(run), anew | settings)
        task = stored_task(run)
        if parts.evaluator is None:
            find_devices(config.evaluator.device)
        model = parts.model or open_model(config.model)
        check_money(config, model)
        found = asyncio.run(_evaluated(store, task, Candidate(nodes.get_files(store, origin)), config, parts))
        diagnose = parts.diagnose or diagnoser(first_device(config.evaluator.device))
        diagnosis = json.dumps(asdict(diagnose(found.evaluation)))
        with store.transaction():
            begun = new_run(store, task, config)
            forking.plant(
                store,
                begun,
                origin,
                evaluation_id=found.id,
                status=found.evaluation.status,
                as_score=found.evaluation.as_score,
                diagnosis=diagnosis,
            )
        print(f"run {begun.id} starts from node {origin.id} of run {run.id}", file=sys.stderr)
        with begin(config, task, parts) as parts:
            search_run(store, runs.get_run(store, begun.id), task, config, model, as_json, parts)


async def _evaluated(store: Store, task: Task, candidate: Candidate, config: Config, parts: Parts) -> Known:
    """The candidate's evaluation under the new run's conditions, from the store if it is known."""
    from passagent.evaluator.pool import EvaluatorPool

    environment = known.environment_key(config.evaluator)
    found = known.recall(store, task, candidate, environment, unstable=True)
    if found is not None:
        return found
    evaluator = parts.evaluator or EvaluatorPool(config.evaluator)
    try:
        evaluation = await evaluator.evaluate(task.path, candidate)
    finally:
        await evaluator.close()
    evaluation_id = known.keep(store, task, candidate, environment, evaluation)
    return Known(evaluation_id, evaluation, now(), from_store=False)
