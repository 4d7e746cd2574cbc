"""The controller: islands side by side, each a row of episodes until a stopping rule or a person ends it.

All state is in the store. One process drives a run; what a dead one had under way the next one takes up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from passagent import __version__
from passagent.agent.prompt import prompts_hash
from passagent.errors import PassagentError
from passagent.evaluator.result import Candidate
from passagent.models.ensemble import model_names
from passagent.search.candidates import judge
from passagent.search.expansion import conclude, expand
from passagent.search.remeasure import confirm, confirm_contender, environment_of, measure_again
from passagent.search.run_models import distil, distil_rest
from passagent.search.session import EXPERT, Session, Stopping
from passagent.search.thread import side_by_side
from passagent.store import SEEDS, episodes, nodes, runs, sessions
from passagent.store.sessions import driven

log = logging.getLogger("passagent.search")

POLL_S = 0.25
"""Between two looks at what a person asks for, s."""


async def search(session: Session) -> None:
    """Search until a stopping rule (the run is `finished`) or `session.stop` (`stopped`) ends it.

    Everything is stored; the run can be resumed.

    Raises UsageError where another process drives the run, and what model and evaluator raise: what the other
    islands have in flight is finished first.
    """
    with driving(session):
        state, reason = "failed", "the process ended"
        try:
            await _watched(session)
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
                sessions.end(session.store, session.run.id, state, reason, session.elapsed_s)
            except PassagentError as error:
                log.warning("the session's end could not be stored: %s", error)
            if session.distiller is not None:
                await session.distiller.close()


async def _watched(session: Session) -> None:
    """Do the session's work with an eye on a person's wishes and on the time, at whose end it is cut."""
    async with side_by_side(_work(session), watch_run(session)) as (work, watch):
        while not (work.done() or watch.done()) and (left_s := session.left_s) > 0:
            await asyncio.wait(
                {work, watch}, timeout=min(left_s, POLL_S), return_when=asyncio.FIRST_COMPLETED
            )
        if not (work.done() or watch.done()):
            session.stop(f"{session.config.search.max_time_s:g} s have passed")
            session.events.note("the time is over: what is under way is cut")
            return
        if watch.done() and (error := watch.exception()) is not None:
            session.stop(f"an error: {error}")
            await asyncio.gather(work, return_exceptions=True)
            raise error
        await work


async def _work(session: Session) -> None:
    try:
        await measure_again(session)
        await seed(session)
        await _islands(session)
        if runs.get_run(session.store, session.run.id).wanted == "stop_after_episodes":
            session.stop("stopped by a person, after its episodes", interrupted=True)
        if not session.is_interrupted:
            await _end(session)
    except Stopping as stopping:
        log.info("the search stops: %s", stopping)


async def _islands(session: Session) -> None:
    """Run every island; the first error stops the others at their next safe place."""
    first: BaseException | None = None
    async with side_by_side(*(_island(session, island) for island in range(session.run.islands))) as islands:
        for task in asyncio.as_completed(islands):
            try:
                await task
            except Exception as error:
                first = first or error
                session.stop(f"an error: {error}")
        if first is not None:
            raise first


async def _island(session: Session, island: int) -> None:
    """One episode after the other."""
    try:
        while session.check().wanted != "stop_after_episodes":
            episode = episodes.next_episode(session.store, session.run, island)
            if episode is None:
                return
            await distil(session, island)  # what a process before this one may have left
            await expand(session, episode)
            await distil(session, island)
            session.notify()
            await confirm_contender(session, episode)
    except Stopping as stopping:
        log.info("island %d stops: %s", island, stopping)


async def _end(session: Session) -> None:
    """Measure the finalists before the run ends. Raises what the evaluator raises."""
    try:
        await distil_rest(session)
        await confirm(session)
    finally:  # also where the time is over meanwhile
        if session.memory is not None:
            session.memory.remember(session.store, session.run, session.device_name)


async def watch_run(session: Session) -> None:
    """Store the time searched now and then, and pass the wishes of a person on to who waits."""
    store, run_id = session.store, session.run.id
    saved, before = float("-inf"), "run"
    while True:
        if time.monotonic() - saved >= sessions.SAVE_S:
            saved = time.monotonic()
            store.check_in_place()
            sessions.save_time(store, run_id, session.elapsed_s)
        request = runs.get_run(store, run_id).wanted
        if request == "stop":
            session.stop("stopped by a person", interrupted=True)
        if request != before:
            before = request
            session.notify()
        await asyncio.sleep(POLL_S)


async def seed(session: Session) -> None:
    """Return when the run has its seeds.

    Raises what the evaluator raises. A stop is left to the islands, who notice it, too.
    """
    store, count = session.store, 0
    if EXPERT not in model_names(session.model):
        count = session.config.search.expert_seeds
    try:
        while session.check().wanted != "stop_after_episodes":
            episode = episodes.next_episode(store, session.run, SEEDS, count)
            if episode is None:
                return
            planted = [node for node in nodes.of_episode(store, episode.id) if node.call_id == nodes.PLANTED]
            if not planted:  # the expert's conversation
                await expand(session, episode)
                continue
            if planted[0].state != "done":
                await judge(session, planted[0], Candidate(nodes.get_files(store, planted[0])))
            conclude(session, episode, None, nodes.PLANTED)
    except Stopping as stopping:
        log.info("no more seeds: %s", stopping)


@contextmanager
def driving(session: Session) -> Iterator[None]:
    """Hold the run's lock, and begin a session on it. Raises UsageError while another process drives it."""
    store, run_id, config = session.store, session.run.id, session.config
    terms = {
        "version": __version__,
        "config": config.model_dump_json(),
        "prompts": prompts_hash(),
        "environment": environment_of(session),
    }
    lock = sessions.lock_run(store, run_id)
    if lock is None:
        raise driven(store, run_id)
    try:
        with store.transaction():
            notes = sessions.begin(store, run_id, **terms)
            runs.update_run(
                store,
                run_id,
                config=terms["config"],
                iters=config.search.iters,
                model=config.model.label,
                device=config.evaluator.device,
            )
        session.run = runs.get_run(store, run_id)
        _ = session.machine  # measured before anything is timed
        session.started = time.monotonic()
        for note in notes:
            session.events.note(note)
        yield
    finally:
        os.close(lock)
