"""A collection from what was asked for to its table, for the command line and for Python alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent.config import Config, load_config
from passagent.data.collect import trial_list, trials
from passagent.data.collect.collection_figures import Summary, summarise
from passagent.data.collect.trial_list import Listing, Pair
from passagent.data.collect.work import Collection, Watch
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.fleet.opening import check_devices, open_pool
from passagent.models import open_model
from passagent.models.probe import check_models
from passagent.models.types import Model
from passagent.search.run_files import run_log
from passagent.search.setup import check_money, check_roles
from passagent.search.startup import Parts
from passagent.store import Store
from passagent.system.resumable import locked
from passagent.tasks.tasklist import find_tasks, parse_shard

log = logging.getLogger("passagent.collect")

PRESET = "teacher"
"""The preset without `--config`."""
MOST_BROKEN = 0.2
"""Share of the tasks that may be broken; with more the collection counts as failed."""


@dataclass(frozen=True)
class Request:
    """What was asked for."""

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


@dataclass(frozen=True)
class Prepared:
    """What is to be made, and with what."""

    store: Store
    config: Config
    model: Model
    parts: Parts
    listing: Listing
    pairs: list[Pair]
    parallel: int
    done: dict[Pair, str]
    """Those that were made before, and their runs."""
    log: Path

    def summary(self) -> Summary:
        """Of those that were made before."""
        found = Summary(self.config.model.label, self.config.evaluator.b)
        for run_id in self.done.values():
            found.add(trials.outcome(self.store, run_id))
        return found


@dataclass(frozen=True)
class Collected:
    """What came of it."""

    runs_dir: Path
    summaries: list[Summary]
    """PassNet's figures of all finished trials in the database, of each model."""
    trials: int = 0
    """How many were asked for."""
    elapsed_s: float = 0.0
    stopped: str | None = None
    """Why it stopped before all was made."""
    is_interrupted: bool = False
    unfinished: list[dict[str, Any]] = field(default_factory=list)
    """`run`, `task`, `trial` and `reason` of each that is to be gone on with."""
    failed: dict[str, str] = field(default_factory=dict)
    """Each run that the machine failed, and why: the same call tries it again."""
    broken: dict[str, str] = field(default_factory=dict)
    """Directory of each task that could not be loaded or judged, and why."""
    too_broken: PassagentError | None = None
    """What to raise where more than MOST_BROKEN of the tasks are."""


@contextmanager
def prepared(request: Request, parts: Parts | None = None) -> Iterator[Prepared]:
    """The trials of a collection in its database, which nobody else collects into meanwhile.

    Raises UsageError before anything is written; PassagentError where no task can be loaded.
    """
    parts = parts or Parts()
    steps = request.max_steps
    limits = {} if steps is None else {"agent.max_steps": steps, "agent.max_evaluations": steps}
    settings = request.settings | limits
    shard = parse_shard(request.shard) if request.shard else (0, 1)
    config = load_config(request.preset or PRESET, settings)
    config = trial_list.settings_of_trials(config, settings)
    check_roles(config.search)
    check_devices(config.evaluator)
    model: Model = parts.model or open_model(config.model)
    check_money(config, model)
    listing = trial_list.list_tasks(find_tasks(list(request.tasks), request.root))
    pairs = trial_list.pairs_of(listing.entries, request.trials, request.shuffle, shard)
    if not pairs:
        no_trial = UsageError("no trial is in this shard: there are too few")
        raise _too_broken(listing, {}) or no_trial
    with (
        Store.open(request.runs_dir) as store,
        locked(store.runs_dir, "collect.lock"),
        run_log(store.runs_dir / "collect") as path,
    ):
        done = trial_list.finished(store, pairs, config)
        yield Prepared(store, config, model, parts, listing, pairs, request.parallel, done, path)


async def work(prepared: Prepared, watch: Watch, begun: Callable[[Collection], object]) -> Collected:
    """Make the trials that are not made yet. `begun` gets the collection, by which it can be stopped.

    Raises UsageError for a model that cannot be asked; what ends a collection (work.Collection.run).
    """
    parts, config = prepared.parts, prepared.config
    todo = [pair for pair in prepared.pairs if pair not in prepared.done]
    if parts.model is None and todo:
        await check_models(config)
    evaluator = parts.evaluator or open_pool(config.evaluator, tell=watch.say)
    collection = Collection(prepared.store, config, prepared.model, evaluator, watch, parts.diagnose)
    collection.budget.started = parts.begun
    begun(collection)
    try:
        await collection.run(todo, prepared.parallel)
    except PassagentError as error:
        log.exception("the collection ended with an error")
        if not isinstance(error, UsageError):
            error.args = (f"{error}; everything so far is stored, the same command goes on",)
        raise
    finally:
        await prepared.model.close()
        await evaluator.close()
    return Collected(
        runs_dir=prepared.store.runs_dir,
        summaries=summarise(trials.outcomes(prepared.store)),
        trials=len(prepared.pairs),
        elapsed_s=collection.budget.elapsed_s,
        stopped=collection.stop_reason,
        is_interrupted=collection.is_interrupted,
        unfinished=_unfinished(prepared, collection),
        failed=collection.failed,
        broken=prepared.listing.broken | collection.unfit,
        too_broken=_too_broken(prepared.listing, collection.unfit),
    )


def _unfinished(prepared: Prepared, collection: Collection) -> list[dict[str, Any]]:
    found = []
    for pair in prepared.pairs:
        run = trials.find(prepared.store, pair.entry.key, prepared.config.model.label, pair.trial)
        if run is not None and run.state != "finished" and run.id not in collection.failed:
            found.append({"run": run.id, "task": run.task, "trial": run.trial, "reason": run.stop_reason})
    return found


def _too_broken(listing: Listing, unfit: dict[str, str]) -> PassagentError | None:
    broken, count = listing.broken | unfit, len(listing.entries) + len(listing.broken)
    if not broken or len(broken) <= MOST_BROKEN * count:
        return None
    path, reason = next(iter(broken.items()))
    tasks = "1 task" if count == 1 else f"{count} tasks"
    return PassagentError(f"{len(broken)} of {tasks} are broken, such as {path}: {reason}")
