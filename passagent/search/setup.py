"""From a task and a configuration to a session that can be searched: a new run, or one to go on with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from passagent import __version__
from passagent.agent.distiller import open_distiller
from passagent.agent.prompt import note_of, roles
from passagent.agent.validator import open_validator
from passagent.config import Config, EvaluatorConfig, SearchConfig, validate
from passagent.errors import UsageError, nearest
from passagent.evaluator.fleet.opening import device_label, machine_of
from passagent.evaluator.result import Candidate, Evaluation
from passagent.events import Follower, OnEvent
from passagent.experience import Diagnosis, diagnose, load_hints
from passagent.models.ensemble import model_names
from passagent.models.prices import check_budget, prices_of
from passagent.models.types import Model
from passagent.search import planting
from passagent.search.canonical import canonical_key
from passagent.search.run_memory import open_memory
from passagent.search.session import Evaluator, Session
from passagent.store import Store, runs
from passagent.store.runs import Run
from passagent.tasks import Task, load_task

Diagnose = Callable[[Evaluation], Diagnosis]


def new_run(
    store: Store,
    task: Task,
    config: Config,
    trial: int | None = None,
    known: tuple[dict[str, str], str] | None = None,
) -> Run:
    """A stored run of `task`, its islands' roles given in turn, and what `search.seed_dir` holds as a seed.

    trial: which one it is of a collection's trials of this task, from 0.
    known: files of a pass that is the seed without a `seed_dir`, and where they are from (Memory.seed).
    Raises UsageError for an unknown role, and for a directory that holds no pass.
    """
    search = config.search
    seed, origin = given_seed(config), f"directory {search.seed_dir}"
    if seed is None and known is not None:
        seed, origin = Candidate(known[0]), known[1]
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
            planting.plant(
                store,
                run,
                seed.files,
                note=note_of(seed.files),
                canonical_key=canonical_key(seed.files, seed.key),
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
    """What `search.seed_dir` holds; None where it names nothing. Raises UsageError if that is no pass."""
    return Candidate.from_dir(config.search.seed_dir) if config.search.seed_dir else None


def _has_seed(store: Store, run: Run, config: Config) -> bool:
    """Whether the run began with the files that `search.seed_dir` holds now."""
    planted, given = planting.planted(store, run.id), given_seed(config)
    return planted is None or given is None or planted.candidate_key == given.key


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


def open_session(
    store: Store,
    run: Run,
    task: Task,
    config: Config,
    on_event: OnEvent | None,
    model: Model,
    evaluator: Evaluator,
    diagnose_with: Diagnose | None = None,
) -> Session:
    """A session on `run`; `on_event` is told what happens in it.

    Without `diagnose_with` the machine is measured, before anything is timed. No hints are distilled where
    the library is off, nor for a task that is excluded from it.
    """
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
        waits_for_eager=config.search.deterministic,
    )


def diagnoser(config: EvaluatorConfig) -> Diagnose:
    """The diagnosis of evaluations on the devices of `config`."""
    return functools.partial(diagnose, machine=machine_of(config))
