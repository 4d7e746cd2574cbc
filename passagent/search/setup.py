"""Runs and their sessions: begin, resume or fork a run, open its session, work on it to the end.

The command line, Python and collections open runs here. Nothing is printed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent import __version__, extend
from passagent.agent.distiller import open_distiller
from passagent.agent.prompt import note_of, roles
from passagent.agent.validator import open_validator
from passagent.config import Config, EvaluatorConfig, SearchConfig, override, validate
from passagent.errors import PassagentError, UsageError, nearest
from passagent.evaluator.fleet.opening import check_devices, device_label, machine_of, open_pool
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.target import target_of
from passagent.events import OnEvent
from passagent.experience import Diagnosis, diagnose, load_hints
from passagent.models import open_model
from passagent.models.ensemble import model_names
from passagent.models.prices import check_budget, prices_of
from passagent.models.probe import check_models
from passagent.models.types import Model
from passagent.search import finalists
from passagent.search.candidates import canonical_key
from passagent.search.controller import search
from passagent.search.run_files import report, run_log
from passagent.search.run_memory import open_memory
from passagent.search.session import Evaluator, Session
from passagent.search.startup import Parts, begin
from passagent.store import Store, nodes, runs, seeds, sessions
from passagent.store.nodes import Proposal
from passagent.store.runs import Run
from passagent.store.sessions import driven, resume_command
from passagent.store.timeline import Follower
from passagent.system.faults import os_fault
from passagent.tasks import Task, load_task

log = logging.getLogger("passagent.search")

Diagnose = Callable[[Evaluation], Diagnosis]
FIXED = ("search.islands", "search.roles", "search.seed", "search.seed_dir")
"""Settings that a run keeps for its life: its tree is made of them."""


def new_run(
    store: Store,
    task: Task,
    config: Config,
    trial: int | None = None,
    library_seed: tuple[dict[str, str], str] | None = None,
) -> Run:
    """A stored run of `task`, its islands' roles given in turn, and what `search.seed_dir` holds as a seed.

    trial: which one it is of a collection's trials of this task, from 0.
    library_seed: files that are the seed without a `seed_dir`, and where they are from (Memory.seed).
    Raises UsageError for an unknown role, and for a directory that holds no pass.
    """
    search = config.search
    seed, origin = given_seed(config), f"directory {search.seed_dir}"
    if seed is None and library_seed is not None:
        seed, origin = Candidate(library_seed[0]), library_seed[1]
    check_roles(search)
    with store.transaction():
        run = runs.create_run(
            store,
            roles=[search.roles[island % len(search.roles)] for island in range(search.islands)],
            operators=list(task.operators),
            subgraphs=[subgraph.source_key for subgraph in task.subgraphs],
            trial=trial,
            task=task.name,
            task_path=str(task.path.resolve()),
            task_key=task.key,
            model=config.model.label,
            device=config.evaluator.device,
            seed=search.seed,
            iters=search.iters,
            config=config.model_dump_json(),
            version=__version__,
        )
        if seed:
            seeds.plant(
                store,
                run,
                Proposal(seed.files, note_of(seed.files), canonical_key(seed.files, seed.key)),
                number=-search.expert_seeds,
                model=origin,
            )
    return run


def check_roles(search: SearchConfig) -> None:
    """Raise UsageError for a role that has no prompt."""
    for role in search.roles:
        if role not in roles():
            raise UsageError(f"search.roles: no prompt for role '{role}'{nearest(role, roles())}")


def same_run(store: Store, task: Task, config: Config) -> Run | None:
    """The newest run with this very task, configuration and `search.seed_dir`'s files, if not finished."""
    for run in runs.list_runs(store):
        same = (run.task_key, run.config, run.version) == (task.key, config.model_dump_json(), __version__)
        if same and run.trial is None:
            return run if run.state != "finished" and _has_seed(store, run, config) else None
    return None


def given_seed(config: Config) -> Candidate | None:
    """The seed in `search.seed_dir`; None where it names nothing. Raises UsageError if that is no pass."""
    return Candidate.from_dir(config.search.seed_dir) if config.search.seed_dir else None


def _has_seed(store: Store, run: Run, config: Config) -> bool:
    """Tell whether the run began with the files that `search.seed_dir` holds now."""
    planted, configured = seeds.planted(store, run.id), given_seed(config)
    return planted is None or configured is None or planted.candidate_key == configured.key


def check_money(config: Config, model: Model) -> None:
    """Raise UsageError where a budget of money could not be kept, before anything is stored or paid."""
    prices = prices_of(config.model, _names(config, model))
    check_budget(prices, config.search.max_cost, config.search.max_tokens)


def _names(config: Config, model: Model) -> list[str]:
    """The names of all models that are paid for."""
    distiller = config.roles.hint_distiller
    others = [config.validator.model, distiller.name if distiller else None]
    return [*model_names(model), *(name for name in others if name)]


def stored_config(run: Run) -> Config:
    """The run's configuration. Raises UsageError if this version of passagent does not know a key of it."""
    import json

    return validate(json.loads(run.config), f"run {run.id}")


def stored_task(run: Run) -> Task:
    """The run's task. Raises UsageError if it is gone or is no longer the same."""
    task = load_task(Path(run.task_path))
    if task.key != run.task_key:
        raise UsageError(
            f"{run.task_path}: the task has changed since run {run.id} began; restore it or start a new run"
        )
    return task


def open_session(prepared: Prepared, on_event: OnEvent | None, evaluator: Evaluator) -> Session:
    """A session on the prepared run; `on_event` gets its events.

    Without `parts.diagnose` the machine is measured, before anything is timed. No hints are distilled where
    the library is off, nor for a task that is excluded from it.
    """
    store, run, task, config = prepared.store, prepared.run, prepared.task, prepared.config
    model, diagnose_with = prepared.model, prepared.parts.diagnose
    memory = open_memory(config, task, store.runs_dir)
    return Session(
        store=store,
        run=run,
        task=task,
        config=config,
        model=model,
        evaluator=evaluator,
        diagnose=diagnose_with or diagnoser(config.evaluator),
        hints=load_hints(),
        device_name=device_label(config.evaluator),
        events=Follower(store, run.id, on_event),
        prices=prices_of(config.model, _names(config, model)),
        validator=open_validator(config),
        distiller=open_distiller(config) if memory and not memory.is_excluded else None,
        memory=memory,
        machine=None if diagnose_with else machine_of(config.evaluator),
    )


def diagnoser(config: EvaluatorConfig) -> Diagnose:
    """The diagnosis of evaluations on the devices of `config`."""
    return functools.partial(diagnose, machine=machine_of(config))


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
        library_seed = memory.seed() if memory else None
        with store.transaction():  # of two that begin at the same moment one makes the run
            resumed = None if new else same_run(store, task, config)
            run = resumed or new_run(store, task, config, library_seed=library_seed)
        yield Prepared(store, run, task, config, model, parts, resumed is not None)


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
            seeds.plant_fork(store, new, origin, number=-config.search.expert_seeds)
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
    """Work on the run until it ends or is stopped. Return where its best pass was written, if it has one.

    `begun` gets the session, by which it can be stopped; `on_event` gets the run's events.
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
            if parts.model is None and (config.search.expert_seeds or seeds.planted(store, run.id)):
                await check_models(config)  # without a seed a model's first request is the first thing done
            evaluator = parts.evaluator or open_pool(config.evaluator, tell, parts.ahead)
            session = open_session(prepared, on_event, evaluator)
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
                for resource in (session.model, session.validator, session.evaluator):
                    if resource is not None:
                        await resource.close()
        except UsageError:
            log.exception("the search ended with an error")
            raise
        except Exception as error:
            log.exception("the search ended with an error")
            failure = (
                error if isinstance(error, PassagentError) else PassagentError(f"{error!r}; see run.log")
            )
            go_on = resume_command(store, run.id)
            failure.args = (f"{failure}; everything so far is stored, go on with: {go_on}",)
            if failure is error:
                raise
            raise failure from error
    return export_best(store, runs.get_run(store, run.id))


def export_best(store: Store, run: Run) -> Path | None:
    """Write the best pass to `<runs_dir>/<run>/best`; None if nothing is correct. Raises PassagentError.

    An older one is replaced when the new one is whole.
    """
    best = finalists.winner(store, run.id)
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
