"""An evaluation as a person asks for it: from the store if known, with a validator's opinion if wanted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from passagent.agent import validator
from passagent.config import Config
from passagent.evaluator.fleet.opening import environment_key
from passagent.evaluator.result import Candidate
from passagent.evaluator.service import known
from passagent.evaluator.service.known import Judge, Known
from passagent.models.types import Model
from passagent.store import Store
from passagent.store.database import now
from passagent.tasks import Task


async def judged(
    judge: Judge,
    store: Store | None,
    task: Task,
    candidate: Candidate,
    config: Config,
    model: Model | None,
    fresh: bool,
) -> Known:
    """The evaluation, from the store (unless `fresh`) or measured and stored; None for a store: kept nowhere.

    `model`: who is asked whether a right candidate cheats. Raises what `judge` and the model raise.
    """
    if store is None:
        found = Known(0, await judge(task.path, candidate), now(), from_store=False)
    else:
        environment = environment_key(config.evaluator)
        fits = partial(validator.settings_fit, config=config.validator)
        recalled = None if fresh else known.recall(store, task, candidate, environment, fits)
        found = recalled or await known.evaluate(judge, store, task, candidate, environment, fresh)
    if model is None or validator.is_settled(found.evaluation, config.validator):
        return found
    opinion = await validator.ask(model, task, candidate, config.validator)
    evaluation = validator.with_opinion(found.evaluation, opinion, config.evaluator)
    if store is None:
        return replace(found, evaluation=evaluation)
    return replace(
        found, id=known.keep(store, task, candidate, environment, evaluation), evaluation=evaluation
    )
