"""A collection from what was asked for to its table, for the command line and for Python alike.

Many conversations at once share one evaluator pool and one budget. A later run of the same command goes on
from the database: it makes the trials that are not finished there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent.config import Config, load_config
from passagent.data.collect import trials
from passagent.data.collect.budget import CollectionBudget, set_elapsed
from passagent.data.collect.trials import Listing, Outcome, Pair, Summary
from passagent.errors import InfrastructureError, MachineFault, PassagentError, TaskError, UsageError
from passagent.evaluator.fleet.opening import check_devices, open_pool
from passagent.evaluator.judging.effort import check_task_room
from passagent.events import Event
from passagent.models import open_model
from passagent.models.probe import check_models
from passagent.models.types import Model
from passagent.search.controller import search, seldom_collected
from passagent.search.run_files import run_log
from passagent.search.session import Evaluator, Session
from passagent.search.setup import Prepared, check_money, check_roles, new_run, open_session
from passagent.search.startup import Parts
from passagent.store import Store
from passagent.system.resumable import locked
from passagent.tasks import load_task
from passagent.tasks.tasklist import find_tasks, parse_shard

log = logging.getLogger("passagent.collect")

_PRESET = "teacher"
"""The preset without `--config`."""
FAULTS = 3
"""Trials in a row that the machine failed, after which the collection ends: the next ones would fail, too."""
_TICK_S = 0.5
"""Between two looks at the budget, s."""
_SAVE_S = 5.0
"""Between two notes of the time spent, s: a killed process loses at most this much of it."""


@dataclass(frozen=True)
class Request:
    """The collection that is asked for."""

    tasks: Sequence[str]
    settings: dict[str, Any]
    preset: str | None = None
    root: str | None = None
    trials: int = 2
    parallel: int = 4
    shuffle: int | None = None
    shard: str | None = None
    max_steps: int | None = None
    runs_dir: str = "runs"


class Watch:
    """An observer of a collection; this one does nothing."""

    def event(self, pair: Pair, event: Event) -> None:
        """Take an event of a conversation."""

    def say(self, text: str) -> None:
        """Take a remark."""

    def tick(self, budget: CollectionBudget) -> None:
        """Take note that half a second went by."""

    def ended(self, outcome: Outcome, error: str | None) -> None:
        """Take the outcome of a trial that came to its end, was stopped, or failed with `error`."""


@dataclass(frozen=True)
class Collected:
    """The result of a collection."""

    runs_dir: Path
    summaries: list[Summary]
    """PassNet's figures of all finished trials in the database, of each model."""
    trials: int
    """The number that was asked for."""
    elapsed_s: float
    stopped: str | None
    """Why it stopped before all was made."""
    is_interrupted: bool
    unfinished: list[dict[str, Any]]
    """`run`, `task`, `trial` and `reason` of each that is to be gone on with."""
    failed: dict[str, str]
    """Each run that the machine failed, and why: the same call tries it again."""
    broken: dict[str, str]
    """Directory of each task that could not be loaded or judged, and why."""
    too_broken: PassagentError | None
    """The error to raise where too many of the tasks are broken."""


@dataclass
class Collection:
    """A session's work on a collection."""

    store: Store
    config: Config
    """The trials' settings, but for their seeds; its budgets are the collection's."""
    model: Model
    parts: Parts
    listing: Listing
    pairs: list[Pair]
    parallel: int
    done: dict[Pair, str]
    """The trials that were finished before, and their runs."""
    log: Path
    watch: Watch = field(default_factory=Watch)
    unfit: dict[str, str] = field(default_factory=dict)
    """Directory of each task that could not be loaded or judged, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """Each run that the machine failed, and why: it is tried again by the next session."""
    stop_reason: str | None = None
    """Why the collection stops before all is made."""
    is_interrupted: bool = False
    """A person stopped it."""
    _sessions: dict[str, Session] = field(default_factory=dict)
    """The sessions of the runs under way."""
    _faults: int = 0
    """Trials in a row that the machine failed."""
    _fault: str | None = None

    def __post_init__(self) -> None:
        limits = trials.budgets_of(self.config)
        self.budget = CollectionBudget(self.store, self.config.model.label, limits, self.stop)
        self.budget.started = self.parts.begun

    def summary(self) -> Summary:
        """Sum up the trials that were finished before."""
        summary = Summary(self.config.model.label, self.config.evaluator.b)
        for run_id in self.done.values():
            summary.add(trials.outcome(self.store, run_id))
        return summary

    def stop(self, reason: str, interrupted: bool = False) -> None:
        """Begin no more trials, and stop those under way, to be gone on with. The first reason counts."""
        self.stop_reason = self.stop_reason or reason
        self.is_interrupted = self.is_interrupted or interrupted
        for session in self._sessions.values():
            session.stop(reason, interrupted=True)

    async def run(self, watch: Watch, begun: Callable[[Collection], object]) -> Collected:
        """Make the trials that are not made yet. `begun` gets the collection, by which it can be stopped.

        Raises UsageError for a model that cannot be asked, MachineFault (a full disk) and passagent's own
        errors once the other conversations have stopped; InfrastructureError after FAULTS failed trials.
        """
        parts, config, todo = self.parts, self.config, [p for p in self.pairs if p not in self.done]
        if parts.model is None and todo:
            await check_models(config)
        evaluator = parts.evaluator or open_pool(config.evaluator, tell=watch.say)
        self.watch = watch
        begun(self)
        try:
            with seldom_collected():
                await self._converse_all(todo, evaluator)
        except PassagentError as error:
            log.exception("the collection ended with an error")
            if not isinstance(error, UsageError):
                error.args = (f"{error}; everything so far is stored, the same command goes on",)
            raise
        finally:
            await self.model.close()
            await evaluator.close()
        unfinished = []
        for pair in self.pairs:
            run = trials.find_trial(self.store, pair, config.model.label)
            if run is not None and run.state != "finished" and run.id not in self.failed:
                row = {"run": run.id, "task": run.task, "trial": run.trial, "reason": run.stop_reason}
                unfinished.append(row)
        return Collected(
            runs_dir=self.store.runs_dir,
            summaries=trials.summarise(trials.outcomes(self.store)),
            trials=len(self.pairs),
            elapsed_s=self.budget.elapsed_s,
            stopped=self.stop_reason,
            is_interrupted=self.is_interrupted,
            unfinished=unfinished,
            failed=self.failed,
            broken=self.listing.broken | self.unfit,
            too_broken=self.listing.too_broken(self.unfit),
        )

    async def _converse_all(self, pairs: Sequence[Pair], evaluator: Evaluator) -> None:
        waiting = iter(pairs)
        clock = asyncio.create_task(self._keep_time())
        workers = [asyncio.create_task(self._go_through(waiting, evaluator)) for _ in range(self.parallel)]
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
            self._save_time()

    def _save_time(self) -> None:
        set_elapsed(self.store, self.config.model.label, self.budget.elapsed_s)

    async def _keep_time(self) -> None:
        """End the collection when a limit is reached, and store the time spent now and then."""
        saved = 0.0
        try:
            while True:
                if reason := self.budget.reached():
                    self.stop(reason)
                if self.budget.elapsed_s - saved >= _SAVE_S:
                    self.store.check_in_place()
                    self._save_time()
                    saved = self.budget.elapsed_s
                self.watch.tick(self.budget)
                await asyncio.sleep(_TICK_S)
        except Exception as error:  # raised by `run`, once the conversations have stopped
            self.stop(f"an error: {error}")
            raise

    async def _go_through(self, waiting: Iterator[Pair], evaluator: Evaluator) -> None:
        """Make one trial after the other; the one that is under way when the time is over is cut."""
        try:
            async with asyncio.timeout(self.budget.left_s) as limit:
                for pair in waiting:
                    if self.stop_reason is not None:
                        return
                    if str(pair.entry.path) not in self.unfit:
                        await self._trial(pair, evaluator)
        except TimeoutError:
            if not limit.expired():
                raise
            self.stop(self.budget.reached() or "the time is over")

    async def _trial(self, pair: Pair, evaluator: Evaluator) -> None:
        """Make or go on with a trial. A failure of its task or of the machine is noted."""
        error: str | None = None
        place = str(pair.entry.path)
        try:
            await self._converse(pair, evaluator)
            self._faults = 0
        except (UsageError, MachineFault):
            raise
        except TaskError as failure:
            log.exception("%s could not be judged", pair)
            error = self.unfit[place] = str(failure)
        except PassagentError as failure:
            log.exception("%s failed", pair)
            error = str(failure)
            self._faults += 1
            if self._faults >= FAULTS and self._fault is None:
                self._fault = error
                self.stop(f"an error: {error}")
        run = trials.find_trial(self.store, pair, self.config.model.label)
        if run is not None:
            if error is not None and place not in self.unfit:
                self.failed[run.id] = error
            self.watch.ended(trials.outcome(self.store, run.id), error)
        elif error is not None:
            self.watch.say(f"{pair}: {error}")

    async def _converse(self, pair: Pair, evaluator: Evaluator) -> None:
        """Run the trial's conversation until it comes to an end or is stopped. Raises PassagentError."""
        config = trials.config_of(self.config, pair.trial)
        task = load_task(pair.entry.path)
        if task.key != pair.entry.key:
            raise TaskError(f"{pair.entry.path}: the task has changed since the collection began")
        check_task_room(task, config.evaluator.device)
        with self.store.transaction():
            run = trials.find_trial(self.store, pair, config.model.label)
            run = run or new_run(self.store, task, config, pair.trial)

        def on_event(event: Event) -> None:
            self.watch.event(pair, event)

        prepared = Prepared(self.store, run, task, config, self.model, self.parts)
        session = open_session(prepared, on_event, evaluator)
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


@contextmanager
def open_collection(request: Request, parts: Parts | None = None) -> Iterator[Collection]:
    """Open the collection in its database, which nobody else collects into meanwhile.

    Raises UsageError before anything is written; PassagentError where no task can be loaded.
    """
    parts = parts or Parts()
    steps = request.max_steps
    limits = {} if steps is None else {"agent.max_steps": steps, "agent.max_evaluations": steps}
    settings = request.settings | limits
    shard = parse_shard(request.shard) if request.shard else (0, 1)
    config = trials.settings_of_trials(load_config(request.preset or _PRESET, settings), settings)
    check_roles(config.search)
    check_devices(config.evaluator)
    model: Model = parts.model or open_model(config.model)
    check_money(config, model)
    listing = trials.list_tasks(find_tasks(list(request.tasks), request.root))
    pairs = trials.pairs_of(listing.entries, request.trials, request.shuffle, shard)
    if not pairs:
        raise listing.too_broken({}) or UsageError("no trial is in this shard: there are too few")
    with (
        Store.open(request.runs_dir) as store,
        locked(store.runs_dir, "collect.lock"),
        run_log(store.runs_dir / "collect") as path,
    ):
        done = trials.finished_trials(store, pairs, config)
        yield Collection(store, config, model, parts, listing, pairs, request.parallel, done, path)
