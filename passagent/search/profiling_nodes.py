"""What limits a candidate, for its author: a profile between evaluations, never beside one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from passagent.agent.taskfiles import ToolError
from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError
from passagent.evaluator.candidate import Candidate
from passagent.evaluator.fleet.opening import LOCAL
from passagent.evaluator.result import Evaluation
from passagent.evaluator.service.known import recall
from passagent.search.session import Session
from passagent.store import profiles
from passagent.tasks import Task

if TYPE_CHECKING:
    from passagent.experience.profiling.profiler import Profiled


async def limits_of(session: Session, files: dict[str, str], deep: bool) -> str:
    """At most 12 lines on a candidate of the search, whose profile is kept.

    Raises ToolError for one that was not evaluated.
    """
    candidate = Candidate(files)
    known = recall(session.store, session.task, candidate, session.environment, unstable=True, bar=0.0)
    evaluation = known.evaluation if known else None
    work = profiled(session.task, candidate, evaluation, session.config.evaluator, deep)
    found = await session.in_time(work)
    from passagent.view.profile_text import profile_text

    told = profile_text(found), found.as_json()
    profiles.keep_profile(session.store, session.run.id, candidate.key, deep, *told)
    return found.text()


async def profiled(
    task: Task, candidate: Candidate, evaluation: Evaluation | None, config: EvaluatorConfig, deep: bool
) -> Profiled:
    """The profile of an evaluated candidate. Raises ToolError where there is nothing to profile.

    The device is leased meanwhile: what is timed, by this program or another, waits.
    """
    if config.pool != LOCAL:
        raise ToolError("profile: the device is on another machine; go by what pass_evaluator tells")
    if evaluation is None:
        raise ToolError("profile: these files were not evaluated yet; call pass_evaluator first")
    from passagent.evaluator.hardware.devices import first_device
    from passagent.experience.profiling.profiler import profile_evaluated

    try:
        device = first_device(config.device)
        return await asyncio.to_thread(profile_evaluated, task, candidate, evaluation, device, deep)
    except PassagentError as error:
        raise ToolError(f"profile: {error}") from error
