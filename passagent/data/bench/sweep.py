"""A benchmark from its options to its table, for the command line and for Python alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent.config import Config, EvaluatorConfig, load_config
from passagent.data.bench.kernelbench import Line, lines, places_of
from passagent.data.bench.losses import Losses, losses
from passagent.data.bench.measure import EXPERT, RUN, Watch, measure, plan
from passagent.data.bench.results import (
    FILE,
    Row,
    identity,
    open_results,
    read_directories,
)
from passagent.data.bench.summary import Summary, summaries_of
from passagent.errors import PassagentError, TaskError, UsageError
from passagent.evaluator.fleet.opening import check_devices, machine_of
from passagent.models import open_model
from passagent.models.probe import check_models
from passagent.options import BenchOptions, settings_of
from passagent.search.run_files import run_log
from passagent.tasks import Task, load_task
from passagent.tasks.tasklist import find_tasks, parse_shard


@dataclass(frozen=True)
class Measured:
    """The result of a benchmark."""

    summaries: list[Summary]
    """A line of the table for each compiler that has a result."""
    rows: list[Row]
    failed: list[dict[str, Any]]
    """`task`, `compiler`, `reason` of each measurement that could not be made."""
    paths: list[Path]
    """The files that the rows are in."""
    identity: dict[str, Any]
    suite: list[Line] = field(default_factory=list)
    """The suite's own table."""
    losses: list[Losses] = field(default_factory=list)
    """The losses of each compiler that was timed, where they were asked for."""


async def run(words: Sequence[str], options: BenchOptions, watch: Watch) -> Measured:
    """Measure tasks that are not measured yet; where all words are results directories, read those.

    options: complete ones. Raises UsageError, and PassagentError with how to go on.
    """
    if words and all((Path(word) / FILE).is_file() for word in words):
        return _read([Path(word) for word in words], options)
    settings, iters = settings_of(BenchOptions, options), options["iters"]
    compilers = list(dict.fromkeys(options["compiler"] or ("eager", "inductor")))
    if RUN in compilers or (EXPERT in compilers and iters):
        settings |= {} if iters is None else {"search.iters": iters}
    config = load_config(options["config"], settings)
    check_devices(config.evaluator)
    if RUN in compilers:  # one that cannot be asked is an error before anything is measured
        await open_model(config.model).close()
    tasks, broken = _load(find_tasks(list(words), options["root"]))
    if options["shard"]:
        first, count = parse_shard(options["shard"])
        tasks = tasks[first::count]
    directory = Path(options["out"] or _default_out(words, options["shard"], config))
    if options["suite"]:  # before anything is measured, too
        places_of(tasks)
    works = plan(tasks, config, {**options, "compiler": compilers})
    with (
        open_results(directory, identity(config.evaluator), options["fresh"]) as results,
        run_log(directory),
    ):
        todo = [work for work in works if not results.stands(work.row.key)]
        watch.planned(results, works, todo)
        if any(work.row.compiler == RUN for work in todo):
            await check_models(config)
        if todo:
            try:
                await measure(todo, config, results, watch)
            except PassagentError as error:
                error.args = (f"{error}; {results.go_on}",)
                raise
        rows = [results.rows[work.row.key] for work in works]
    return _tables(rows, tasks, options, [results.path], broken, config.evaluator)


def _read(directories: list[Path], options: BenchOptions) -> Measured:
    """Return what is in results directories. Raises UsageError.

    A suite's table and causes need the tasks, in `root`. They have no share of bandwidth: that is one
    machine's.
    """
    needs = [f"--{name}" for name in ("suite", "explain") if options[name]]  # type: ignore[literal-required]
    if needs and options["root"] is None:
        raise UsageError(f"{needs[0]}: name the directory of the tasks with --root")
    tasks = _load(find_tasks([str(options["root"])], None))[0] if needs else []
    return _tables(read_directories(directories), tasks, options, [place / FILE for place in directories])


def _tables(
    rows: list[Row],
    tasks: Sequence[Task],
    options: BenchOptions,
    paths: list[Path],
    broken: Sequence[dict[str, Any]] = (),
    evaluator: EvaluatorConfig | None = None,
) -> Measured:
    """Sum up the rows; `tasks`: those that were measured. evaluator: of this machine; None: of others."""
    conditions = rows[0].identity if rows else {}
    compilers = list(dict.fromkeys(row.compiler for row in rows))
    failed = [{"task": row.task, "compiler": row.compiler, "reason": row.error} for row in rows if row.error]
    summaries = summaries_of(compilers, rows, len(broken))
    measured = Measured(summaries, rows, [*broken, *failed], paths, conditions)
    if options["suite"]:
        bandwidth = machine_of(evaluator).bandwidth if evaluator else None
        measured.suite.extend(lines(places_of(tasks), rows, compilers, bandwidth))
    if options["explain"]:
        by_key = {task.key: task for task in tasks}
        measured.losses.extend(filter(None, (losses(by_key, rows, compiler) for compiler in compilers)))
    return measured


def _load(paths: list[Path]) -> tuple[list[Task], list[dict[str, Any]]]:
    """Load the tasks; return them, and those that are broken."""
    tasks, broken = [], []
    for path in paths:
        try:
            tasks.append(load_task(path))
        except TaskError as error:
            broken.append({"task": path.resolve().name, "compiler": None, "reason": str(error)})
    return tasks, broken


def _default_out(words: Sequence[str], shard: str | None, config: Config) -> Path:
    """Name `runs/bench/NAME` after the first of the tasks, the device, the dispatch and the shard."""
    more = f"+{len(words) - 1}" if len(words) > 1 else ""
    name = f"{Path(words[0]).resolve().stem}{more}-{config.evaluator.device}-{config.evaluator.dispatch}"
    name += f"-{shard.replace('/', 'of')}" if shard else ""
    return Path("runs/bench") / "".join(c if c.isalnum() or c in "._+-" else "_" for c in name)
