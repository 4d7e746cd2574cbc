"""The shared state of a running search: the store, the run, its settings, and the wish to stop."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from passagent.config import Config, SearchConfig
from passagent.evaluator.fleet.opening import environment_key, machine_of
from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.reference.eager import EagerGraph
from passagent.evaluator.result import Candidate, Evaluation
from passagent.experience.diagnosis import Diagnosis, diagnose
from passagent.experience.hints import Hint
from passagent.extend import Model
from passagent.models.prices import Price
from passagent.search.islands import expected_per_hour
from passagent.search.run_memory import Memory
from passagent.search.stop import Progress, Want, lack, left, rules_of, total
from passagent.search.thread import side_by_side
from passagent.store import SEEDS, Run, Store, runs
from passagent.store.timeline import Follower
from passagent.tasks import Task

T = TypeVar("T")
EXPERT = "expert"
"""The model that writes the seeds."""

LOOK_S = 0.25
"""Between two looks at whether a run that waits for room is to stop, s."""
GRACE_S = 2.0
"""The time that an evaluation or a wait may still take after a person asked to stop, s."""
FOR_FINALISTS = 0.3
"""Share of the time of a command that is kept for the finalists, at most."""
ROUNDS = 4
"""Measurements of each finalist, at most; two can be enough to tell their order."""


class Stopping(Exception):
    """Raised where work can be left and taken up again, once the session is to stop."""


class Evaluator(Protocol):
    """Judges candidates: evaluator.service.pool.EvaluatorPool, or another place's."""

    async def evaluate(self, task_path: Path, candidate: Candidate, bar: float | None = None) -> Evaluation:
        """The evaluation, cut short where the AS is under `bar` for sure. Raises PassagentError."""

    async def describe(self, task_path: Path) -> tuple[EagerGraph, ...]:
        """Measure eager on the task's subgraphs; () where nothing can. Raises PassagentError."""

    async def outline(self, task_path: Path, candidate: Candidate) -> Evaluation | list[str]:
        """The candidate's plans, a few lines each; its evaluation if there are none."""

    async def close(self) -> None:
        """Release its processes."""


class Budget:
    """Limits that a run has, or that several runs of this process share (data/collect/campaign.py)."""

    def __init__(
        self, limits: SearchConfig, progress: Callable[[], Progress], stop: Callable[[str], object]
    ) -> None:
        """`limits`: of them `max_tokens`, `max_cost`, `max_time_s` and `max_evaluations` count."""
        self.limits = limits
        self._progress, self._stop = progress, stop
        self._held: list[Want] = []
        self._freed = asyncio.Event()

    async def admit(self, want: Want, check: Callable[[], object]) -> Callable[[], None]:
        """Wait until there is room for `want`, and hold it until the returned function is called.

        What is under way counts. `check` raises Stopping where the run is to stop; so does this if there is
        no room and nothing is under way that could leave some, after it has stopped all.
        """
        while True:
            check()
            reason = lack(self.limits, self._progress(), want, total(self._held))
            if reason is None:
                self._held.append(want)
                return lambda: self._release(want)
            if not self._held:
                self._stop(reason)
                raise Stopping(reason)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._freed.wait()

    def _release(self, want: Want) -> None:
        if want in self._held:  # twice does no harm
            self._held.remove(want)
        self._freed.set()
        self._freed = asyncio.Event()


@dataclass
class Session:
    """The state of a process while it drives a run."""

    store: Store
    run: Run
    task: Task
    config: Config
    model: Model
    evaluator: Evaluator
    hints: list[Hint]
    device_name: str
    events: Follower
    """The follower that reports what happens."""
    prices: dict[str, Price | None] = field(default_factory=dict)
    """Prices of each model; None: not known."""
    distiller: Model | None = None
    """The model that is asked what an episode's progress taught."""
    memory: Memory | None = None
    """The library of all runs; None: it is off."""
    stand_in_diagnosis: Callable[[Evaluation], Diagnosis] | None = None
    """Diagnoses in place of `diagnose`, which then needs no machine's figures."""
    is_resumed: bool = False
    """The run had been begun before."""
    eager: tuple[EagerGraph, ...] | None = None
    """Eager's measured figures on the task's subgraphs, for the prompts; None until they were asked for."""
    describing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while `eager` is measured."""
    budget: Budget = field(init=False)
    """Its own limits, or those that it shares with others; it then has none of its own."""
    stop_reason: str | None = None
    is_interrupted: bool = False
    """A person asked to stop, no rule."""
    is_ending: bool = False
    """A rule has ended the run, and its last requests are made: they need room in the budgets only."""
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a person asked to stop."""
    started: float = field(default_factory=time.monotonic)
    begun: float = field(default_factory=time.monotonic)
    """When the command began: `search.max_time_s` counts from then."""
    longest_s: float = 0.0
    """The longest of this session's evaluations, s."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Replaced by a new one after each change that another island may wait for."""

    def __post_init__(self) -> None:
        self.rules = rules_of(self.config.search)
        self.budget = Budget(self.config.search, self.progress, self.stop)

    @functools.cached_property
    def machine(self) -> Machine | None:
        """The machine's measured figures, for the prompts; None with a stand-in for the diagnosis."""
        return None if self.stand_in_diagnosis else machine_of(self.config.evaluator)

    def diagnose(self, evaluation: Evaluation) -> Diagnosis:
        """Say what limits a candidate, or why it failed."""
        if self.stand_in_diagnosis is not None:
            return self.stand_in_diagnosis(evaluation)
        assert self.machine is not None
        return diagnose(evaluation, self.machine)

    @functools.cached_property
    def environment(self) -> str:
        """Machine and protocol of the evaluations."""
        return environment_key(self.config.evaluator)

    @property
    def reserved_s(self) -> float:
        """The time of `max_time_s` that is kept for the finalists, s, by the longest evaluation so far."""
        search = self.config.search
        rounds_s = search.finalists * ROUNDS * self.longest_s
        return min(rounds_s, FOR_FINALISTS * (search.max_time_s or 0.0))

    @property
    def left_s(self) -> float:
        """The remaining time of the command, s; after that all is cut."""
        return (self.config.search.max_time_s or math.inf) - (time.monotonic() - self.begun)

    @property
    def elapsed_s(self) -> float:
        """Time searched, this session's and all before, s."""
        return self.run.elapsed_s + time.monotonic() - self.started

    def stop(self, reason: str, interrupted: bool = False) -> None:
        """Stop at the next place where work can be left; the first reason counts."""
        if self.stop_reason is None or (interrupted and not self.is_interrupted):
            self.stop_reason, self.is_interrupted = reason, interrupted
        if interrupted:
            self.interrupted.set()
        self.notify()

    def notify(self) -> None:
        """Let those that wait for a change look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def check(self) -> Run:
        """The run as it is. Raises Stopping if it is to stop, by a rule or a person."""
        run = runs.get_run(self.store, self.run.id)
        if self.stop_reason is None:
            if run.wanted == "stop":
                self.stop("stopped by a person", interrupted=True)
            elif reason := self.rules(self.progress()):
                self.stop(reason)
        if self.stop_reason is not None:
            raise Stopping(self.stop_reason)
        return run

    async def in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Cancel it GRACE_S after a person asks to stop, and raise Stopping.

        Only for work that costs nothing to do again, such as an evaluation, which may wait for a device.
        """
        async with side_by_side(work) as [task], side_by_side(self._grace()) as [stop]:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopping(self.stop_reason)

    async def _grace(self) -> None:
        await self.interrupted.wait()
        await asyncio.sleep(GRACE_S)

    async def admit(self, want: Want) -> Callable[[], None]:
        """Hold room for `want` in the budgets, as Budget.admit does."""
        return await self.budget.admit(want, lambda: None if self.is_ending else self.check())

    @property
    def limits(self) -> SearchConfig:
        """The limits that hold for the run, its own or shared ones."""
        return self.budget.limits

    def left(self) -> list[str]:
        """The remaining budgets of the run, as a model reads them."""
        return left(self.config.search, self.progress())

    def progress(self) -> Progress:
        """The figures that the stopping rules look at."""
        run, islands = runs.get_run(self.store, self.run.id), runs.all_islands(self.store, self.run.id)
        gains = run.gained
        return Progress(
            episodes=sum(island.episodes for island in islands if island.island != SEEDS),
            evaluations=run.evaluations,
            tokens=run.tokens,
            elapsed_s=time.monotonic() - self.begun,
            best_as=max((island.best_as for island in islands if island.best_as is not None), default=None),
            cost=run.cost,
            stagnant=gains.stagnant,
            gain_per_hour=expected_per_hour(gains),
            headroom=gains.headroom,
            reserved_s=self.reserved_s,
        )
