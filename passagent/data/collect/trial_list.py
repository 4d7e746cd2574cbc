"""Which trials a collection has: tasks times trials, in an order, or a shard of them, and their settings."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent import __version__
from passagent.config import Config, override
from passagent.data.collect import trials
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.target import kind_of
from passagent.search.remeasure import changed_settings
from passagent.store import Store
from passagent.store.runs import Run
from passagent.tasks import load_task

FIXED: dict[str, Any] = {
    "search.islands": 1,
    "search.iters": 1,
    "search.expert_seeds": 0,
    "search.seed_dir": None,
    "search.drafts": 0,
    "search.finalists": 0,
    "agent.hints": 0,
    "experience.seeds": False,
    "experience.examples": 0,
    "roles.hint_distiller": None,
}
"""A trial is one conversation that starts from the task alone. No other run has a say in it: which hints, and
which past task, are shown depends on what came of them in other runs."""
BUDGETS = ("max_tokens", "max_cost", "max_time_s", "max_evaluations")
"""Keys of `search` that bound the whole collection and no single trial."""
FREE = (
    "model.base_url", "model.timeout_s", "model.max_retries", "model.prices", "model.stream",
    "experience.library",
)  # fmt: skip
"""Settings that may be others when a collection is gone on with: they change nothing in a conversation."""


@dataclass(frozen=True)
class Entry:
    """A task of a collection, not loaded."""

    path: Path
    name: str
    key: str
    """sha256 of the subgraphs' content."""


@dataclass(frozen=True)
class Pair:
    """A trial that is to be made."""

    entry: Entry
    trial: int


@dataclass(frozen=True)
class Listing:
    """What the tasks asked for are."""

    entries: list[Entry]
    """Each task once."""
    broken: dict[str, str]
    """Directory of each task that cannot be loaded, and why."""
    equal: list[tuple[Path, Path]]
    """Tasks with the content of an earlier one, and that one."""


def list_tasks(paths: Iterable[Path]) -> Listing:
    """Every task of `paths`, read once for its key and not kept."""
    entries: dict[str, Entry] = {}
    listing = Listing([], {}, [])
    for path in paths:
        try:
            task = load_task(path)
        except PassagentError as error:
            listing.broken[str(path)] = str(error)
            continue
        if task.key in entries:
            listing.equal.append((path, entries[task.key].path))
        else:
            entries[task.key] = Entry(path, task.name, task.key)
    listing.entries.extend(entries.values())
    return listing


def pairs_of(
    entries: Sequence[Entry], count: int, shuffle: int | None = None, shard: tuple[int, int] = (0, 1)
) -> list[Pair]:
    """`count` trials of each task, one after the other, or all in the order that the seed `shuffle` gives.

    shard: (I, N) takes every Nth pair from the Ith on, so that the N shards are a partition.
    """
    pairs = [Pair(entry, trial) for entry in entries for trial in range(count)]
    if shuffle is not None:
        random.Random(shuffle).shuffle(pairs)
    return pairs[shard[0] :: shard[1]]


def settings_of_trials(config: Config, given: Iterable[str]) -> Config:
    """`config` with what is FIXED. Raises UsageError for a setting that is `given` another value there."""
    data = config.model_dump()
    for key in given:
        section, _, field = key.partition(".")
        if key in FIXED and data[section][field] != FIXED[key]:
            raise UsageError(
                f"{key}: is {FIXED[key]} in a collection: a trial is one conversation from the task on"
            )
    return override(config, FIXED)


def config_of(config: Config, trial: int) -> Config:
    """The settings of a trial's run: a seed of its own, and no budget, which is the collection's."""
    search = config.search.model_copy(
        update={"seed": config.search.seed + trial} | dict.fromkeys(BUDGETS, None)
    )
    return config.model_copy(update={"search": search})


def check_same(run: Run, config: Config, runs_dir: Path) -> None:
    """Raise UsageError if the trial that is stored was made by another passagent or under other settings."""
    differ = [f"passagent {run.version}, now {__version__}"] if run.version != __version__ else []
    same = kind_of(run.device) == kind_of(config.evaluator.device)
    for change in changed_settings(run.config, config.model_dump_json()):
        key = change.partition(" ")[0]
        if key not in FREE and not (key == "evaluator.device" and same):
            differ.append(change)
    if differ:
        raise UsageError(
            f"{runs_dir}: holds {run.task} trial {run.trial} of {run.model} made with {', '.join(differ)}; "
            "collect as before, or with another --runs-dir"
        )


def finished(store: Store, pairs: Iterable[Pair], config: Config) -> dict[Pair, str]:
    """The pairs whose trial is finished, and its run's id. Raises UsageError for one of other settings."""
    found = {}
    for pair in pairs:
        run = trials.find(store, pair.entry.key, config.model.label, pair.trial)
        if run is not None:
            check_same(run, config_of(config, pair.trial), store.runs_dir)
            if run.state == "finished":
                found[pair] = run.id
    return found
