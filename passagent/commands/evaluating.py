"""`passagent eval`, `passagent tasks check` and `passagent tasks list`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

from passagent.agent import validator
from passagent.agent.judged import judged
from passagent.config import Config, load_config
from passagent.confine.environment import import_path
from passagent.errors import MachineFault, PassagentError, TaskError
from passagent.evaluator.result import Candidate
from passagent.evaluator.service.known import Known
from passagent.machine_memory import memory_kills
from passagent.models.types import Model
from passagent.store import Store
from passagent.tasks import Task, load_task
from passagent.tasks.examples import PREFIX, examples, locate
from passagent.tasks.reader import subgraph_places


def evaluate(
    task_path: str,
    pass_dir: str | None,
    preset: str | None,
    settings: dict[str, Any],
    runs_dir: str,
    fresh: bool,
    as_json: bool,
) -> None:
    """Judge a pass_dir (default: the task's own), or answer from the store, and print the evaluation.

    Raises PassagentError, also, once it is printed, for a judgement that is not `ok`.
    """
    from passagent.report.evaluation import evaluation_text

    task = load_task(task_path)
    config = load_config(preset, settings)
    candidate = Candidate.from_dir(pass_dir or task.path / "pass_dir")
    model = validator.open_validator(config)  # a wrong one is an error before anything is measured
    with Store.open(runs_dir) as store:
        found = asyncio.run(_evaluate(store, task, candidate, config, model, fresh))
    evaluation = found.evaluation
    if as_json:
        # model_dump_json: it knows how to write nan and inf
        shown = json.loads(evaluation.model_dump_json())
        print(json.dumps(shown | {"measured_at": found.measured_at, "from_store": found.from_store}))
    else:
        print(evaluation_text(evaluation))
        if evaluation.validator is not None:
            print(validator.opinion_line(evaluation.validator))
        if found.from_store:
            print(f"measured {found.measured_at}, from the store; --fresh measures again")
    if evaluation.status != "ok":
        raise PassagentError(f"{evaluation.task}: the pass is judged {evaluation.status}, not ok")


async def _evaluate(
    store: Store, task: Task, candidate: Candidate, config: Config, model: Model | None, fresh: bool
) -> Known:
    from passagent.evaluator.service.pool import EvaluatorPool

    pool = EvaluatorPool(config.evaluator, tell=lambda text: print(f"passagent: {text}", file=sys.stderr))
    try:
        return await judged(pool.evaluate, store, task, candidate, config, model, fresh)
    finally:
        await pool.close()
        if model is not None:
            await model.close()


def check_tasks(path: str, device: str, as_json: bool) -> None:
    """Print what is wrong with a task's subgraphs. Raises PassagentError if any is not in order."""
    from passagent.report.text import table

    results = _check_beside(path, device)
    bad = [result for result in results if not result["ok"]]
    if as_json:
        print(json.dumps({"task": path, "ok": not bad, "graphs": results}))
    else:
        columns = ["runnable", "serialisable", "analysable"]
        rows = [[r["name"], *("yes" if r[column] else "no" for column in columns)] for r in results]
        print(table(["graph", *columns], rows, drop=["analysable", "serialisable"]))
        for result in bad:
            for problem in result["problems"]:
                print(problem)
    if bad:
        raise PassagentError(
            f"{path}: {len(bad)} of {len(results)} subgraphs are not in order: {bad[0]['name']}"
        )


def list_tasks(as_json: bool) -> None:
    """Print the example tasks: name, operators, subgraphs and their dtypes."""
    from passagent.report.text import table

    found = {f"{PREFIX}{name}": load_task(path) for name, path in examples().items()}
    if as_json:
        shown = [
            {
                "task": name,
                "path": str(task.path),
                "operators": task.operators,
                "subgraphs": len(task.subgraphs),
            }
            for name, task in found.items()
        ]
        print(json.dumps({"tasks": shown}))
        return
    rows = [[name, str(len(task.subgraphs)), _shown_operators(task)] for name, task in found.items()]
    print(table(["task", ">subgraphs", "operators"], rows, indent=""))


def _shown_operators(task: Task, width: int = 32) -> str:
    """The operator sequence, cut after a whole name where it is wider than `width`."""
    shown: list[str] = []
    for name in task.operators:
        if len(", ".join([*shown, name, "..."])) > width:
            return ", ".join([*shown, "..."])
        shown.append(name)
    return ", ".join(shown)


def _check_beside(path: str, device: str) -> list[dict[str, Any]]:
    """The CheckResult of each subgraph as plain data, and `ok`, from a process beside this one.

    Raises TaskError for a subgraph that ends that process, as one does that takes all memory.
    """
    root, kills = locate(path), memory_kills()
    places = subgraph_places(root)
    command = [sys.executable, "-m", "passagent.tasks.constraints", str(root), device]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | import_path(), check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if found and "fault" in found[-1]:
        raise MachineFault(found[-1]["fault"])
    if len(found) < len(places):
        too_large = "needs more memory than there is; use a smaller task"
        ended = too_large if memory_kills() > kills else "ends the process that runs it"
        raise TaskError(f"{places[len(found)][0]}: {ended}")
    return found
