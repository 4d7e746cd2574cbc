"""`passagent bench`: measure compilers and passes on many tasks, and print PassNet's Table 1."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from passagent.benchmark.measure import EXPERT, NO_PASSES, PASS_DIR, RUN, Work, measure, plan
from passagent.benchmark.results import SEARCHES, Results, Row, identity, open_results
from passagent.benchmark.summary import Summary, summarise
from passagent.config import Config, load_config
from passagent.errors import EXIT_INTERRUPTED, PassagentError, TaskError, UsageError
from passagent.evaluator.hardware.devices import find_devices
from passagent.report import bench_table
from passagent.report.bench_progress import BenchProgress
from passagent.search.runlog import run_log
from passagent.tasks import Task, load_task
from passagent.tasks.tasklist import find_tasks

Form = Literal["table", "json", "csv", "markdown"]


class Interrupted(PassagentError):
    """A person stopped the benchmark; what was measured is stored."""

    exit_code = EXIT_INTERRUPTED


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    tasks: list[str]
    compilers: list[str]
    preset: str | None
    settings: dict[str, Any]
    iters: int | None = None
    """Episodes of each search; 0 or None: the expert is measured with its first pass."""
    pass_dirs: str | None = None
    root: str | None = None
    out: str | None = None
    fresh: bool = False
    plots: str | None = None
    form: Form = "table"


def form_of(*, json: bool, csv: bool, markdown: bool) -> Form:
    """The form that was asked for. Raises UsageError for more than one."""
    flags: dict[Form, bool] = {"json": json, "csv": csv, "markdown": markdown}
    chosen = [form for form, flag in flags.items() if flag]
    if len(chosen) > 1:
        raise UsageError(
            f"--{chosen[0]} and --{chosen[1]}: one form at a time; the same command prints the other"
        )
    return chosen[0] if chosen else "table"


def bench(request: Request) -> None:
    """Measure what is not measured yet, then print the table in the form asked for.

    Raises PassagentError if a task could not be measured (after the table), Interrupted after Ctrl-C.
    """
    searches = RUN in request.compilers or (EXPERT in request.compilers and bool(request.iters))
    given = {"search.iters": request.iters} if searches and request.iters is not None else {}
    config = load_config(request.preset, request.settings | given)
    find_devices(config.evaluator.device)
    if request.plots:
        from passagent.report.curves import check_matplotlib

        check_matplotlib()
    if RUN in request.compilers:
        _check_model(config)
    tasks, broken = _load(find_tasks(request.tasks, request.root))
    pass_dirs = Path(request.pass_dirs) if request.pass_dirs else None
    works = plan(tasks, request.compilers, config, pass_dirs, expert_searches=bool(request.iters))
    directory = Path(request.out) if request.out else _default_out(request.tasks, config)
    with (
        open_results(directory, identity(config.evaluator), request.fresh) as results,
        run_log(directory),
    ):
        _measure(works, config, results, directory, _stream(request.form))
        rows = [results.rows[work.key] for work in works]
    summaries = _summaries(request.compilers, rows, config, len(broken))
    failed = broken + [_failure(row) for row in rows if row.error is not None]
    _print(request.form, summaries, rows, failed, results)
    if request.plots:
        _plot(Path(request.plots), summaries, rows, _stream(request.form))
    if failed:
        first = failed[0]
        raise PassagentError(
            f"{len(failed)} not measured, such as {first['task']}: {first['reason']}; "
            "the same command tries them again"
        )


def _check_model(config: Config) -> None:
    """Raise UsageError for a model that cannot be asked, before anything is measured."""
    from passagent.models import open_model

    asyncio.run(open_model(config.model).close())


def _load(paths: list[Path]) -> tuple[list[Task], list[dict[str, Any]]]:
    """The tasks, and those that are broken."""
    tasks, broken = [], []
    for path in paths:
        try:
            tasks.append(load_task(path))
        except TaskError as error:
            broken.append({"task": path.resolve().name, "compiler": None, "reason": str(error)})
    return tasks, broken


def _default_out(words: list[str], config: Config) -> Path:
    """`runs/bench/NAME`, named after the first of the tasks, the device and the dispatch."""
    more = f"+{len(words) - 1}" if len(words) > 1 else ""
    name = f"{Path(words[0]).resolve().stem}{more}-{config.evaluator.device}-{config.evaluator.dispatch}"
    return Path("runs/bench") / "".join(c if c.isalnum() or c in "._+-" else "_" for c in name)


def _stream(form: Form) -> Any:
    """Where progress goes: stdout is for the data alone where a program reads it."""
    return sys.stdout if form == "table" else sys.stderr


def _measure(works: list[Work], config: Config, results: Results, directory: Path, stream: Any) -> None:
    """Measure what has no result yet. Raises Interrupted, and PassagentError with how to go on."""
    todo = [work for work in works if work.key not in results.rows or not results.rows[work.key].stands]
    print(
        f"{len(works)} measurements on {config.evaluator.device}, "
        f"{len(works) - len(todo)} of them made before; results: {results.path}",
        file=stream,
        flush=True,
    )
    missing = sum(work.subject is NO_PASSES for work in works)
    if missing:
        asked = sum(work.compiler == PASS_DIR for work in works)
        print(f"no passes for {missing} of {asked} tasks: judged as passes that do not load", file=stream)
    if not todo:
        return
    progress = BenchProgress(len(works), len(works) - len(todo), stream)
    kept = f"what was measured is in {results.path}; the same command (without --fresh) goes on"
    try:
        asyncio.run(_until_stopped(measure(todo, config, results, directory / SEARCHES, progress)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise Interrupted(f"interrupted; {kept}") from None
    except PassagentError as error:
        error.args = (f"{error}; {kept}",)
        raise
    finally:
        progress.close()


async def _until_stopped(work: Any) -> None:
    """Await `work`; Ctrl-C and SIGTERM cancel it."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


def _summaries(compilers: Sequence[str], rows: list[Row], config: Config, broken: int) -> list[Summary]:
    """A line for each compiler that has a result; `broken` tasks were asked for, too."""
    summaries = []
    for compiler in dict.fromkeys(compilers):
        own = [row for row in rows if row.compiler == compiler]
        found = [row.evaluation for row in own if row.error is None and row.evaluation is not None]
        if found:
            asked = len(own) + broken
            summaries.append(summarise(compiler, found, asked, config.evaluator.b, config.evaluator.p))
    return summaries


def _failure(row: Row) -> dict[str, Any]:
    return {"task": row.task, "compiler": row.compiler, "reason": row.error}


def _print(
    form: Form, summaries: list[Summary], rows: list[Row], failed: list[dict[str, Any]], results: Results
) -> None:
    measured = [row for row in rows if row.error is None]
    match form:
        case "json":
            shown = bench_table.data(summaries, measured) | {"failed": failed, "identity": results.identity}
            print(json.dumps(shown | {"results_file": str(results.path)}))
        case "csv":
            sys.stdout.write(bench_table.csv_text(summaries))
        case "markdown":
            sys.stdout.write(bench_table.markdown(summaries))
        case "table":
            print(bench_table.text(summaries))
    stream = _stream(form)
    if form != "json":
        for item in failed:
            print(f"not measured: {item['task']} {item['compiler'] or ''}: {item['reason']}", file=stream)
    measured_tasks = {
        frozenset(row.task_key for row in measured if row.compiler == s.compiler) for s in summaries
    }
    if len(measured_tasks) > 1:
        print(
            "the compilers were not measured on the same tasks: their lines cannot be compared", file=stream
        )


def _plot(directory: Path, summaries: list[Summary], rows: list[Row], stream: Any) -> None:
    from passagent.report.curves import draw_all

    measured = [row for row in rows if row.error is None and row.evaluation is not None]
    for path in draw_all(directory, summaries, measured):
        print(f"wrote {path}", file=stream)
