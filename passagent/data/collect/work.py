"""The conversations of a collection: so many at once, on one evaluator pool and one budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from passagent.config import Config
from passagent.data.collect import trials
from passagent.data.collect.budget import CollectionBudget
from passagent.data.collect.trial_list import Pair, config_of
from passagent.data.collect.trials import Outcome
from passagent.errors import InfrastructureError, MachineFault, PassagentError, TaskError, UsageError
from passagent.evaluator.judging.effort import check_task_room
from passagent.events import Event
from passagent.models.types import Model
from passagent.search.controller import search, seldom_collected
from passagent.search.session import Evaluator, Session
from passagent.search.setup import Diagnose, new_run, open_session
from passagent.store import Store
from passagent.store.runs import Run
from passagent.tasks import load_task

log = logging.getLogger("passagent.data.collect")

FAULTS = 3
"""Trials in a row that the machine failed, after which the collection ends: the next ones would fail, too."""
_TICK_S = 0.5
"""Between two looks at the budget, s."""
_SAVE_S = 5.0
"""Between two notes of the time spent, s: what a killed process has not counted."""


class Watch(Protocol):
    """Somebody who looks on."""

    def event(self, pair: Pair, event: Event) -> None:
        """Something happened in a conversation."""
        ...

    def say(self, text: str) -> None:
        """Something to know."""
        ...

    def tick(self, budget: CollectionBudget) -> None:
        """Half a second went by."""
        ...

    def ended(self, outcome: Outcome, error: str | None) -> None:
        """A trial ended; its state says whether it came to its end, `error` what failed it."""
        ...


class Unwatched:
    """Nobody looks on."""

    def event(self, pair: Pair, event: Event) -> None:
        """See Watch."""

    def say(self, text: str) -> None:
        """See Watch."""

    def tick(self, budget: CollectionBudget) -> None:
        """See Watch."""

    def ended(self, outcome: Outcome, error: str | None) -> None:
        """See Watch."""


@dataclass
class Collection:
    """A session's work on a collection."""

    store: Store
    config: Config
    """Of the trials, but for their seeds; its budgets are the collection's."""
    model: Model
    evaluator: Evaluator
    watch: Watch
    diagnose: Diagnose | None = None
    unfit: dict[str, str] = field(default_factory=dict)
    """Directory of each task that could not be loaded or judged, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """Each run that the machine failed, and why: it is tried again by the next session."""
    stop_reason: str | None = None
    """Why the collection stops before all is made."""
    is_interrupted: bool = False
    """A person stopped it."""
    _sessions: dict[str, Session] = field(default_factory=dict)
    """Of the runs under way."""
    _faults: int = 0
    """Trials in a row that the machine failed."""
    _fault: str | None = None

    def __post_init__(self) -> None:
        self.budget = CollectionBudget(self.store, self.config.model.label, self.config.search, self.stop)

    def stop(self, reason: str, interrupted: bool = False) -> None:
        """Begin no more trials, and stop those under way, to be gone on with. The first reason counts."""
        self.stop_reason = self.stop_reason or reason
        self.is_interrupted = self.is_interrupted or interrupted
        for session in self._sessions.values():
            session.stop(reason, interrupted=True)

    async def run(self, pairs: Iterable[Pair], parallel: int) -> None:
        """Make the trials of `pairs`, `parallel` at once.

        Raises UsageError (a model's key), MachineFault (a full disk) and whatever is passagent's own error,
        once the other conversations have stopped; InfrastructureError after FAULTS trials in a row.
        """
        with seldom_collected():
            await self._run(pairs, parallel)

    async def _run(self, pairs: Iterable[Pair], parallel: int) -> None:
        waiting = iter(pairs)
        clock = asyncio.create_task(self._keep_time())
        workers = [asyncio.create_task(self._go_through(waiting)) for _ in range(parallel)]
        first: BaseException | None = None
        try:
            for worker in asyncio.as_completed(workers):
                try:
                    await worker
                except Exception as error:
                    first = first or error
                    self.stop(f"an error: {error}")
            if clock.done():
                clock.result()
            if first is not None:
                raise first
            if self._fault is not None:
                raise InfrastructureError(
                    f"{FAULTS} trials in a row failed, the last one with: {self._fault}"
                )
        finally:
            for task in (clock, *workers):
                task.cancel()
            await asyncio.gather(clock, *workers, return_exceptions=True)
            self.budget.save_time()

    async def _keep_time(self) -> None:
        """End the collection when a limit is reached, and store the time spent now and then."""
        saved = 0.0
        try:
            while True:
                if reason := self.budget.reached():
                    self.stop(reason)
                if self.budget.elapsed_s - saved >= _SAVE_S:
                    self.store.check_in_place()
                    self.budget.save_time()
                    saved = self.budget.elapsed_s
                self.watch.tick(self.budget)
                await asyncio.sleep(_TICK_S)
        except Exception as error:  # raised by `run`, once the conversations have stopped
            self.stop(f"an error: {error}")
            raise

    async def _go_through(self, waiting: Iterable[Pair]) -> None:
        """Make one trial after the other; the one that is under way when the time is over is cut."""
        try:
            async with asyncio.timeout(self.budget.left_s) as limit:
                for pair in waiting:
                    if self.stop_reason is not None:
                        return
                    if str(pair.entry.path) not in self.unfit:
                        await self._trial(pair)
        except TimeoutError:
            if not limit.expired():
                raise
            self.stop(self.budget.reached() or "the time is over")

    async def _trial(self, pair: Pair) -> None:
        """Make or go on with a trial. What its task or the machine fails is noted."""
        run: Run | None = None
        error: str | None = None
        try:
            run = await self._converse(pair)
            self._faults = 0
        except UsageError:
            raise
        except TaskError as failure:
            log.exception("%s trial %d could not be judged", pair.entry.name, pair.trial)
            error = self.unfit[str(pair.entry.path)] = str(failure)
        except MachineFault:
            raise
        except PassagentError as failure:
            log.exception("%s trial %d failed", pair.entry.name, pair.trial)
            error = str(failure)
            self._count_fault(error)
        run = trials.find(self.store, pair.entry.key, self.config.model.label, pair.trial)
        if run is not None:
            if error is not None and str(pair.entry.path) not in self.unfit:
                self.failed[run.id] = error
            self.watch.ended(trials.outcome(self.store, run.id), error)
        elif error is not None:
            self.watch.say(f"{pair.entry.name} trial {pair.trial}: {error}")

    def _count_fault(self, error: str) -> None:
        self._faults += 1
        if self._faults >= FAULTS and self._fault is None:
            self._fault = error
            self.stop(f"an error: {error}")

    async def _converse(self, pair: Pair) -> Run:
        """The trial's run after its conversation came to an end or was stopped. Raises PassagentError."""
        config = config_of(self.config, pair.trial)
        task = load_task(pair.entry.path)
        if task.key != pair.entry.key:
            raise TaskError(f"{pair.entry.path}: the task has changed since the collection began")
        check_task_room(task, config.evaluator.device)
        with self.store.transaction():
            found = trials.find(self.store, task.key, config.model.label, pair.trial)
            run = found or new_run(self.store, task, config, pair.trial)
        session = open_session(
            self.store,
            run,
            task,
            config,
            lambda event: self.watch.event(pair, event),
            self.model,
            self.evaluator,
            self.diagnose,
        )
        session.budget, session.waits_for_eager = self.budget, True
        self._sessions[run.id] = session
        self.budget.take_up(run.id)
        try:
            await search(session)
        finally:
            self.budget.put_down(run.id)
            del self._sessions[run.id]
            if session.validator is not None:
                await session.validator.close()
        return run
