"""`passagent profile`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from passagent.agent.validator import Judges, judged
from passagent.config import Config, load_config
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.candidate import Candidate
from passagent.evaluator.result import Evaluation
from passagent.store import Store
from passagent.tasks import Task, load_task


def profile(
    pass_dir: str,
    task_path: str,
    preset: str | None,
    settings: dict[str, Any],
    runs_dir: str,
    deep: bool,
    as_json: bool,
) -> None:
    """Judge a pass directory, or answer from the store, and say what limits it; `deep`: with counters.

    Raises PassagentError, also, once it is printed, for a pass that is not judged `ok`.
    """
    from passagent.evaluator.fleet.opening import LOCAL
    from passagent.experience.profiling.profiler import profile_evaluated
    from passagent.view.profile_text import profile_text

    task, config = load_task(task_path), load_config(preset, settings)
    if config.evaluator.pool != LOCAL:
        raise UsageError(f"--pool {config.evaluator.pool}: profiles are made on devices of this machine")
    candidate = Candidate.from_dir(pass_dir)
    with Store.open(runs_dir) as store:
        evaluation = asyncio.run(_evaluated(store, task, candidate, config))
    found = profile_evaluated(task, candidate, evaluation, config.evaluator.device, deep)
    print(found.as_json() if as_json else profile_text(found))
    if evaluation.status != "ok":
        raise PassagentError(f"{evaluation.task}: the pass is judged {evaluation.status}, not ok")


async def _evaluated(store: Store, task: Task, candidate: Candidate, config: Config) -> Evaluation:
    from passagent.evaluator.fleet.opening import open_pool

    pool = open_pool(config.evaluator, tell=lambda text: print(f"passagent: {text}", file=sys.stderr))
    try:
        known = await judged(Judges(pool.evaluate), store, task, candidate, config)
        return known.evaluation
    finally:
        await pool.close()
