"""What eager does on the task, for the prompts: kept, else measured once while the first episode begins."""

from __future__ import annotations

import asyncio
import math
import time

from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError
from passagent.evaluator.fleet.opening import LOCAL
from passagent.evaluator.hardware.devices import first_device
from passagent.evaluator.reference import eager
from passagent.evaluator.reference.eager import EagerGraph
from passagent.search.session import Session
from passagent.search.writers import EXPERT
from passagent.store.episodes import Episode
from passagent.store.runs import SEEDS
from passagent.tasks import Task

WAIT_S = 20.0
"""An episode waits so long for it, s; then its prompt does without, and later ones have it."""
_LOOK_S = 0.2


async def describe(session: Session, episode: Episode) -> None:
    """Have `session.eager` known before an episode's prompt is composed, as far as WAIT_S go.

    A session that `waits_for_eager` waits as long as it takes: its prompt does not depend on how busy the
    device is. The expert reads the task itself and is not held up. Raises Stopping.
    """
    if session.eager:
        return
    session.eager = kept_eager(session.task, session.config.evaluator)
    if session.eager or episode.island == SEEDS or session.model.name == EXPERT:
        return
    if session.describing is None:
        session.describing = asyncio.create_task(_measure(session))
    until = math.inf if session.waits_for_eager else time.monotonic() + WAIT_S
    while not session.describing.done() and time.monotonic() < until:
        session.check()
        await asyncio.wait({session.describing}, timeout=_LOOK_S)


async def _measure(session: Session) -> None:
    """Ask the evaluator. A task or machine that fails here fails at the first candidate, too."""
    try:
        session.eager = await session.evaluator.describe(session.task.path)
    except PassagentError as error:
        session.events.note(f"eager could not be measured for the prompts: {error}")
    config = session.config.evaluator
    if session.eager and config.pool == LOCAL:
        eager.keep(session.task, config, first_device(config.device), session.eager)


def kept_eager(task: Task, config: EvaluatorConfig) -> tuple[EagerGraph, ...]:
    """What was measured of the task on this machine within a day; () if nothing was, or on others."""
    return eager.kept(task, config, first_device(config.device)) if config.pool == LOCAL else ()
