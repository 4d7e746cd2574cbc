"""The controller: islands side by side, each a row of episodes until a stopping rule or a person ends it.

All state is in the store. What is in flight when the process dies is taken up by the next that locks the run.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from passagent.errors import PassagentError
from passagent.models.ensemble import Ensemble
from passagent.search.distilling import distil
from passagent.search.episode import clear_workspaces, run_claimed
from passagent.search.events import Trouble
from passagent.search.finalists import confirm
from passagent.search.migration import round_of
from passagent.search.session import Session, Stopping
from passagent.store import calls, episodes, nodes, runs
from passagent.store.episodes import Episode

log = logging.getLogger("passagent.search")

BEAT_S = 5.0
"""Between two signs of life, s."""


@dataclass(frozen=True)
class Outcome:
    """How a session ended."""

    state: str
    """`finished` (a stopping rule) or `stopped` (a person)."""
    reason: str


async def search(session: Session) -> Outcome:
    """Search until a stopping rule or `session.stop` ends it. Everything is stored; the run can be resumed.

    Raises UsageError if another process works on the run, and what model and evaluator raise: what the other
    islands have in flight is finished first.
    """
    store, run = session.store, session.run
    session.owner = runs.lock(store, run.id)
    lost = calls.lose_all(store, run.id)
    if lost:
        session.on_event(Trouble(f"at most {lost} model calls were lost, under way when the process died"))
    state, reason = "failed", "the process ended"
    try:
        await _islands(session)
        if not session.is_interrupted:
            await confirm(session)
        state = "stopped" if session.is_interrupted else "finished"
        reason = session.stop_reason or "all episodes are done"
    except asyncio.CancelledError:
        state, reason = "stopped", "interrupted"
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, PassagentError) else f"{type(error).__name__}: {error}"
        raise
    finally:
        try:
            runs.release(store, run.id, session.owner, state, reason, session.elapsed_s)
        except PassagentError as error:
            log.warning("the run's end could not be stored: %s", error)
        clear_workspaces(session)
        if session.distiller is not None:
            await session.distiller.close()
    return Outcome(state, reason)


async def _islands(session: Session) -> None:
    """Run every island and the heartbeat; the first error stops the others at their next safe place."""
    beat = asyncio.create_task(_beat(session))
    islands = [asyncio.create_task(_island(session, island)) for island in range(session.run.islands)]
    first: BaseException | None = None
    try:
        waiting = {beat, *islands}
        while waiting != {beat} and waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is not None:
                    first = first or error
                    session.stop(f"an error: {error}")
        if first is not None:
            raise first
    finally:
        for task in (beat, *islands):
            task.cancel()
        await asyncio.gather(beat, *islands, return_exceptions=True)


async def _island(session: Session, island: int) -> None:
    """One episode after the other."""
    try:
        while True:
            session.check()
            await distil(session, island)
            episode = episodes.claim(session.store, session.run, island, session.owner)
            if episode is None:
                return
            await _wait_for_others(session, episode)
            await run_claimed(session, episode)
            session.notify()
    except Stopping as stopping:
        log.info("island %d stops: %s", island, stopping)


async def _wait_for_others(session: Session, episode: Episode) -> None:
    """Return when a migrant and a model may be chosen for `episode`, whichever of the islands is faster.

    A migrant: at once if the island does not stagnate, else when all have finished the rounds before. A model
    of an ensemble: when all have finished the rounds up to the last but one. Raises Stopping.
    """
    needed = round_of(session.run, episode.number)
    island = runs.islands(session.store, session.run.id)[episode.island]
    if island.stagnant < session.config.search.stagnation:
        needed = needed - 1 if isinstance(session.model, Ensemble) else 0
    while any(other.episodes < needed for other in runs.islands(session.store, session.run.id)):
        session.check()
        await session.changed.wait()


async def _beat(session: Session) -> None:
    """Signs of life for the run and the nodes under evaluation."""
    while True:
        runs.beat(session.store, session.run.id, session.owner, session.elapsed_s)
        nodes.beat(session.store, session.run.id, session.owner)
        await asyncio.sleep(BEAT_S)
