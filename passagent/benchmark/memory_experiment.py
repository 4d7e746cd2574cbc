"""Does memory help? Runs with it and without it on the same tasks and seeds, by an outcome fixed beforehand.

Tasks are split in two by the hash of their names. On one half the library is filled. On the other the arms
are compared, and nothing of that half is stored. The protocol is written before the first run and cannot be
changed; runs that are there are not made again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from passagent.benchmark.searched import best_of_search
from passagent.cluster.opening import open_pool
from passagent.config import Config, override
from passagent.errors import PassagentError, UsageError
from passagent.store import Store, nodes
from passagent.tasks import Task, load_task

ARMS = ("off", "curated", "learned")
"""No hints; the curated ones; those and what was learned on the other half."""
REACHED = 0.95
"""Share of the final log AS of `off` that is to be reached."""
DRAWS = 2000
OUTCOME = (
    "Iterations until the best AS so far has 95% of the final log AS of the arm `off` on the same task and "
    "seed (one more than there are where it never has), as a ratio to those of `off`: geometric mean over "
    "pairs, bootstrap over tasks, 95%. Second: the mean of the best log AS so far. Pairs in which `off` "
    "gains nothing over eager are left out and counted."
)


@dataclass(frozen=True)
class Protocol:
    """What is compared on what: fixed before the first run."""

    tasks: tuple[str, ...]
    arms: tuple[str, ...]
    seeds: int
    config: str
    outcome: str = OUTCOME

    def halves(self) -> tuple[list[str], list[str]]:
        """The tasks to learn on, and those to compare on."""
        order = sorted(self.tasks, key=lambda path: hashlib.sha256(Path(path).name.encode()).hexdigest())
        return order[::2], order[1::2]


class Course(NamedTuple):
    """A run of an arm."""

    arm: str
    task: str
    seed: int
    best: list[float]
    """Log of the best AS so far after each episode; eager's, 0, where nothing correct was found."""
    final: float | None
    """Log of its best AS; None where nothing was correct."""


@dataclass(frozen=True)
class Compared:
    """An arm against `off`."""

    arm: str
    pairs: int
    tasks: int
    left_out: int
    """Pairs in which `off` gained nothing over eager."""
    ratio: float | None
    """Of the iterations to the target, geometric mean; under 1: sooner."""
    low: float | None
    high: float | None
    area: float | None
    """Difference of the mean best log AS so far."""
    area_low: float | None
    area_high: float | None


@dataclass
class Experiment:
    """A protocol and its runs, in a directory."""

    place: Path
    protocol: Protocol
    config: Config
    say: Callable[[str], None]
    courses: list[Course] = field(default_factory=list)

    @property
    def library(self) -> Path:
        """What was learned on the first half."""
        return self.place / "library.db"

    def settings(self, arm: str, seed: int, evaluated: Sequence[str]) -> dict[str, Any]:
        """Of a run of an arm; `evaluated`: the tasks of which nothing is stored."""
        shared = {"search.seed": seed, "experience.seeds": False, "experience.examples": 0}
        if arm == "off":
            return shared | {"agent.hints": 0, "experience.library": "off"}
        if arm == "curated":
            return shared | {"experience.library": "off"}
        named = {"experience.library": str(self.library), "experience.exclude": list(evaluated)}
        # compared is the policy that shows a hint wherever it has one
        return shared | named | {"experience.learned": 1.0}

    def check(self) -> None:
        """Write the protocol. Raises UsageError where another one is in the directory."""
        self.place.mkdir(parents=True, exist_ok=True)
        file, text = self.place / "protocol.json", json.dumps(asdict(self.protocol), indent=1)
        if file.is_file() and json.loads(file.read_text()) != json.loads(text):
            raise UsageError(f"--out {self.place}: holds another experiment; name a new directory")
        file.write_text(text + "\n")

    async def run(self) -> None:
        """Make the runs that are missing. Raises what a search raises."""
        self.check()
        learn, compare = self.protocol.halves()
        pool = open_pool(self.config.evaluator, self.say)
        try:
            with Store.open(self.place / "runs") as store:
                if "learned" in self.protocol.arms:
                    teaching = self.settings("learned", 0, compare) | {"experience.learned": 0.8}
                    teaching |= {"roles.hint_distiller": {"name": self.config.model.name}}
                    for path in learn:
                        await self._one(store, pool, path, "learning", teaching)
                for path in compare:
                    for seed in range(1, self.protocol.seeds + 1):
                        for arm in self.protocol.arms:
                            found = await self._one(store, pool, path, arm, self.settings(arm, seed, compare))
                            self.courses += [found] if found else []
        finally:
            await pool.close()

    async def _one(
        self, store: Store, pool: Any, path: str, arm: str, settings: dict[str, Any]
    ) -> Course | None:
        task, config = load_task(path), override(self.config, settings)
        try:
            run_id, _ = await best_of_search(store, task, config, pool, lambda store, run: None)
        except PassagentError as error:
            if isinstance(error, UsageError):
                raise
            self.say(f"{task.name}, {arm}: {error}")
            return None
        found = course(store, run_id, arm, task, config)
        final = "nothing correct" if found.final is None else f"AS {math.exp(found.final):.3f}"
        self.say(f"{task.name}, {arm}, seed {config.search.seed}: {final}")
        return found


def course(store: Store, run_id: str, arm: str, task: Task, config: Config) -> Course:
    """The best so far of a run after each of its episodes."""
    best, final = [0.0] * config.search.iters, None
    for node in nodes.of_run(store, run_id):
        if node.status == "ok" and node.as_score and node.number >= 1:
            score = math.log(node.as_score)
            final = score if final is None else max(final, score)
            for k in range(node.number - 1, len(best)):
                best[k] = max(best[k], score)
    return Course(arm, task.name, config.search.seed, best, final)


def iterations_to(best: Sequence[float], target: float) -> int:
    """The first episode, from 1, with the target; one more than there are where none has it."""
    return next((k for k, score in enumerate(best, 1) if score >= target), len(best) + 1)


def compare(courses: Sequence[Course], arm: str, seed: int = 0) -> Compared:
    """An arm against `off`, paired by task and seed."""
    own = {(one.task, one.seed): one for one in courses if one.arm == arm}
    off = {(one.task, one.seed): one for one in courses if one.arm == "off"}
    pairs: dict[str, list[tuple[float, float]]] = {}
    left_out = 0
    for key in own.keys() & off.keys():
        without, with_ = off[key], own[key]
        if without.final is None or without.final <= 0:
            left_out += 1
            continue
        target = REACHED * without.final
        ratio = math.log(iterations_to(with_.best, target) / iterations_to(without.best, target))
        area = (sum(with_.best) - sum(without.best)) / len(with_.best)
        pairs.setdefault(key[0], []).append((ratio, area))
    if not pairs:
        return Compared(arm, 0, 0, left_out, None, None, None, None, None, None)
    groups, rng = [pairs[task] for task in sorted(pairs)], random.Random(seed)
    drawn = [_means(rng.choices(groups, k=len(groups))) for _ in range(DRAWS)]
    ratio, area = _means(groups)
    low, high = _ends([one[0] for one in drawn])
    area_low, area_high = _ends([one[1] for one in drawn])
    count = sum(map(len, groups))
    ends = math.exp(ratio), math.exp(low), math.exp(high)
    return Compared(arm, count, len(groups), left_out, *ends, area, area_low, area_high)


def _means(groups: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    every = [one for group in groups for one in group]
    return sum(one[0] for one in every) / len(every), sum(one[1] for one in every) / len(every)


def _ends(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[round(0.025 * (len(ordered) - 1))], ordered[round(0.975 * (len(ordered) - 1))]


def conduct(experiment: Experiment) -> list[Compared]:
    """Run it to its end, and compare each arm with `off`. Ctrl-C: the same call goes on."""
    asyncio.run(experiment.run())
    return [compare(experiment.courses, arm) for arm in experiment.protocol.arms if arm != "off"]
