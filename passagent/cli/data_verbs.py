"""The commands that make and check data: `bench`, `collect`, `export` and `check`."""

from __future__ import annotations

import asyncio
import json as json_text
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from passagent.cli.groups import ExportOptions
from passagent.cli.parameters import argument, command
from passagent.errors import PassagentError, UsageError
from passagent.option_groups import Option
from passagent.options import Against, BenchOptions, CollectOptions, Json
from passagent.view.text import Output, counted

if TYPE_CHECKING:
    from passagent.data.bench.measure import Measured
    from passagent.data.collect.campaign import Collection

commands = typer.Typer()

Tasks = Annotated[
    list[str], argument("TASKS...", "Tasks, directories of tasks, quoted globs, sample lists, example:NAME.")
]
_GO_ON = "interrupted; everything is stored, the same command goes on"


@command(commands)
def check(
    directory: Annotated[str, argument("DIR", "A directory that export or tasks build wrote.")],
    against: Against,
    runs_dir: Annotated[
        list[str] | None,
        Option("Where the runs are stored that it came from.", variable="PASSAGENT_CHECK_RUNS_DIR"),
    ],
) -> Output:
    """Check what export or tasks build wrote. Against its record, evaluation tasks and its runs."""
    from passagent.data.export.making import check_directory
    from passagent.data.pipeline import grouping

    path, tasks = Path(directory), list(against or ())
    if not (path / grouping.RECORD).is_file():
        rows = check_directory(path, tasks, runs_dir or [])
        with_what = [
            "hashes",
            "secrets",
            *(["overlap"] if tasks else []),
            *(["database"] if runs_dir else []),
        ]
        data = {"directory": directory, "rows": rows, "checked": with_what}
        in_order = f"{directory}: {counted(rows, 'row')} in order ({', '.join(with_what)})"
        return Output(data, in_order)
    if runs_dir:
        raise UsageError(f"{directory}: tasks build made it of no runs; leave out --runs-dir")
    problems = grouping.check(path)
    problems += grouping.leaks([directory], tasks) if tasks else []
    text = "\n".join(problems) or f"{directory}: in order; training and evaluation share nothing"
    problem = f"{directory}: {counted(len(problems), 'problem')}: {problems[0]}" if problems else ""
    return Output({"directory": directory, "ok": not problems, "problems": problems}, text, problem)


@command(commands)
def bench(
    tasks: Tasks,
    plots: Annotated[
        str | None, Option("Draw ES(t), S(t) and the speedups as SVG.", metavar="DIR", is_rare=True)
    ],
    markdown: Annotated[bool, Option("The table as Markdown on stdout.")],
    json: Json,
    **options: Unpack[BenchOptions],
) -> None:
    """Measure compilers and passes on many tasks. Prints PassNet's table; the same command again goes on."""
    from passagent.cli.running import Interrupted
    from passagent.data.bench.measure import run
    from passagent.view.bench_table import BenchProgress

    if json and markdown:
        raise UsageError("--json and --markdown: one form at a time; the same command prints the other")
    stream = sys.stderr if json or markdown else sys.stdout  # who reads the data gets the data alone
    progress = BenchProgress(stream)

    async def until_stopped() -> Measured:
        task = asyncio.ensure_future(run(tasks, options, progress))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    try:
        measured = asyncio.run(until_stopped())
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise Interrupted(f"interrupted; {progress.go_on}") from None
    for line in _print_measured(measured, json, markdown):
        print(line, file=stream)
    if plots:
        from passagent.view.page.rendering import draw_bench

        rows = [row for row in measured.rows if row.error is None and row.evaluation is not None]
        for path in draw_bench(Path(plots), measured.summaries, rows):
            print(f"wrote {path}", file=stream)
    if measured.failed:
        first = measured.failed[0]
        raise PassagentError(
            f"{len(measured.failed)} not measured, such as {first['task']}: {first['reason']}; "
            "the same command tries them again"
        )


def _print_measured(measured: Measured, as_json: bool, as_markdown: bool) -> list[str]:
    """Print the table in its form, and return what it leaves out, in lines."""
    from passagent.view import bench_table

    rows, lines = [row for row in measured.rows if row.error is None], list[str]()
    whole = bench_table.bench_table(measured.summaries)
    if as_json:
        data = bench_table.data(measured.summaries, rows)
        if measured.suite:
            data["suite"] = bench_table.suite_data(measured.suite)
        data |= {"failed": measured.failed, "identity": measured.identity}
        print(json_text.dumps(data | {"results_files": [*map(str, measured.paths)]}))
    elif as_markdown:
        print(whole.markdown(), end="")
    else:
        suite = [bench_table.suite_text(measured.suite)] if measured.suite else []
        print("\n".join([str(whole), *suite]))
    if not as_json:
        failed = measured.failed
        lines += [f"not measured: {of['task']} {of['compiler'] or ''}: {of['reason']}" for of in failed]
        if names := sorted({row.task for row in rows if row.left}):
            lines.append(f"left whole to eager by the expert, counted as 1.0: {', '.join(names)}")
    compilers = [summary.compiler for summary in measured.summaries]
    if len({frozenset(row.task_key for row in rows if row.compiler == name) for name in compilers}) > 1:
        lines.append("the compilers were not measured on the same tasks: their lines cannot be compared")
    return lines


@command(commands)
def collect(tasks: Tasks, json: Json, **options: Unpack[CollectOptions]) -> None:
    """Collect conversations on many tasks in one database. The same command again goes on."""
    from passagent.cli.running import Interrupted, stop_on_signals
    from passagent.data.collect import campaign
    from passagent.store.pass_library import library_path, library_text
    from passagent.view import collect_table
    from passagent.view.progress import CollectProgress

    stream = sys.stderr if json else sys.stdout
    with campaign.open_collection(tasks, options) as collection:
        config, broken = collection.config, len(collection.broken)
        print(
            f"{counted(collection.tasks - broken, 'task')}, {counted(len(collection.trials), 'trial')}, "
            f"{len(collection.done)} of them made before; {config.model.label}, {config.evaluator.device}; "
            f"{library_text(library_path(config.experience.library, collection.store.runs_dir))}; "
            f"log: {collection.log}",
            file=stream,
            flush=True,
        )
        if broken:
            print(f"note: {counted(broken, 'task')} cannot be loaded, see the end", file=stream)
        progress = CollectProgress(len(collection.done), len(collection.trials), stream)

        def begun(collection: Collection) -> None:
            stop_on_signals(collection, progress, "the same command goes on")

        try:
            collected = asyncio.run(collection.run(progress, begun))
        except KeyboardInterrupt as error:  # before or after the conversations, which take signals themselves
            raise Interrupted(_GO_ON) from error
    lines = [str(collect_table.figures_table(collected.summaries))]
    lines += [f"broken: {path}: {reason}" for path, reason in collected.broken.items()]
    lines += [f"failed: run {run_id}: {reason}" for run_id, reason in collected.failed.items()]
    if collected.stop_reason is not None and not collected.is_interrupted:
        lines.append(f"stopped: {collected.stop_reason}; with a larger limit the same command goes on")
    elif collected.unfinished and not collected.is_interrupted:
        first = collected.unfinished[0]
        trials = counted(len(collected.unfinished), "trial")
        lines.append(
            f"{trials} not finished, such as run {first['run']}: {first['reason']}; the same command goes on"
        )
    Output(collect_table.all_data(collected), "\n".join(lines)).print(json)
    if collected.is_interrupted:
        raise Interrupted(_GO_ON)
    if collected.failed:
        run_id, reason = next(iter(collected.failed.items()))
        raise PassagentError(
            f"{counted(len(collected.failed), 'trial')} failed, such as run {run_id}: {reason}; "
            "the same command tries again"
        )
    if collected.too_broken is not None:
        raise collected.too_broken


@command(commands)
def export(
    runs_dir: Annotated[list[str] | None, Option("Where runs are stored.", shown="runs")],
    **options: Unpack[ExportOptions],
) -> Output:
    """Write a data set for a trainer, checked and with a card."""
    from passagent.data.export.making import make
    from passagent.view.trajectory import summary_text

    summary = make(runs_dir or ["runs"], options, shlex.join(["passagent", *sys.argv[1:]]))
    out = str(options["out"])
    return Output({"out": out, **vars(summary)}, summary_text(out, summary))
