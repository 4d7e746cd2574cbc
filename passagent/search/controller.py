"""The controller: islands side by side, each a row of episodes until a stopping rule or a person ends it.

All state is in the store. Any number of processes may work on a run: each claims what it can, and what a dead
one had under way is taken up by the others, or by the next that joins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from passagent.errors import PassagentError
from passagent.search.claimed import run_claimed
from passagent.search.distilling import distil, distil_rest
from passagent.search.finalists import confirm, confirm_now_and_then
from passagent.search.garbage import seldom_collected
from passagent.search.joining import join
from passagent.search.remeasure import measure_again
from passagent.search.seeding import seed
from passagent.search.session import Session, Stopping
from passagent.search.waiting import is_ready
from passagent.store import episodes, participants, runs
from passagent.store.episodes import Episode
from passagent.store.owner import named

log = logging.getLogger("passagent.search")

POLL_S = 0.25
"""Between two looks at what a person asks for and which other processes there are, s."""
LISTEN_S = 5e-4, 0.01
"""Between two looks at whether one of them has written anything, s: when one just did, and in silence."""


@dataclass(frozen=True)
class Outcome:
    """How a session ended."""

    state: str
    """`finished` (a stopping rule) or `stopped` (a person)."""
    reason: str
    is_last: bool = True
    """Whether it ended the run, too: no other process goes on with it."""


async def search(session: Session) -> Outcome:
    """Search until a stopping rule or `session.stop` ends it. Everything is stored; the run can be resumed.

    Raises UsageError where others work on the run on other terms, and what model and evaluator raise: what
    the other islands have in flight is finished first.
    """
    try:
        await join(session)
    except Stopping as stopping:
        return Outcome("stopped", str(stopping), is_last=False)
    with seldom_collected():
        return await _searched(session)


async def _searched(session: Session) -> Outcome:
    """The work of a session that has joined; see search."""
    state, reason, is_last = "failed", "the process ended", False
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
            is_last = participants.leave(
                session.store, session.run.id, session.owner, session.watch, state, reason, session.elapsed_s
            )
        except PassagentError as error:
            log.warning("the session's end could not be stored: %s", error)
        if session.describing is not None:
            session.describing.cancel()
            await asyncio.wait({session.describing})
        if session.distiller is not None:
            await session.distiller.close()
    return Outcome(state, reason, is_last)


async def _watched(session: Session) -> None:
    """Do the session's work with an eye on the others and on the time, at whose end it is cut.

    Without a sign of life of its own it cannot go on.
    """
    work, watch = asyncio.create_task(_work(session)), asyncio.create_task(watch_run(session))
    try:
        while not (work.done() or watch.done()) and (left_s := session.left_s) > 0:
            await asyncio.wait(
                {work, watch}, timeout=min(left_s, POLL_S), return_when=asyncio.FIRST_COMPLETED
            )
        if not (work.done() or watch.done()):
            session.end(f"{session.config.search.max_time_s:g} s have passed")
            session.events.note("the time is over: what is under way is cut")
            return
        if watch.done() and (error := watch.exception()) is not None:
            session.stop(f"an error: {error}")
            await asyncio.gather(work, return_exceptions=True)
            raise error
        await work
    finally:
        for task in (work, watch):
            task.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def _work(session: Session) -> None:
    try:
        if session.memory is not None:  # what a process before this one may have left undone
            session.memory.learn(session.store, session.run)
            session.memory.settle(session.store, session.run)
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
    islands = [asyncio.create_task(_island(session, island)) for island in range(session.run.islands)]
    first: BaseException | None = None
    try:
        for task in asyncio.as_completed(islands):
            try:
                await task
            except Exception as error:
                first = first or error
                session.stop(f"an error: {error}")
        if first is not None:
            raise first
    finally:
        for island in islands:
            island.cancel()
        await asyncio.gather(*islands, return_exceptions=True)


async def _island(session: Session, island: int) -> None:
    """One episode after the other, as far as other processes leave the island to this one."""
    try:
        while (episode := await _claim(session, island)) is not None:
            await distil(session, island)
            await _wait_for_others(session, episode)
            episode = await run_claimed(session, episode)
            if episode.owner is not None:
                await distil(session, island)
                episodes.release(session.store, episode)
            session.notify()
            await confirm_now_and_then(session)
    except Stopping as stopping:
        log.info("island %d stops: %s", island, stopping)


async def _claim(session: Session, island: int) -> Episode | None:
    """The island's next episode, waited for while another process has the island; None if there is none.

    Who has its share of the islands lets the other processes go first for a moment. Raises Stopping.
    """
    is_patient = True
    with session.waiting(lambda: _holder(session, island)):
        while session.check().wanted != "stop_after_episodes":
            if is_patient and _has_share(session):
                is_patient = False
                await asyncio.sleep(2 * POLL_S)
                continue
            try:
                return episodes.claim(session.store, session.run, island, session.owner)
            except episodes.Held:
                is_patient = True
                await session.moved.wait()
    return None


def _holder(session: Session, island: int) -> str:
    """Which other process works on the island; empty if none does."""
    owner = episodes.holder(session.store, session.run.id, island)
    return f"{named(owner)} works on island {island}" if owner and owner != session.owner else ""


def _has_share(session: Session) -> bool:
    """Whether this process has as many of the islands as it would if all had equally many."""
    if not session.others:
        return False
    share = -(-session.run.islands // (1 + session.others))
    return episodes.held_by(session.store, session.run.id, session.owner) >= share


async def _wait_for_others(session: Session, episode: Episode) -> None:
    """Return when parent and model may be chosen for `episode`, whichever of the islands is faster.

    Raises Stopping, also when the run stops after its episodes: then the island that is waited for may begin
    nothing any more.
    """
    with session.waiting(lambda: f"island {episode.island} begins when the other islands are as far"):
        while not is_ready(session.store, session.run, session.config.search, session.model, episode):
            if session.check().wanted == "stop_after_episodes":
                raise Stopping("stopped by a person, after its episodes")
            await session.changed.wait()


async def _end(session: Session) -> None:
    """Wait until no process searches any more; one of them measures the finalists before the run ends.

    If that one dies, another one does. Raises what the evaluator raises.
    """
    store, run_id = session.store, session.run.id
    with session.waiting(lambda: _who_goes_on(session)):
        while not session.is_interrupted and not participants.is_over(store, run_id, session.owner):
            if participants.take_run(store, run_id, session.owner, "end"):
                try:
                    await distil_rest(session)
                    await confirm(session)
                finally:  # also where the time is over meanwhile
                    if session.memory is not None:
                        session.memory.remember(session.store, session.run, session.device_name)
                return
            await session.changed.wait()


def _who_goes_on(session: Session) -> str:
    """Which other processes work on the run; empty if this one measures the finalists."""
    if runs.get_run(session.store, session.run.id).owner == session.owner:
        return ""
    present = participants.present(session.store, session.run.id)
    others = [named(worker.owner) for worker in present if worker.owner != session.owner]
    return f"{', '.join(others)} still at work on the run" if others else ""


async def _listen(session: Session) -> None:
    """POLL_S pass; what other processes write meanwhile is told at once to who waits for it."""
    heard = time.monotonic()
    until = heard + POLL_S
    version = participants.version_of_data(session.store)
    while (left := until - (now := time.monotonic())) > 0:
        pause = min(max(LISTEN_S[0], (now - heard) / 4), LISTEN_S[1])
        await asyncio.sleep(min(left, pause) if session.others else left)
        if (seen := participants.version_of_data(session.store)) != version:
            version, heard = seen, time.monotonic()
            session.notify()


async def watch_run(session: Session) -> None:
    """Signs of life; the wishes of a person and the doings of other processes, passed on to who waits."""
    store, run_id = session.store, session.run.id
    seen, beaten = None, float("-inf")
    while True:
        if time.monotonic() - beaten >= participants.BEAT_S:
            beaten = time.monotonic()
            store.check_in_place()
            session.set_clock(participants.beat(store, run_id, session.owner, session.elapsed_s))
        others, dead, lost = participants.bury_dead(store, run_id, session.owner, session.watch)
        for worker in dead:
            told = f", {lost} model calls with it" if lost else ""
            session.events.note(f"{named(worker.owner)} died{told}; its work is taken over")
        session.others = sum(worker.role == "search" for worker in others)
        wanted = runs.get_run(store, run_id).wanted
        if wanted == "stop":
            session.stop("stopped by a person", interrupted=True)
        if (state := (wanted, len(others), participants.version_of_data(store))) != seen:
            seen = state
            session.events.look()
            session.notify_all()
        await _listen(session)
