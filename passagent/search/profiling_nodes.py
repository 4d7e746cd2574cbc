"""What limits a candidate of the search, for its author: a profile between evaluations, never beside one."""

from __future__ import annotations

import asyncio

from passagent.agent.taskfiles import ToolError
from passagent.cluster.opening import LOCAL
from passagent.errors import PassagentError
from passagent.evaluator.candidate import Candidate
from passagent.evaluator.service.known import recall
from passagent.search.session import Session


async def limits_of(session: Session, files: dict[str, str], deep: bool) -> str:
    """At most 12 lines on a candidate that was evaluated on this machine. Raises ToolError for another one.

    The device is leased meanwhile: what is timed, by this program or another, waits.
    """
    config, candidate = session.config.evaluator, Candidate(files)
    if config.pool != LOCAL:
        raise ToolError("profile: the device is on another machine; go by what pass_evaluator tells")
    known = recall(session.store, session.task, candidate, session.environment, unstable=True, bar=0.0)
    if known is None:
        raise ToolError("profile: these files were not evaluated yet; call pass_evaluator first")
    from passagent.evaluator.hardware.devices import first_device
    from passagent.profiling.profiler import profile_evaluated

    work = asyncio.to_thread(
        profile_evaluated, session.task, candidate, known.evaluation, first_device(config.device), deep
    )
    try:
        return (await session.in_time(work)).text()
    except PassagentError as error:
        raise ToolError(f"profile: {error}") from error
