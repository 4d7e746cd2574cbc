"""`passagent collect`: many tasks, several trials of each, and PassNet's figures about what came of them."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent.collect import plan
from passagent.collect.lock import alone, is_held
from passagent.collect.plan import Listing, Pair
from passagent.collect.summary import Summary, summarise
from passagent.collect.work import Collection
from passagent.commands.signals import stop_on_signals
from passagent.config import load_config
from passagent.errors import EXIT_INTERRUPTED, PassagentError, UsageError
from passagent.evaluator.hardware.devices import find_devices
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.models import open_model
from passagent.report import collect_table
from passagent.report.collect_progress import CollectProgress
from passagent.report.text import counted
from passagent.search.beginning import Parts
from passagent.search.runlog import run_log
from passagent.search.setup import check_money, check_roles
from passagent.store import Store, merging, trials
from passagent.tasks.tasklist import find_tasks

log = logging.getLogger("passagent.commands")

PRESET = "teacher"
"""The preset without `--config`."""
MOST_BROKEN = 0.2
"""Share of the tasks that may be broken; more end with exit code 1."""


class Interrupted(PassagentError):
    """A person stopped the collection; everything is stored."""

    exit_code = EXIT_INTERRUPTED


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    tasks: list[str]
    settings: dict[str, Any]
    preset: str | None = None
    root: str | None = None
    trials: int = 2
    parallel: int = 4
    shuffle: int | None = None
    shard: str | None = None
    runs_dir: str = "runs"
    as_json: bool = False


def collect(request: Request, parts: Parts | None = None) -> None:
    """Make the trials that are not made yet, then print the table.

    Raises PassagentError if too many tasks are broken or the machine failed a trial (after the table),
    Interrupted after Ctrl-C, UsageError before anything is written.
    """
    parts = parts or Parts()
    shard = plan.parse_shard(request.shard) if request.shard else (0, 1)
    config = load_config(request.preset or PRESET, request.settings)
    config = plan.settings_of_trials(config, request.settings)
    check_roles(config.search)
    find_devices(config.evaluator.device)
    model = parts.model or open_model(config.model)
    check_money(config, model)
    listing = plan.list_tasks(find_tasks(request.tasks, request.root))
    pairs = plan.pairs_of(listing.entries, request.trials, request.shuffle, shard)
    stream = sys.stderr if request.as_json else sys.stdout
    if not pairs:
        _tell_tasks(listing, stream)
        raise (
            _too_broken(listing)
            if listing.broken
            else UsageError("no trial is in this shard: there are too few")
        )
    with (
        Store.open(request.runs_dir) as store,
        alone(store.runs_dir),
        run_log(store.runs_dir / "collect") as path,
    ):
        done = plan.finished(store, pairs, config)
        print(
            f"{counted(len(listing.entries), 'task')}, {counted(len(pairs), 'trial')}, "
            f"{len(done)} of them made before; {config.model.label}, {config.evaluator.device}; log: {path}",
            file=stream,
            flush=True,
        )
        _tell_tasks(listing, stream)
        summary = Summary(config.model.label, config.evaluator.b)
        for run_id in done.values():
            summary.add(trials.outcome(store, run_id))
        progress = CollectProgress(summary, len(pairs), stream)
        todo = [pair for pair in pairs if pair not in done]
        evaluator = parts.evaluator or EvaluatorPool(config.evaluator, tell=progress.say)
        collection = Collection(store, config, model, evaluator, progress, parts.diagnose)
        try:
            asyncio.run(_until_stopped(collection, todo, request.parallel, progress))
        except PassagentError as error:
            log.exception("the collection ended with an error")
            if not isinstance(error, UsageError):
                error.args = (f"{error}; everything so far is stored, the same command goes on",)
            raise
        except KeyboardInterrupt as error:  # before or after the conversations, which take signals themselves
            raise Interrupted(_GO_ON) from error
        finally:
            progress.close()
        _print(store, collection, listing, pairs, request.as_json)
    if collection.is_interrupted:
        raise Interrupted(_GO_ON)
    if collection.failed:
        run_id, reason = next(iter(collection.failed.items()))
        raise PassagentError(
            f"{counted(len(collection.failed), 'trial')} failed, such as run {run_id}: {reason}; "
            "the same command tries again"
        )
    if len(listing.broken) + len(collection.unfit) > MOST_BROKEN * (
        len(listing.entries) + len(listing.broken)
    ):
        raise _too_broken(listing, collection.unfit)


_GO_ON = "interrupted; everything is stored, the same command goes on"


def merge(directories: list[str], runs_dir: str, as_json: bool) -> None:
    """Write a new database of those in `directories`, and print its table. Raises UsageError, see merging."""
    for directory in directories:
        if is_held(Path(directory)):
            raise UsageError(f"{directory}: a process collects here; merge it when that has ended")
    counts = merging.merge([Path(one) for one in directories], Path(runs_dir))
    with Store.open(runs_dir, create=False) as store:
        summaries = summarise(trials.outcomes(store))
    if as_json:
        shown = {"runs_dir": str(runs_dir), "merged": counts, "table": collect_table.data(summaries)}
        print(json.dumps(shown))
        return
    for directory, count in counts.items():
        print(f"{directory}: {counted(count, 'run')}")
    print(f"{runs_dir}: {counted(sum(counts.values()), 'run')}")
    if summaries:
        print(collect_table.text(summaries))


async def _until_stopped(
    collection: Collection, todo: list[Pair], parallel: int, progress: CollectProgress
) -> None:
    """Collect; the first Ctrl-C or SIGTERM stops cleanly, the second at once."""
    stop_on_signals(collection, progress, "the same command goes on")
    try:
        await collection.run(todo, parallel)
    finally:
        await collection.model.close()
        await collection.evaluator.close()


def _tell_tasks(listing: Listing, stream: Any) -> None:
    for path, first in listing.equal:
        print(f"note: {path} is the same task as {first}: it is collected once", file=stream)
    if listing.broken:
        print(f"note: {counted(len(listing.broken), 'task')} cannot be loaded, see the end", file=stream)


def _too_broken(listing: Listing, unfit: dict[str, str] | None = None) -> PassagentError:
    broken = listing.broken | (unfit or {})
    path, reason = next(iter(broken.items()))
    count = len(listing.entries) + len(listing.broken)
    return PassagentError(f"{len(broken)} of {counted(count, 'task')} are broken, such as {path}: {reason}")


def _print(store: Store, collection: Collection, listing: Listing, pairs: list[Pair], as_json: bool) -> None:
    summaries, left = summarise(trials.outcomes(store)), []
    for pair in pairs:
        run = trials.find(store, pair.entry.key, collection.config.model.label, pair.trial)
        if run is not None and run.state != "finished" and run.id not in collection.failed:
            left.append({"run": run.id, "task": run.task, "trial": run.trial, "reason": run.stop_reason})
    broken = listing.broken | collection.unfit
    if as_json:
        found = {
            "runs_dir": str(store.runs_dir),
            "table": collect_table.data(summaries),
            "trials": len(pairs),
            "elapsed_s": collection.budget.elapsed_s,
            "stopped": collection.stop_reason,
            "unfinished": left,
            "failed": collection.failed,
            "broken": broken,
        }
        print(json.dumps(found))
        return
    print(collect_table.text(summaries))
    for path, reason in broken.items():
        print(f"broken: {path}: {reason}")
    for run_id, reason in collection.failed.items():
        print(f"failed: run {run_id}: {reason}")
    if collection.stop_reason is not None and not collection.is_interrupted:
        print(f"stopped: {collection.stop_reason}; with a larger limit the same command goes on")
    elif left and not collection.is_interrupted:
        print(
            f"{counted(len(left), 'trial')} not finished, such as run {left[0]['run']}: {left[0]['reason']}; "
            "the same command goes on"
        )
