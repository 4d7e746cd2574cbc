"""Runs and their sessions: begin, resume or fork a run, open its session, work on it to the end.

`started`, `resumed` and `forked` find the run and the settings; `open_session` makes the session that drives
it, also for those that drive many (collect, bench, mcp); `work` drives it. Nothing is printed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from passagent import __version__, extend
from passagent.agent.distiller import open_distiller
from passagent.agent.prompt import check_role
from passagent.config import Config, SearchConfig, override, validate
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.fleet.opening import LOCAL, check_devices, device_label, open_pool
from passagent.evaluator.judging.effort import check_task_room
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.target import target_of
from passagent.experience.diagnosis import Diagnosis
from passagent.experience.hints import load_hints
from passagent.extend import Model
from passagent.models import open_model
from passagent.models.ensemble import model_names
from passagent.models.prices import Price, check_budget, prices_of
from passagent.models.probe import check_models
from passagent.search.candidates import propose
from passagent.search.controller import search
from passagent.search.run_files import report, run_log
from passagent.search.run_memory import open_memory
from passagent.search.session import EXPERT, Evaluator, Session
from passagent.store import Node, Run, Store, episodes, nodes, runs, sessions
from passagent.store.events import OnEvent
from passagent.store.sessions import driven, resume_command
from passagent.store.timeline import Follower
from passagent.tasks import Task, load_task

log = logging.getLogger("passagent.search")

FIXED = ("search.islands", "search.roles", "search.seed", "search.seed_dir")
"""Settings that a run keeps for its life: its tree is made of them."""


def new_run(
    store: Store,
    task: Task,
    config: Config,
    trial: int | None = None,
    seed: tuple[dict[str, str], str] | None = None,
    origin: Node | None = None,
) -> Run:
    """A stored run of `task`, its islands' roles given in turn, and what `search.seed_dir` holds as a seed.

    `trial`: which one it is of a collection's trials of this task, from 0. `seed`: files that are the seed
    without a `seed_dir`, and who or what they are from. `origin`: the node that it is forked from.
    Raises UsageError for an unknown role, and for a directory that holds no pass.
    """
    search = config.search
    if (configured := given_seed(config)) is not None:
        seed = configured.files, f"directory {search.seed_dir}"
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
            forked_run=origin.run_id if origin else None,
            forked_node=origin.id if origin else None,
        )
        if seed:
            files, author = seed
            episode = episodes.plant_episode(store, run, -search.expert_seeds, author)
            propose(store, episode, files, nodes.PLANTED)
    return run


def check_roles(search: SearchConfig) -> None:
    """Raise UsageError for a role that has no prompt."""
    for role in search.roles:
        check_role(role)


def same_run(store: Store, task: Task, config: Config) -> Run | None:
    """The newest run with this very task, configuration and `search.seed_dir`'s files, if not finished."""
    same = (task.key, config.model_dump_json(), __version__, None)
    for run in runs.list_runs(store):
        if (run.task_key, run.config, run.version, run.trial) == same:
            planted, seed = nodes.planted(store, run.id), given_seed(config)
            has_seed = planted is None or seed is None or planted.candidate_key == seed.key
            return run if run.state != "finished" and has_seed else None
    return None


def given_seed(config: Config) -> Candidate | None:
    """The seed in `search.seed_dir`; None where it names nothing. Raises UsageError if that is no pass."""
    return Candidate.from_dir(config.search.seed_dir) if config.search.seed_dir else None


def check_money(config: Config, model: Model) -> None:
    """Raise UsageError where a budget of money could not be kept, before anything is stored or paid."""
    check_budget(_prices(config, model), config.search.max_cost, config.search.max_tokens)


def _prices(config: Config, model: Model) -> dict[str, Price | None]:
    """The prices of all models that are paid for, by their names."""
    distiller = config.roles.hint_distiller
    return prices_of(config.model, [*model_names(model), *([distiller.name] if distiller else [])])


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


@dataclass(frozen=True)
class Parts:
    """Stand-ins for the model, evaluator and diagnosis that the configuration names."""

    model: Model | None = None
    evaluator: Evaluator | None = None
    diagnose: Callable[[Evaluation], Diagnosis] | None = None
    begun: float = field(default_factory=time.monotonic)
    """When the command began, by time.monotonic(): `search.max_time_s` counts from then."""


def _checked(config: Config, task: Task, parts: Parts) -> Parts:
    """Return `parts` with the model.

    Raises UsageError for a model, another plug-in, a budget or a device that cannot be used, TaskError or
    InfrastructureError for a task that is too large for this machine's memory, before anything is stored.
    """
    extend.check(config)
    target_of(config.evaluator)
    parts = replace(parts, model=parts.model or open_model(config.model))
    assert parts.model is not None
    check_money(config, parts.model)
    if parts.evaluator is None:
        if config.evaluator.pool == LOCAL:
            check_task_room(task, config.evaluator.device)
        check_devices(config.evaluator)
    return parts


def open_session(
    store: Store, run: Run, task: Task, config: Config, parts: Parts, on_event: OnEvent | None = None
) -> Session:
    """A session on the run, which `parts` has the model for; `on_event` gets its events.

    No hints are distilled where the library is off, nor for a task that is excluded from it.
    """
    assert parts.model is not None
    memory = open_memory(config, task, store.runs_dir)
    events = Follower(store, run.id, on_event)

    evaluator = parts.evaluator
    if evaluator is None:
        evaluator = open_pool(config.evaluator, events.note)
        evaluator.start()
    return Session(
        store=store,
        run=run,
        task=task,
        config=config,
        model=parts.model,
        evaluator=evaluator,
        stand_in_diagnosis=parts.diagnose,
        hints=load_hints(),
        device_name=device_label(config.evaluator),
        events=events,
        prices=_prices(config, parts.model),
        distiller=open_distiller(config) if memory and not memory.is_excluded else None,
        memory=memory,
        begun=parts.begun,
    )


@contextmanager
def started(
    runs_dir: str | Path, task: Task, config: Config, new: bool = False, parts: Parts | None = None
) -> Iterator[Session]:
    """A session on a run of `task`; an equal one that was left unfinished is gone on with, unless `new`.

    Raises what cannot be used (`_checked`), and UsageError for a seed that is no pass, before anything is
    stored.
    """
    parts = _checked(config, task, parts or Parts())
    given_seed(config)
    assert parts.model is not None
    has_expert = config.search.expert_seeds > 0 or EXPERT in model_names(parts.model)
    with Store.open(runs_dir) as store:
        memory = open_memory(config, task, store.runs_dir, needs_torch=has_expert)
        seed = memory.seed() if memory else None
        with store.transaction():  # of two that begin at the same moment one makes the run
            equal = None if new else same_run(store, task, config)
            run = equal or new_run(store, task, config, seed=seed)
        session = open_session(store, run, task, config, parts)
        session.is_resumed = equal is not None
        yield session


@contextmanager
def resumed(
    runs_dir: str | Path, name: str, settings: dict[str, Any], parts: Parts | None = None
) -> Iterator[Session]:
    """A session on the run `name`, to go on with it with `settings` changed.

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
        yield open_session(store, run, task, config, _checked(config, task, parts or Parts()))


@contextmanager
def forked(
    runs_dir: str | Path, name: str, node_id: int, settings: dict[str, Any], parts: Parts | None = None
) -> Iterator[Session]:
    """A session on a new run that starts from a node of run `name`, under its settings and `settings`.

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
        parts = _checked(config, task, parts or Parts())
        seed = nodes.get_files(store, origin), nodes.author_of(store, run, origin)
        new = new_run(store, task, config, seed=seed, origin=origin)
        yield open_session(store, new, task, config, parts)


async def work(session: Session, on_event: OnEvent | None = None) -> None:
    """Work on the run until it ends or is stopped.

    `on_event` gets the run's events. Raises UsageError while another process drives the run, and what the
    search raises, with how to go on.
    """
    store, run = session.store, session.run
    session.events.follow(on_event)
    with run_log(store.runs_dir / run.id):
        reporting = asyncio.create_task(report(session.evaluator, store.runs_dir / run.id))
        try:
            if sessions.is_driven(store, run.id):  # said before models are asked; `search` makes sure
                raise driven(store, run.id)
            if session.config.search.expert_seeds or nodes.planted(store, run.id):
                await check_models(session.config)  # without a seed its first request is the first thing done
            try:
                await search(session)
            finally:
                session.events.look()
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
        finally:
            reporting.cancel()
            for resource in (session.model, session.evaluator):
                await resource.close()
