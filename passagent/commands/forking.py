"""`passagent fork`: a new run that starts from a node of another one."""

from __future__ import annotations

import sys
from typing import Any

from passagent.commands.beginning import Parts, begin
from passagent.commands.searching import search_run
from passagent.config import override
from passagent.errors import UsageError
from passagent.evaluator.hardware.devices import find_devices
from passagent.models import open_model
from passagent.search import planting
from passagent.search.setup import check_money, new_run, stored_config, stored_task
from passagent.store import Store, nodes, runs


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
        if settings.get("search.seed_dir"):
            raise UsageError(
                "search.seed_dir: a fork starts from a node; passagent run starts from a directory"
            )
        # what a search without a node to start from begins with, unless it is asked for
        anew = {"search.drafts": 0, "search.expert_seeds": 0, "search.seed_dir": None}
        config = override(stored_config(run), anew | settings)
        task = stored_task(run)
        if parts.evaluator is None:
            find_devices(config.evaluator.device)
        model = parts.model or open_model(config.model)
        check_money(config, model)
        with store.transaction():
            begun = new_run(store, task, config)
            planting.plant_fork(store, begun, origin, number=-config.search.expert_seeds)
        print(f"run {begun.id} starts from node {origin.id} of run {run.id}", file=sys.stderr)
        with begin(config, task, parts) as parts:
            search_run(store, runs.get_run(store, begun.id), task, config, model, as_json, parts)
