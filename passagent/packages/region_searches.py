"""A model's regions: what there is to gain, and searches: ordinary runs, which can be gone on with."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from passagent.agent.prompt import short_note
from passagent.config import Config, override
from passagent.errors import MachineFault, PassagentError, UsageError
from passagent.evaluator.hardware.machine import Machine, measure_machine
from passagent.evaluator.result import Candidate
from passagent.packages.optimized import FAILED, RegionOutcome
from passagent.search import setup
from passagent.search.setup import Parts
from passagent.search.thread import Stoppable, side_by_side
from passagent.store import Store, runs
from passagent.store.database import DATABASE
from passagent.store.events import Event, Judged
from passagent.store.runs import Run
from passagent.tasks import Task, load_task
from passagent.tasks.extract.extracting import Regions
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph

log = logging.getLogger("passagent.optimize")


MOST_AT_ONCE, CORES = 4, 4
"""Searches for regions on one GPU, and how many of the host's cores each needs."""


def outcomes_of(regions: Regions, device: str, say: Callable[[str], object]) -> list[RegionOutcome]:
    """The regions that can be searched, with what there is to gain."""
    machine, outcomes = measure_machine(device), []
    for task in regions.tasks:
        region = RegionOutcome(task.name, task.operators, task.count, task.seconds * 1e6)
        if task.problems:
            region.outcome, region.why = FAILED, task.problems[0]
        else:
            light_s = sum(
                _light_s(machine, subgraph, device) * task.instances[subgraph.name]
                for subgraph in load_task(regions.path / task.name).subgraphs
            )
            region.light_us = min(light_s, task.seconds) * 1e6
        outcomes.append(region)
    total = regions.seconds * 1e6
    gain = sum(region.eager_us - region.light_us for region in outcomes)
    say(f"{len(outcomes)} regions; operators take {total:.0f} us, of which {gain:.0f} us could go at most")
    return outcomes


def _light_s(machine: Machine, subgraph: Subgraph, device: str) -> float:
    """Return the least time of a call, s: its inputs and outputs moved once, or its matrix products."""
    inputs = make_inputs(subgraph, device, 0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outputs = load_module(subgraph, device)(*inputs)
    tensors = [v for v in pytree.tree_leaves((inputs, outputs)) if isinstance(v, torch.Tensor)]
    moved_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return machine.light_s(moved_bytes, counter.get_total_flops(), subgraph.dtype)


@dataclass
class RegionSearches:
    """The searches, the first regions first, until a person stops them or the clock cuts them."""

    runs_dir: Path
    config: Config
    say: Callable[[str], object]
    deadline: float | None = None
    """By time.monotonic()."""
    parts: Parts = field(default_factory=Parts)
    stop_reason: str | None = None
    is_interrupted: bool = False
    failed: dict[str, str] = field(default_factory=dict)
    """Regions that could not be judged, and why."""
    _sessions: dict[str, Stoppable] = field(default_factory=dict)
    """Sessions of the regions that are searched now."""

    def stop(self, reason: str, interrupted: bool = False) -> None:
        """Begin no more, and stop those under way: they can be gone on with. The first reason counts."""
        self.stop_reason = self.stop_reason or reason
        self.is_interrupted = self.is_interrupted or interrupted
        for session in self._sessions.values():
            session.stop(reason, interrupted=True)

    async def run(self, tasks: Mapping[Path, dict[str, str] | None]) -> None:
        """Search the tasks that have no finished run, in their order. Raises UsageError, MachineFault.

        tasks: for each the files of a pass of the library, if there is one: they are measured first.
        """
        numbered = iter(list(enumerate(tasks.items(), start=1)))

        async def search_until_the_deadline() -> None:
            left_s = None if self.deadline is None else self.deadline - time.monotonic()
            try:
                async with asyncio.timeout(left_s) as limit:
                    for number, (path, files) in numbered:
                        for setting, amount in self._left().items():
                            if amount <= 0:
                                self.stop(f"all of {setting} is spent")
                        if self.stop_reason is not None:
                            return
                        await self._search(path, files, f"{number} of {len(tasks)}")
            except TimeoutError:
                if not limit.expired():
                    raise
                self.stop("the time is over")

        searches = (search_until_the_deadline() for _ in range(at_once(self.config)))
        async with side_by_side(*searches) as under_way:
            await asyncio.gather(*under_way)

    def _left(self, task: Task | None = None) -> dict[str, float]:
        """The tokens and the money that all runs but a task's own have left for it, as settings."""
        limits = self.config.search
        others = [run for run in runs_of(self.runs_dir) if task is None or run.task_key != task.key]
        settings = dict[str, float]()
        if limits.max_tokens is not None:
            settings["search.max_tokens"] = limits.max_tokens - sum(run.tokens for run in others)
        if limits.max_cost is not None:
            settings["search.max_cost"] = limits.max_cost - sum(run.cost for run in others)
        return settings

    async def _search(self, path: Path, files: dict[str, str] | None, place: str) -> None:
        try:
            task = load_task(path)
            if any(run.state == "finished" for run in runs_of(self.runs_dir, task)):
                return
            self.say(f"region {place}: {path.name}{', from a pass of the library' if files else ''}")
            config = override(self.config, self._left(task))
            if files:
                seed = self.runs_dir / "known" / path.name
                Candidate(files).write(seed)
                settings = {"search.seed_dir": str(seed), "search.iters": 1, "search.islands": 1}
                config = override(config, settings)
            await self._converse(task, path.name, config)
        except (UsageError, MachineFault):
            raise
        except Exception as error:  # a crash is this region's alone: the others go on
            log.exception("%s", path.name)
            kind = "" if isinstance(error, PassagentError) else f"{type(error).__name__}: "
            self.failed[path.name] = f"{kind}{error}"
            self.say(f"  {kind}{error}")

    async def _converse(self, task: Task, name: str, config: Config) -> None:
        def tell(event: Event) -> None:
            if isinstance(event, Judged):
                score = f", AS {event.as_score:.3f}" if event.as_score is not None else ""
                self.say(f"  {name}: {event.status}{score}: {short_note(event.note)}")

        parts = replace(self.parts, begun=time.monotonic())
        with setup.started(self.runs_dir, task, config, False, parts) as session:
            self._sessions[name] = session
            if self.stop_reason is not None:
                session.stop(self.stop_reason, interrupted=True)
            try:
                await setup.work(session, tell)
            finally:
                self._sessions.pop(name, None)


def at_once(config: Config) -> int:
    """How many regions are searched at once: on a GPU the host compiles for one while others are timed.

    One where tokens or money are limited: each run takes what the runs before it have left.
    """
    limits = config.search
    if config.evaluator.device == "cpu" or limits.max_tokens is not None or limits.max_cost is not None:
        return 1
    return max(1, min(MOST_AT_ONCE, len(os.sched_getaffinity(0)) // CORES))


def runs_of(runs_dir: Path, task: Task | None = None) -> list[Run]:
    """The runs in a directory, of a task alone if it is given; finished ones first, of these the newest."""
    if not (runs_dir / DATABASE).exists():
        return []
    with Store.open(runs_dir, create=False) as store:
        stored = [run for run in runs.list_runs(store) if task is None or run.task_key == task.key]
    return sorted(stored, key=lambda run: run.state != "finished")
