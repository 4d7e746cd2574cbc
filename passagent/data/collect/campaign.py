"""A collection from its options to its table, for the command line and for Python alike.

Many conversations at once share one evaluator pool and one budget of tokens, money, evaluations and time.
What was spent but the time is in the database: a later run of the same command goes on from there, and makes
the trials that are not finished. One process at a time collects into a database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from passagent.config import Config, SearchConfig, load_config
from passagent.data.collect import trials
from passagent.data.collect.trials import Outcome, Summary, Trial
from passagent.errors import InfrastructureError, MachineFault, PassagentError, TaskError, UsageError
from passagent.evaluator.fleet.opening import check_devices, open_pool
from passagent.evaluator.judging.effort import check_task_room
from passagent.extend import Model
from passagent.models import open_model
from passagent.models.probe import check_models
from passagent.options import CollectOptions, settings_of
from passagent.search import stop
from passagent.search.controller import search
from passagent.search.run_files import run_log
from passagent.search.session import Budget, Evaluator, Session
from passagent.search.setup import Parts, check_money, check_roles, new_run, open_session
from passagent.search.stop import Progress
from passagent.search.thread import side_by_side
from passagent.store import Store
from passagent.store.events import Event
from passagent.store.locks import locked
from passagent.tasks import load_task
from passagent.tasks.tasklist import find_tasks, parse_shard

log = logging.getLogger("passagent.collect")

FAULTS = 3
"""Trials in a row that the machine failed, after which the collection ends: the next ones would fail, too."""
_MOST_BROKEN = 0.2
"""Share of the tasks that may be broken; with more the collection counts as failed."""
_TICK_S = 0.5
"""Between two looks at the budget, s."""
_SPENT = (
    "SELECT coalesce(sum(input_tokens + output_tokens), 0) AS tokens, coalesce(sum(cost), 0.0) AS cost, "
    "coalesce(sum(evaluations), 0) AS evaluations FROM runs WHERE trial IS NOT NULL AND model = :model"
)


class Watch:
    """An observer of a collection; this one does nothing."""

    def event(self, trial: Trial, event: Event) -> None:
        """Take an event of a conversation."""

    def say(self, text: str) -> None:
        """Take a remark."""

    def ended(self, outcome: Outcome, error: str | None) -> None:
        """Take the outcome of a trial that came to its end, was stopped, or failed with `error`."""


@dataclass
class Collection:
    """A session's work on a collection, and its result."""

    store: Store
    config: Config
    """The trials' settings, but for their seeds; its budgets are the collection's."""
    model: Model
    parts: Parts
    tasks: int
    """The number of tasks, broken ones included."""
    broken: dict[str, str]
    """Directory of each task that could not be loaded or judged, and why."""
    trials: list[Trial]
    """All trials that the options ask for."""
    parallel: int
    done: set[Trial]
    """The trials that were finished before."""
    log: Path
    watch: Watch = field(default_factory=Watch)
    summaries: list[Summary] = field(default_factory=list)
    """In the end: PassNet's figures of all finished trials in the database, of each model."""
    unfinished: list[dict[str, Any]] = field(default_factory=list)
    """In the end: `run`, `task`, `trial` and `reason` of each trial that is to be gone on with."""
    failed: dict[str, str] = field(default_factory=dict)
    """Each run that the machine failed, and why: it is tried again by the next session."""
    stop_reason: str | None = None
    """Why the collection stops before all trials are finished."""
    is_interrupted: bool = False
    """A person stopped it."""
    elapsed_s: float = 0.0
    """Time since the command began, s."""
    _sessions: dict[str, Session] = field(default_factory=dict)
    """The sessions of the runs under way."""
    _faults: int = 0
    """Trials in a row that the machine failed."""
    _error: BaseException | None = None
    """Why the collection ends with an error; the first one counts."""

    def __post_init__(self) -> None:
        limits = SearchConfig(**self.config.search.model_dump(include=set(trials.BUDGETS)))
        self.budget = Budget(limits, self.progress, self.stop)

    @property
    def too_broken(self) -> PassagentError | None:
        """The error of too many broken tasks, if they are."""
        if len(self.broken) <= _MOST_BROKEN * self.tasks:
            return None
        path, reason = next(iter(self.broken.items()))
        share = f"{len(self.broken)} of {self.tasks} tasks"
        return PassagentError(f"{share} are broken, such as {path}: {reason}")

    def progress(self) -> Progress:
        """Return how much the collection has taken by now, as the stopping rules look at it."""
        self.elapsed_s = time.monotonic() - self.parts.begun
        spent = self.store.rows(_SPENT, {"model": self.config.model.label})[0]
        return Progress(episodes=0, elapsed_s=self.elapsed_s, best_as=None, **spent)

    def stop(self, reason: str, interrupted: bool = False) -> None:
        """Begin no more trials, and stop those under way, to be gone on with. The first reason counts."""
        self.stop_reason = self.stop_reason or reason
        self.is_interrupted = self.is_interrupted or interrupted
        for session in self._sessions.values():
            session.stop(reason, interrupted=True)

    def _fail(self, error: BaseException) -> None:
        """Stop because of an error, which `run` raises once the conversations have stopped."""
        self._error = self._error or error
        self.stop(f"an error: {error}")

    async def run(self, watch: Watch, begun: Callable[[Collection], object]) -> Collection:
        """Make the trials that are not finished, and return itself.

        `begun` gets the collection, by which it can be stopped.

        Raises UsageError for a model that cannot be asked, MachineFault (a full disk) and passagent's own
        errors once the other conversations have stopped; InfrastructureError after FAULTS failed trials.
        """
        config, todo = self.config, [trial for trial in self.trials if trial not in self.done]
        if self.parts.model is None and todo:
            await check_models(config)
        evaluator = self.parts.evaluator or open_pool(config.evaluator, tell=watch.say)
        self.watch = watch
        begun(self)
        waiting, limit_s = iter(todo), self.budget.limits.max_time_s
        work = [self._go_through(waiting, evaluator) for _ in range(self.parallel)]
        try:
            async with side_by_side(self._keep_time()), side_by_side(*work) as conversations:
                try:
                    async with asyncio.timeout(limit_s and limit_s - self.progress().elapsed_s):
                        await asyncio.gather(*conversations)
                except TimeoutError:  # what is under way is cut
                    self.stop(stop.rules_of(self.budget.limits)(self.progress()) or "the time is over")
                if self._error is not None:
                    raise self._error
        except PassagentError as error:
            log.exception("the collection ended with an error")
            if not isinstance(error, UsageError):
                error.args = (f"{error}; everything so far is stored, the same command goes on",)
            raise
        finally:
            await self.model.close()
            await evaluator.close()
        for trial in self.trials:
            run = trials.find_run(self.store, trial, config.model.label)
            if run is not None and run.state != "finished" and run.id not in self.failed:
                row = {"run": run.id, "task": run.task, "trial": run.trial, "reason": run.stop_reason}
                self.unfinished.append(row)
        self.summaries = trials.summaries_of(self.store)
        return self

    async def _keep_time(self) -> None:
        """End the collection when a limit is reached."""
        reached = stop.rules_of(self.budget.limits)
        try:
            while True:
                if reason := reached(self.progress()):
                    self.stop(reason)
                self.store.check_in_place()
                await asyncio.sleep(_TICK_S)
        except Exception as error:
            self._fail(error)

    async def _go_through(self, waiting: Iterator[Trial], evaluator: Evaluator) -> None:
        """Make one trial after the other."""
        try:
            for trial in waiting:
                if self.stop_reason is not None:
                    return
                if str(trial.path) not in self.broken:
                    await self._make(trial, evaluator)
        except Exception as error:
            self._fail(error)

    async def _make(self, trial: Trial, evaluator: Evaluator) -> None:
        """Make or go on with a trial. A failure of its task or of the machine is noted."""
        error: str | None = None
        try:
            await self._converse(trial, evaluator)
            self._faults = 0
        except (UsageError, MachineFault):
            raise
        except PassagentError as failure:
            log.exception("%s failed", trial)
            error = str(failure)
            if isinstance(failure, TaskError):
                self.broken[str(trial.path)] = error
            else:
                self._faults += 1
                if self._faults == FAULTS:
                    text = f"{FAULTS} trials in a row failed, the last one with: {error}"
                    self._fail(InfrastructureError(text))
        run = trials.find_run(self.store, trial, self.config.model.label)
        if run is not None:
            if error is not None and str(trial.path) not in self.broken:
                self.failed[run.id] = error
            self.watch.ended(trials.outcomes(self.store, run.id)[0], error)
        elif error is not None:
            self.watch.say(f"{trial}: {error}")

    async def _converse(self, trial: Trial, evaluator: Evaluator) -> None:
        """Run the trial's conversation until it comes to an end or is stopped. Raises PassagentError."""
        config = trials.config_of(self.config, trial)
        task = load_task(trial.path)
        if task.key != trial.key:
            raise TaskError(f"{trial.path}: the task has changed since the collection began")
        check_task_room(task, config.evaluator.device)
        with self.store.transaction():
            run = trials.find_run(self.store, trial, config.model.label)
            run = run or new_run(self.store, task, config, trial.number)

        def on_event(event: Event) -> None:
            self.watch.event(trial, event)

        parts = replace(self.parts, model=self.model, evaluator=evaluator)
        session = open_session(self.store, run, task, config, parts, on_event)
        session.budget = self.budget
        self._sessions[run.id] = session
        try:
            await search(session)
        finally:
            del self._sessions[run.id]


@contextmanager
def open_collection(
    tasks: Sequence[str], options: CollectOptions, parts: Parts | None = None
) -> Iterator[Collection]:
    """Open the collection in its database, which nobody else collects into meanwhile.

    options: complete ones. Raises UsageError before anything is written; PassagentError where no task can be
    loaded.
    """
    parts, settings = parts or Parts(), settings_of(CollectOptions, options)
    if (steps := options["max_steps"]) is not None:
        settings |= {"agent.max_steps": steps, "agent.max_evaluations": steps}
    shard = parse_shard(options["shard"]) if options["shard"] else (0, 1)
    config = trials.settings_of_trials(load_config(options["config"] or "teacher", settings), settings)
    check_roles(config.search)
    check_devices(config.evaluator)
    model: Model = parts.model or open_model(config.model)
    check_money(config, model)
    every, broken = trials.list_trials(find_tasks(list(tasks), options["root"]), options["trials"])
    if not every:
        place, reason = next(iter(broken.items()))
        raise PassagentError(f"no task can be loaded, such as {place}: {reason}")
    listed = every[shard[0] :: shard[1]]
    if not listed:
        raise UsageError("no trial is in this shard: there are too few")
    with (
        Store.open(options["runs_dir"]) as store,
        locked(store.runs_dir, "collect.lock"),
        run_log(store.runs_dir / "collect") as path,
    ):
        done = trials.finished_trials(store, listed, config)
        yield Collection(
            store,
            config,
            model,
            parts,
            len({trial.key for trial in every}) + len(broken),
            broken,
            listed,
            options["parallel"],
            done,
            path,
        )
