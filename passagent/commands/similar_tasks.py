"""`passagent similar`: what a search of a task would take from the library, and why."""

from __future__ import annotations

import json
from typing import Any

from passagent.config import Config, load_config
from passagent.evaluator.target import target_of
from passagent.experience.exemplars import Match
from passagent.experience.retrievers import retriever_of
from passagent.report.text import interval, table
from passagent.search.run_memory import open_memory
from passagent.tasks import Task, load_task

PASSAGES = 2


def similar(path: str, preset: str | None, settings: dict[str, Any], as_json: bool) -> None:
    """Print it. Raises UsageError, and PassagentError for a task whose graph cannot be read."""
    config, task = load_config(preset, settings), load_task(path)
    found = used_for(task, config)
    if as_json:
        print(json.dumps(found))
        return
    print(f"{task.name}, on {found['target']}; library: {found['library'] or 'off'}")
    rows = [["seed", *_cells(found["seed"])]] if found["seed"] else []
    rows += [["example", *_cells(one)] for one in found["examples"]]
    if rows:
        print(table(["use", "why", "operators", ">AS [95%]", "source"], rows))
    else:
        print(f"no exemplar serves it; knowledge: {', '.join(found['knowledge']) or 'nothing'}")
    if found["excluded"]:
        print("the task is excluded: nothing of it is taken, and nothing of it is stored")


def used_for(task: Task, config: Config) -> dict[str, Any]:
    """What is used for a task, as plain data: of `passagent similar` and of the MCP tool `similar`."""
    memory = open_memory(config, task)
    found = memory.find() if memory else None
    seed = found.seed if found and config.experience.seeds else None
    examples: list[Match] = found.examples if found else []
    knowledge: list[str] = []
    if seed is None and not examples:
        retriever, target = retriever_of(config.experience.retriever), target_of(config.evaluator)
        passages = retriever.search("fusion", task.operators, limit=PASSAGES, target=target)
        knowledge = [f"{one.path}: {one.heading}" for one in passages]
    return {
        "task": task.name,
        "target": target_of(config.evaluator).name,
        "library": str(memory.path) if memory else None,
        "excluded": memory.is_excluded if memory else False,
        "seed": seed.data() if seed else None,
        "examples": [one.data() for one in examples],
        "knowledge": knowledge,
    }


def _cells(one: dict[str, Any]) -> list[str]:
    score = (
        interval(one["as_score"], one["as_low"], one["as_high"]) if one["as_score"] else "not measured here"
    )
    return [one["why"], ", ".join(one["operators"]), score, f"{one['source']}: {one['task']}"]
