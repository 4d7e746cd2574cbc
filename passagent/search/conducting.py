"""A session from its beginning to its end, for the command line and for Python alike: nothing is printed."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent import extend
from passagent.config import Config, override
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.fleet.opening import check_devices, open_pool
from passagent.evaluator.result import Candidate
from passagent.evaluator.target import target_of
from passagent.events import OnEvent
from passagent.models import open_model
from passagent.models.probe import check_models
from passagent.models.types import Model
from passagent.search import planting
from passagent.search.beginning import Parts, begin
from passagent.search.controller import search
from passagent.search.device_report import report
from passagent.search.going_on import resume_command
from passagent.search.run_memory import open_memory
from passagent.search.runlog import run_log
from passagent.search.session import Session
from passagent.search.setup import (
    check_money,
    given_seed,
    new_run,
    open_session,
    same_run,
    stored_config,
    stored_task,
)
from passagent.search.wishes import driven
from passagent.store import Store, confirmations, nodes, runs, sessions
from passagent.store.runs import Run
from passagent.system.faults import os_fault
from passagent.tasks import Task

log = logging.getLogger("passagent.search")

FIXED = ("search.islands", "search.roles", "search.seed", "search.seed_dir")
"""Settings that a run keeps for its life: its tree is made of them."""


@dataclass(frozen=True)
class Prepared:
    """A stored run, and what a session works on it with."""

    store: Store
    run: Run
    task: Task
    config: Config
    model: Model
    parts: Parts
    is_found: bool = False
    """It had been begun before."""


@contextmanager
def started(runs_dir: str | Path, task: Task, config: Config, new: bool, parts: Parts) -> Iterator[Prepared]:
    """A run of `task`; an equal one that was left unfinished is gone on with, unless `new`.

    Raises UsageError for a model, a budget or a seed that cannot be used, before anything is stored.
    """
    model = _model(config, parts)
    given_seed(config)
    with Store.open(runs_dir) as store:
        memory = open_memory(config, task, store.runs_dir)
        known = memory.seed() if memory else None
        with store.transaction():  # of two that begin at the same moment one makes the run
            found = None if new else same_run(store, task, config)
            run = found or new_run(store, task, config, known=known)
        yield Prepared(store, run, task, config, model, parts, found is not None)


@contextmanager
def resumed(runs_dir: str | Path, name: str, settings: dict[str, Any], parts: Parts) -> Iterator[Prepared]:
    """Open the run `name` with `settings` changed, to go on with it.

    Raises UsageError for a run that is not there, and for a setting that is fixed for a run's life.
    """
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        for key in FIXED:
            if key in settings:
                raise UsageError(
                    f"{key}: is fixed for a run's life; passagent fork starts a new one from a node"
                )
        config = override(stored_config(run), settings)
        if run.is_served:
            raise UsageError(
                f"run {run.id} has the candidates of clients: {resume_command(store, run.id)} goes on with "
                f"it, passagent fork {run.id} --from NODE searches on"
            )
        task = stored_task(run)
        with begin(config, task, parts) as begun:
            yield Prepared(store, run, task, config, _model(config, begun), begun, True)


@contextmanager
def forked(
    runs_dir: str | Path, name: str, node_id: int, settings: dict[str, Any], parts: Parts
) -> Iterator[Prepared]:
    """A new run that starts from a node of run `name`, under that one's settings with `settings` changed.

    Raises UsageError if the run has no such node, or it was not evaluated.
    """
    with Store.open(runs_dir, create=False) as store:
        run, origin = runs.find_run(store, name), nodes.get_node(store, node_id)
        if origin.run_id != run.id:
            raise UsageError(f"run {run.id} has no node {node_id}; it is of run {origin.run_id}")
        if origin.state != "done":
            raise UsageError(f"node {node_id} has not been evaluated yet; resume run {run.id} first")
        if settings.get("search.seed_dir"):
            raise UsageError(
                "search.seed_dir: a fork starts from a node; passagent run starts from a directory"
            )
        # what a search without a node to start from begins with, unless it is asked for
        anew: dict[str, Any] = {"search.drafts": 0, "search.expert_seeds": 0, "search.seed_dir": None}
        if run.is_served:
            usual = Config()
            anew |= {"model.name": usual.model.name, "search.iters": usual.search.iters}
            anew |= {"search.islands": usual.search.islands}
        config = override(stored_config(run), anew | settings)
        task = stored_task(run)
        if parts.evaluator is None:
            check_devices(config.evaluator)
        model = _model(config, parts)
        with store.transaction():
            new = new_run(store, task, config)
            planting.plant_fork(store, new, origin, number=-config.search.expert_seeds)
        with begin(config, task, parts) as begun:
            yield Prepared(store, runs.get_run(store, new.id), task, config, model, begun)


def _model(config: Config, parts: Parts) -> Model:
    """The model that writes passes. Raises UsageError, also for other plug-ins and the budget."""
    extend.check(config)
    target_of(config.evaluator)
    model: Model = parts.model or open_model(config.model)
    check_money(config, model)
    return model


async def work(
    prepared: Prepared,
    on_event: OnEvent | None,
    begun: Callable[[Session], object],
) -> Path | None:
    """Work on the run until it ends or is stopped; where its best pass was written, if it has one.

    `begun` gets the session, by which it can be stopped; `on_event` is told what happens in the run.
    Raises UsageError while another process drives the run, and what the search raises, with how to go on.
    """
    store, run, config, parts = prepared.store, prepared.run, prepared.config, prepared.parts
    if sessions.is_driven(store, run.id):  # said before models and devices are asked; `search` makes sure
        raise driven(store, run.id)
    with run_log(store.runs_dir / run.id):

        def tell(line: str) -> None:
            log.warning(line)
            session.events.note(line)

        try:
            if parts.model is None and (config.search.expert_seeds or planting.planted(store, run.id)):
                await check_models(config)  # without a seed a model's first request is the first thing done
            evaluator = parts.evaluator or open_pool(config.evaluator, tell, parts.ahead)
            session = open_session(
                store, run, prepared.task, config, on_event, prepared.model, evaluator, parts.diagnose
            )
            session.begun = parts.begun
            begun(session)
            reporting = asyncio.create_task(report(evaluator, store.runs_dir / run.id))
            try:
                try:
                    await search(session)
                finally:
                    session.events.look()
            finally:
                reporting.cancel()
                for one in (session.model, session.validator, session.evaluator):
                    if one is not None:
                        await one.close()
        except UsageError:
            log.exception("the search ended with an error")
            raise
        except Exception as error:
            log.exception("the search ended with an error")
            known = error if isinstance(error, PassagentError) else PassagentError(f"{error!r}; see run.log")
            go_on = resume_command(store, run.id)
            known.args = (f"{known}; everything so far is stored, go on with: {go_on}",)
            if known is error:
                raise
            raise known from error
    return export_best(store, runs.get_run(store, run.id))


def export_best(store: Store, run: Run) -> Path | None:
    """Write the best pass to `<runs_dir>/<run>/best`; None if nothing is correct. Raises PassagentError.

    An older one is replaced when the new one is whole.
    """
    best = confirmations.winner(store, run.id)
    if best is None:
        return None
    path = store.runs_dir / run.id / "best"
    fresh = path.with_name("best.new")
    try:
        shutil.rmtree(fresh, ignore_errors=True)  # a dead process's
        fresh.mkdir(parents=True)
        Candidate(nodes.get_files(store, best)).write(fresh)
        shutil.rmtree(path, ignore_errors=True)
        fresh.rename(path)
    except OSError as error:
        raise os_fault(error, path) from error
    return path
