"""What the parts of a running search share: the store, the run, its settings, and the wish to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from passagent.config import Config
from passagent.evaluator.result import Candidate, Evaluation
from passagent.experience.diagnosis import Diagnosis
from passagent.experience.hints import Hint
from passagent.experience.machine import Machine
from passagent.models.prices import Price
from passagent.models.types import Model
from passagent.search.events import OnEvent
from passagent.search.stop import Progress, Want, lack, rules_of
from passagent.store import Store, calls, runs
from passagent.store.runs import Run
from passagent.tasks import Task


class Stopping(Exception):
    """Raised where work can be left and taken up again, once the session is to stop."""


class Evaluator(Protocol):
    """Judges candidates: evaluator.pool.EvaluatorPool, or another place's."""

    async def evaluate(self, task_path: Path, candidate: Candidate) -> Evaluation:
        """The evaluation. Raises PassagentError."""
        ...

    async def close(self) -> None:
        """Release its processes."""
        ...


@dataclass
class Session:
    """One process's work on a run."""

    store: Store
    run: Run
    task: Task
    config: Config
    model: Model
    evaluator: Evaluator
    diagnose: Callable[[Evaluation], Diagnosis]
    hints: list[Hint]
    device_name: str
    on_event: OnEvent
    prices: dict[str, Price | None] = field(default_factory=dict)
    """Of each model; None: not known."""
    validator: Model | None = None
    """Who is asked whether a right candidate cheats."""
    distiller: Model | None = None
    """Who is asked what an episode's progress taught."""
    machine: Machine | None = None
    """What was measured of this machine, for the prompts."""
    owner: str = ""
    stop_reason: str | None = None
    is_interrupted: bool = False
    """A person asked to stop, no rule."""
    started: float = field(default_factory=time.monotonic)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Replaced by a new one after each change that another island may wait for."""
    held: list[Want] = field(default_factory=list)
    """What the model calls and evaluations under way may take."""
    candidate_locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    """Equal candidates wait for each other: the second one is answered from the store."""

    @property
    def elapsed_s(self) -> float:
        """Time searched, this session's and all before, s."""
        return self.run.elapsed_s + time.monotonic() - self.started

    def stop(self, reason: str, interrupted: bool = False) -> None:
        """Stop at the next place where work can be left; the first reason counts."""
        if self.stop_reason is None:
            self.stop_reason, self.is_interrupted = reason, interrupted
        self.notify()

    def notify(self) -> None:
        """Let those that wait for a change look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def check(self) -> None:
        """Raise Stopping if the session is to stop, by a rule or by a person."""
        if self.stop_reason is None:
            reason = rules_of(self.config.search)(self.progress())
            if self.wanted == "stop":
                self.stop("a person stopped it", interrupted=True)
            elif reason:
                self.stop(reason)
        if self.stop_reason is not None:
            raise Stopping(self.stop_reason)

    @property
    def wanted(self) -> str:
        """What a person asks for, from any terminal (runs.want)."""
        return runs.get_run(self.store, self.run.id).wanted

    async def ready(self) -> None:
        """Return when something new may be begun: not while the run is paused. Raises Stopping."""
        while self.wanted == "pause":
            self.check()
            await self.changed.wait()
        self.check()

    async def admit(self, want: Want) -> Callable[[], None]:
        """Wait until the budgets have room for `want`, and hold it until the returned function is called.

        Raises Stopping if there is none and nothing is under way that could leave some.
        """
        while True:
            await self.ready()
            reason = lack(self.config.search, self.progress(), want, self.held)
            if reason is None:
                self.held.append(want)
                return lambda: self._release(want)
            if not self.held:
                self.stop(reason)
                raise Stopping(reason)
            await self.changed.wait()

    def _release(self, want: Want) -> None:
        if want in self.held:
            self.held.remove(want)
            self.notify()

    def progress(self) -> Progress:
        """The run so far, from the store."""
        run = runs.get_run(self.store, self.run.id)
        islands = runs.islands(self.store, run.id)
        return Progress(
            episodes=sum(island.episodes for island in islands),
            evaluations=run.evaluations,
            tokens=run.tokens,
            elapsed_s=self.elapsed_s,
            best_as=max((i.best_as for i in islands if i.best_as is not None), default=None),
            cost=calls.cost_of(self.store, run.id) if self.config.search.max_cost is not None else 0.0,
        )
