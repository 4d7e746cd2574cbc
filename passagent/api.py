"""passagent from Python: what the command line does, by the same names. Nothing here prints or exits.

Whatever goes wrong is raised as a PassagentError with the one line that the command would print: UsageError,
TaskError, InfrastructureError. Work is done by an event loop on a thread of its own, so every function here
may be called from a script, a thread or a notebook, and `on_event` is called on that thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from passagent.config import load_config
from passagent.deploy.model_api import (
    apply,
    explain,
    extract,
    extract_regions,
    inductor_options,
    measure,
    optimize,
    package,
)
from passagent.errors import InfrastructureError, PassagentError, TaskError, UsageError
from passagent.search.startup import Parts, begin
from passagent.search.thread import Search, Stoppable, finished, finished_async
from passagent.settings import settings_of
from passagent.system.threads import LoopThread
from passagent.tasks import Task, load_task
from passagent.view.handles import Bench, Collection, Node, Nodes, Plan, Result, Run
from passagent.view.warm_evaluator import Evaluator, Settings, as_task

if TYPE_CHECKING:
    from passagent.data.dataset.writing import Summary
    from passagent.events import Event
    from passagent.search.setup import Prepared

__all__ = [
    "Bench", "Collection", "Evaluator", "InfrastructureError", "Node", "Nodes", "Options", "PassagentError",
    "Plan", "Result", "Run", "TaskError", "UsageError", "apply", "bench", "build_dataset", "collect",
    "explain", "export", "extract", "extract_regions", "fork", "inductor_options", "load_task", "measure",
    "open_run", "optimize", "package", "resume", "resume_async", "run", "run_async",
]  # fmt: skip

logging.getLogger("passagent").addHandler(logging.NullHandler())  # a library prints nothing by itself

OnEvent = Callable[["Event"], object]
"""Is told what happens in a run (docs/operators.md)."""


class Options(TypedDict, total=False):
    """Options of a search by the names that the command line has for them. None: as the settings say."""

    model: str | Sequence[str] | None
    """`expert`, `openai/NAME`, `anthropic/NAME` or `replay:FILE`; several with =WEIGHT share the work."""
    base_url: str | None
    price: str | Sequence[str] | None
    """`MODEL=IN,OUT`, USD per million tokens."""
    device: str | None
    pool: str | None
    """`local`, `http://HOST:PORT,...`, `ray[://ADDRESS]` (docs/cluster.md)."""
    token_file: str | None
    library: str | None
    """Where runs keep what they found and learned; `off`: nowhere. Default: `RUNS_DIR/library.db`."""
    exclude: Sequence[str] | None
    """Tasks of which nothing is stored there or taken from there."""
    deterministic: bool | None
    dispatch: Literal["direct", "dynamo", "graph", "python"] | None
    iters: int | None
    """Episodes over the life of the run."""
    islands: int | None
    seed: int | None
    seed_dir: str | None
    max_time: float | None
    """s."""
    max_tokens: int | None
    max_cost: float | None
    """USD."""
    max_evals: int | None
    target_as: float | None
    max_stagnation: int | None
    """Episodes without a gain."""
    until: float | Literal["sol"] | None
    """Stop when an hour more is expected to gain less than this share of AS; `sol`: at the speed of light."""


def run(
    task: Task | str | Path,
    *,
    runs_dir: str | Path = "runs",
    config: str | None = None,
    settings: Settings | None = None,
    new: bool = False,
    on_event: OnEvent | None = None,
    **options: Unpack[Options],
) -> Run:
    """Search for passes for a task, until a stopping rule ends it; `options`: see Options.

    An equal run that was left unfinished is gone on with, unless `new`. Ctrl-C (a notebook's interrupt) stops
    it cleanly: everything is stored, then KeyboardInterrupt is raised. A second one stops it at once.
    Raises UsageError, TaskError, InfrastructureError.
    """
    return finished(_run(task, runs_dir, config, settings, new, on_event, dict(options)))


async def run_async(
    task: Task | str | Path,
    *,
    runs_dir: str | Path = "runs",
    config: str | None = None,
    settings: Settings | None = None,
    new: bool = False,
    on_event: OnEvent | None = None,
    **options: Unpack[Options],
) -> Run:
    """See `run`; cancelling it stops the search as Ctrl-C does."""
    return await finished_async(_run(task, runs_dir, config, settings, new, on_event, dict(options)))


def resume(
    run: Run | str,
    *,
    runs_dir: str | Path = "runs",
    settings: Settings | None = None,
    on_event: OnEvent | None = None,
    **options: Unpack[Options],
) -> Run:
    """Go on with a run where it was left, under its settings and those given; `iters` for more episodes.

    run: a Run, or an id or `last` in `runs_dir`.
    Raises as `run`.
    """
    return finished(_resume(run, runs_dir, settings, on_event, dict(options)))


async def resume_async(
    run: Run | str,
    *,
    runs_dir: str | Path = "runs",
    settings: Settings | None = None,
    on_event: OnEvent | None = None,
    **options: Unpack[Options],
) -> Run:
    """See `resume`; cancelling it stops the search as Ctrl-C does."""
    return await finished_async(_resume(run, runs_dir, settings, on_event, dict(options)))


def fork(
    node: Node,
    *,
    settings: Settings | None = None,
    on_event: OnEvent | None = None,
    **options: Unpack[Options],
) -> Run:
    """Search in a new run that starts from a node, under its run's settings and those given; see `run`."""
    return finished(_fork(node, settings, on_event, dict(options)))


def _run(
    task: Task | str | Path,
    runs_dir: str | Path,
    preset: str | None,
    settings: Settings | None,
    new: bool,
    on_event: OnEvent | None,
    options: dict[str, Any],
) -> Search[Run]:
    async def search(sessions: list[Stoppable]) -> Run:
        loaded = as_task(task)
        config = load_config(preset, settings_of(options, settings))
        with begin(config, loaded, Parts()) as parts:
            from passagent.search import setup

            with setup.started(runs_dir, loaded, config, new, parts) as prepared:
                return await _work(prepared, on_event, sessions)

    return search


def _resume(
    run: Run | str,
    runs_dir: str | Path,
    settings: Settings | None,
    on_event: OnEvent | None,
    options: dict[str, Any],
) -> Search[Run]:
    async def search(sessions: list[Stoppable]) -> Run:
        from passagent.search import setup

        place, name = (run.runs_dir, run.id) if isinstance(run, Run) else (Path(runs_dir), run)
        with setup.resumed(place, name, settings_of(options, settings), Parts()) as prepared:
            return await _work(prepared, on_event, sessions)

    return search


def _fork(
    node: Node, settings: Settings | None, on_event: OnEvent | None, options: dict[str, Any]
) -> Search[Run]:
    async def search(sessions: list[Stoppable]) -> Run:
        from passagent.search import setup
        from passagent.store import Store, nodes

        with Store.open(node.runs_dir, create=False) as store:
            run_id = nodes.get_node(store, node.id).run_id
        with setup.forked(
            node.runs_dir, run_id, node.id, settings_of(options, settings), Parts()
        ) as prepared:
            return await _work(prepared, on_event, sessions)

    return search


async def _work(prepared: Prepared, on_event: OnEvent | None, sessions: list[Stoppable]) -> Run:
    from passagent.search import setup

    await setup.work(prepared, on_event, sessions.append)
    return Run(prepared.run.id, prepared.store.runs_dir)


def open_run(name: str = "last", *, runs_dir: str | Path = "runs") -> Run:
    """The stored run of an id, a unique prefix of one, or `last`. Raises UsageError."""
    return Run.find(name, runs_dir)


def bench(
    tasks: Sequence[str],
    *,
    compiler: Sequence[str] | None = None,
    device: str | None = None,
    pool: str | None = None,
    token_file: str | None = None,
    library: str | None = None,
    dispatch: Literal["direct", "dynamo", "graph", "python"] | None = None,
    pass_dir: str | None = None,
    model: str | None = None,
    iters: int | None = None,
    root: str | None = None,
    out: str | None = None,
    fresh: bool = False,
    hold_out_shapes: float | None = None,
    suite: Literal["kernelbench"] | None = None,
    explain: bool = False,
    shard: str | None = None,
    config: str | None = None,
    settings: Settings | None = None,
) -> Bench:
    """Measure compilers and passes on many tasks: PassNet's table. The same call again goes on.

    The arguments are the options of `passagent bench` (docs/bench.md); out: default `runs/bench/NAME`.
    Raises UsageError, InfrastructureError; a task that could not be measured is in `Bench.failed`.
    """
    from passagent.data.bench.kernelbench import default_compilers
    from passagent.data.bench.measure import Unwatched
    from passagent.data.bench.sweep import Request
    from passagent.data.bench.sweep import run as measured

    options = {"device": device, "pool": pool, "token_file": token_file, "dispatch": dispatch}
    given = settings_of(options | {"model": model, "library": library}, settings)
    compilers = compiler or default_compilers(suite, device)
    how = (iters, pass_dir, root, out, fresh, hold_out_shapes, suite, explain, shard)
    request = Request(tasks, compilers, config, given, *how)
    thread = LoopThread("passagent-bench")
    try:
        return Bench(thread.run(measured(request, lambda _: Unwatched())))
    finally:
        thread.close()


def collect(
    tasks: Sequence[str],
    *,
    model: str | Sequence[str] | None = None,
    trials: int = 2,
    max_steps: int | None = None,
    parallel: int = 4,
    shuffle: int | None = None,
    shard: str | None = None,
    root: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    pool: str | None = None,
    token_file: str | None = None,
    library: str | None = None,
    exclude: Sequence[str] | None = None,
    dispatch: Literal["direct", "dynamo", "graph", "python"] | None = None,
    base_url: str | None = None,
    max_time: float | None = None,
    max_tokens: int | None = None,
    max_cost: float | None = None,
    price: str | Sequence[str] | None = None,
    runs_dir: str | Path = "runs",
    config: str | None = None,
    settings: Settings | None = None,
) -> Collection:
    """Collect conversations on many tasks in one database. The same call again goes on; Ctrl-C as in `run`.

    The arguments are the options of `passagent collect` (docs/training.md). Raises UsageError,
    InfrastructureError; a trial that the machine failed, and a broken task, are in `Collection.data`.
    """
    from passagent.data.collect import campaign
    from passagent.data.collect.work import Unwatched

    given = settings_of(
        {
            "model": model, "seed": seed, "device": device, "pool": pool, "token_file": token_file,
            "library": library, "exclude": None if exclude is None else list(exclude), "dispatch": dispatch,
            "base_url": base_url, "max_time": max_time, "max_tokens": max_tokens,
            "max_cost": max_cost, "price": price,
        },
        settings,
    )  # fmt: skip
    request = campaign.Request(
        tasks, given, config, root, trials, parallel, shuffle, shard, max_steps, str(runs_dir)
    )

    async def work(begun: list[Stoppable]) -> Collection:
        with campaign.prepared(request) as prepared:
            return Collection(await campaign.work(prepared, Unwatched(), begun.append))

    return finished(work)


def build_dataset(
    samples: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    shapes: int = 10,
    evaluation: int = 200,
    backward: bool = False,
    device: str | None = None,
    parallel: int | None = None,
    limit: int = 600,
) -> dict[str, Any]:
    """Make tasks of full graphs in GraphNet's layout, and return the data set's record with its funnel.

    The arguments are the options of `passagent tasks build` (docs/tasks.md). The same call again goes on.
    Raises UsageError, InfrastructureError.
    """
    from passagent.data.pipeline.assembling import build, request_of

    places = [samples] if isinstance(samples, str | Path) else samples
    words = [str(place) for place in places]
    return build(request_of(words, str(out), shapes, evaluation, backward, device, parallel, limit))


def export(
    run: Run | str | Path | Sequence[str | Path],
    *,
    format: Literal["passagent", "trl", "openai", "llamafactory", "axolotl", "atif"],
    out: str | Path,
    keep: str | None = None,
    by: Literal["episode", "step"] = "episode",
    best_of: int | None = None,
    per_sequence: int | None = None,
    failures: bool = False,
    pairs: bool = False,
    parquet: bool = False,
    against: Sequence[str] = (),
    tokenizer: str | None = None,
) -> Summary:
    """Write a data set for a trainer to the new directory `out`, and say what is in it.

    run: one run's episodes, or those of one or several runs directories. The other arguments are the options
    of `passagent export` (docs/training.md). Raises UsageError, and PassagentError for what must not go out.
    """
    from passagent.data.dataset.making import Request, make
    from passagent.data.dataset.selection import Selection

    place = run.runs_dir if isinstance(run, Run) else run
    places = [str(place)] if isinstance(place, str | Path) else [*map(str, place)]
    if isinstance(run, Run):
        keep = f"run = '{run.id}'" + (f" AND ({keep}\n)" if keep else "")
    request = Request(
        form=format,
        out=str(out),
        selection=Selection(keep, by, best_of, per_sequence),
        runs_dirs=places,
        against=list(against),
        with_failures=failures,
        with_pairs=pairs,
        parquet=parquet,
        tokenizer=tokenizer,
    )
    return make(request, f"passagent.export({places!r}, format={format!r}, keep={keep!r}, by={by!r})")
