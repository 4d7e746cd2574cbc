"""passagent from Python: what the command line does, by the same names. Nothing here prints or exits.

Whatever goes wrong is raised as a PassagentError with the one line that the command would print: UsageError,
TaskError, InfrastructureError. Work is done by an event loop on a thread of its own, so every function here
may be called from a script, a thread or a notebook, and `on_event` is called on that thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from passagent.cli.groups import BuildOptions, ExportOptions
from passagent.cli.running import resumed, started
from passagent.errors import InfrastructureError, PassagentError, TaskError, UsageError
from passagent.option_groups import checked
from passagent.options import (
    BenchOptions,
    CollectOptions,
    ForkOptions,
    ResumeOptions,
    RunOptions,
    settings_of,
)
from passagent.packages.model_api import (
    apply,
    deploy,
    explain,
    extract,
    extract_regions,
    measure,
    optimize,
    package,
)
from passagent.search.thread import LoopThread, Search, Stoppable, finished
from passagent.tasks import Task, load_task
from passagent.view.handles import Bench, Collection, Evaluator, Node, Nodes, Plan, Result, Run

if TYPE_CHECKING:
    from passagent.data.export.writing import Summary
    from passagent.search.session import Session
    from passagent.store.events import OnEvent

__all__ = [
    "Bench", "Collection", "Evaluator", "InfrastructureError", "Node", "Nodes", "PassagentError", "Plan",
    "Result", "Run", "RunOptions", "TaskError", "UsageError", "apply", "bench", "build_dataset", "collect",
    "deploy", "explain", "export", "extract", "extract_regions", "fork", "load_task",
    "measure", "open_run", "optimize", "package", "resume", "run",
]  # fmt: skip

logging.getLogger("passagent").addHandler(logging.NullHandler())  # a library prints nothing by itself


def run(task: Task | str | Path, *, on_event: OnEvent | None = None, **options: Unpack[RunOptions]) -> Run:
    """Search for passes for a task, until a stopping rule ends it; `options`: those of `passagent run`.

    An equal run that was left unfinished is gone on with, unless `new`. Ctrl-C (a notebook's interrupt) stops
    it cleanly: everything is stored, then KeyboardInterrupt is raised. A second one stops it at once.
    Raises UsageError, TaskError, InfrastructureError.
    """
    return finished(_search(started(task, checked(RunOptions, options)), on_event))


def resume(run: Run | str, *, on_event: OnEvent | None = None, **options: Unpack[ResumeOptions]) -> Run:
    """Go on with a run where it was left, under its settings and those given; `iters` for more episodes.

    run: a Run, or an id or `last` in `runs_dir`.
    Raises as `run`.
    """
    return finished(_search(_resumed(run, options), on_event))


def fork(node: Node, *, on_event: OnEvent | None = None, **options: Unpack[ForkOptions]) -> Run:
    """Search in a new run that starts from a node, under its run's settings and those given; see `run`."""
    from passagent.search import setup
    from passagent.store import Store, nodes

    settings = settings_of(ForkOptions, checked(ForkOptions, options))
    with Store.open(node.runs_dir, create=False) as store:
        run_id = nodes.get_node(store, node.id).run_id
    return finished(_search(setup.forked(node.runs_dir, run_id, node.id, settings), on_event))


def _resumed(run: Run | str, options: ResumeOptions) -> AbstractContextManager[Session]:
    values = checked(ResumeOptions, options)
    if isinstance(run, Run):
        values["runs_dir"] = run.runs_dir
    return resumed(run.id if isinstance(run, Run) else run, values)


def _search(opening: AbstractContextManager[Session], on_event: OnEvent | None) -> Search[Run]:
    async def search(sessions: list[Stoppable]) -> Run:
        from passagent.search import setup

        with opening as session:
            sessions.append(session)
            await setup.work(session, on_event)
            return Run(session.run.id, session.store.runs_dir)

    return search


def open_run(name: str = "last", *, runs_dir: str | Path = "runs") -> Run:
    """The stored run of an id, a unique prefix of one, or `last`. Raises UsageError."""
    return Run.find(name, runs_dir)


def bench(tasks: Sequence[str], **options: Unpack[BenchOptions]) -> Bench:
    """Measure compilers and passes on many tasks: PassNet's table. The same call again goes on.

    options: those of `passagent bench` (docs/bench.md); out: default `runs/bench/NAME`.
    Raises UsageError, InfrastructureError; a task that could not be measured is in `Bench.failed`.
    """
    from passagent.data.bench.measure import Watch
    from passagent.data.bench.measure import run as measured

    complete = checked(BenchOptions, options)
    thread = LoopThread("passagent-bench")
    try:
        return Bench(thread.run(measured(tasks, complete, Watch())))
    finally:
        thread.close()


def collect(tasks: Sequence[str], **options: Unpack[CollectOptions]) -> Collection:
    """Collect conversations on many tasks in one database. The same call again goes on; Ctrl-C as in `run`.

    options: those of `passagent collect` (docs/training.md). Raises UsageError, InfrastructureError; a trial
    that the machine failed, and a broken task, are in `Collection.data`.
    """
    from passagent.data.collect import campaign

    complete = checked(CollectOptions, options)

    async def work(begun: list[Stoppable]) -> Collection:
        with campaign.open_collection(tasks, complete) as collection:
            return Collection(await collection.run(campaign.Watch(), begun.append))

    return finished(work)


def build_dataset(
    samples: str | Path | Sequence[str | Path], **options: Unpack[BuildOptions]
) -> dict[str, Any]:
    """Make tasks of full graphs in GraphNet's layout, and return the data set's record with its funnel.

    options: those of `passagent tasks build` (docs/tasks.md). The same call again goes on.
    Raises UsageError, InfrastructureError.
    """
    from passagent.data.pipeline.assembling import build

    places = [samples] if isinstance(samples, str | Path) else samples
    return build([str(place) for place in places], checked(BuildOptions, options))


def export(run: Run | str | Path | Sequence[str | Path], **options: Unpack[ExportOptions]) -> Summary:
    """Write a data set for a trainer to the new directory `out`, and say what is in it.

    run: one run's episodes, or those of one or several runs directories; options: those of
    `passagent export` (docs/training.md). Raises UsageError, and PassagentError for what must not go out.
    """
    from passagent.data.export.making import make

    values = checked(ExportOptions, options)
    keep, place = values["keep"], run.runs_dir if isinstance(run, Run) else run
    places = [str(place)] if isinstance(place, str | Path) else [*map(str, place)]
    if isinstance(run, Run):
        values["keep"] = f"run = '{run.id}'" + (f" AND ({keep}\n)" if keep else "")
    words = f"format={values['format']!r}, keep={values['keep']!r}, by={values['by']!r}"
    return make(places, values, f"passagent.export({places!r}, {words})")
