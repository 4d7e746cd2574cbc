"""`passagent eval`: judge a pass directory on a task, and write its reward."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from passagent.agent import validator
from passagent.agent.validator import Judges, judged
from passagent.config import Config, load_config
from passagent.errors import PassagentError
from passagent.evaluator.result import Candidate
from passagent.evaluator.service.known import Known
from passagent.models.types import Model
from passagent.store import Store
from passagent.tasks import Task, load_task


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
    from passagent.view.evaluation import evaluation_text

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


def reward(
    task_path: str,
    pass_dir: str | None,
    preset: str | None,
    settings: dict[str, Any],
    out: str,
    as_json: bool,
) -> None:
    """Judge a pass_dir as PassEnv does, write its reward into `out` and print it. Raises PassagentError."""
    from passagent.data.rl.verify import write_reward

    value, judged = write_reward(task_path, pass_dir, preset, settings, Path(out))
    status, score = (None, None) if isinstance(judged, str) else (judged.status, judged.as_score)
    if as_json:
        print(json.dumps({"reward": value, "status": status, "as_score": score}))
    elif isinstance(judged, str):
        print(f"reward {value}: {judged}")
    else:
        print(f"reward {value}: {status}, AS {'none' if score is None else f'{score:.4f}'}")


async def _evaluate(
    store: Store, task: Task, candidate: Candidate, config: Config, model: Model | None, fresh: bool
) -> Known:
    from passagent.evaluator.fleet.opening import open_pool

    pool = open_pool(config.evaluator, tell=lambda text: print(f"passagent: {text}", file=sys.stderr))
    try:
        return await judged(Judges(pool.evaluate, model), store, task, candidate, config, fresh)
    finally:
        await pool.close()
        if model is not None:
            await model.close()
