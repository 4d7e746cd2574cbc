"""A benchmark from what was asked for to its table, for the command line and for Python alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent.config import Config, load_config
from passagent.data.bench.kernelbench import Line, place_of
from passagent.data.bench.kernelbench import lines as suite_lines
from passagent.data.bench.losses import Losses, losses
from passagent.data.bench.measure import EXPERT, RUN, Authors, Watch, Work, measure, plan
from passagent.data.bench.results import (
    FILE,
    SEARCHES,
    Row,
    counted,
    identity,
    open_results,
    read_directories,
)
from passagent.data.bench.summary import Summary, Unseen, summaries_of, unseen
from passagent.errors import PassagentError, TaskError, UsageError
from passagent.evaluator.fleet.opening import check_devices, machine_of
from passagent.models import open_model
from passagent.models.probe import check_models
from passagent.search.run_files import run_log
from passagent.store.pass_library import library_path, library_text
from passagent.tasks import Task, load_task
from passagent.tasks.tasklist import find_tasks, parse_shard


@dataclass(frozen=True)
class Request:
    """The benchmark that is asked for."""

    tasks: Sequence[str]
    compilers: Sequence[str]
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    iters: int | None = None
    """Episodes of each search; 0 or None: the expert is measured with its first pass."""
    pass_dirs: str | None = None
    root: str | None = None
    out: str | None = None
    fresh: bool = False
    hold_out: float | None = None
    """Share of each task's subgraphs that the expert and searches do not see."""
    suite: str | None = None
    """The suite whose table is made, too: `kernelbench`."""
    explains: bool = False
    """Say where each compiler loses."""
    shard: str | None = None
    """`I/N`: every Nth task from the Ith on."""


@dataclass(frozen=True)
class Planned:
    """The measurements of a benchmark, as its observer gets them before it begins."""

    device: str
    works: list[Work]
    todo: list[Work]
    """The measurements that have no result yet."""
    path: Path
    """The file of the results."""
    library: str = ""
    """The library that searches use, in words."""

    @property
    def go_on(self) -> str:
        """The way to go on after it was stopped, in words."""
        return f"what was measured is in {self.path}; the same command (without --fresh) goes on"


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
    unseen: list[Unseen] = field(default_factory=list)
    """Both scores of each author, where subgraphs were held out."""
    suite: list[Line] = field(default_factory=list)
    """The suite's own table."""
    losses: list[Losses] = field(default_factory=list)
    """The losses of each compiler that was timed, where they were asked for."""


async def run(request: Request, watched: Callable[[Planned], Watch]) -> Measured:
    """Measure what is not measured yet; where all TASKS are results directories, read those.

    Raises UsageError, and PassagentError with how to go on.
    """
    if request.tasks and all((Path(word) / FILE).is_file() for word in request.tasks):
        return _read(request)
    searches = RUN in request.compilers or (EXPERT in request.compilers and bool(request.iters))
    limits = {"search.iters": request.iters} if searches and request.iters is not None else {}
    config = load_config(request.preset, request.settings | limits)
    check_devices(config.evaluator)
    if RUN in request.compilers:  # one that cannot be asked is an error before anything is measured
        await open_model(config.model).close()
    tasks, broken = _load(find_tasks(list(request.tasks), request.root))
    if request.shard:
        first, count = parse_shard(request.shard)
        tasks = tasks[first::count]
    by_key = {task.key: task for task in tasks}
    places = {key: place_of(task) for key, task in by_key.items()} if request.suite else {}
    directory = Path(request.out) if request.out else _default_out(request, config)
    pass_dirs = Path(request.pass_dirs) if request.pass_dirs else None
    authors = Authors(config, pass_dirs, bool(request.iters), request.hold_out)
    works = plan(tasks, request.compilers, authors, directory)
    with (
        open_results(directory, identity(config.evaluator), request.fresh) as results,
        run_log(directory),
    ):
        todo = [work for work in works if work.key not in results.rows or not results.rows[work.key].stands]
        library = library_path(config.experience.library, directory / SEARCHES)
        used = library_text(library) if any(work.searched for work in works) else ""
        planned = Planned(config.evaluator.device, works, todo, results.path, used)
        watch = watched(planned)
        if any(work.compiler == RUN for work in todo):
            await check_models(config)
        if todo:
            try:
                await measure(todo, config, results, watch)
            except PassagentError as error:
                error.args = (f"{error}; {planned.go_on}",)
                raise
        rows = [results.rows[work.key] for work in works]
    b, p = config.evaluator.b, config.evaluator.p
    compilers = list(dict.fromkeys(request.compilers))
    measured = Measured(
        summaries_of(compilers, rows, b, p, len(broken)), rows, broken + _failed(rows), [results.path],
        results.identity,
    )  # fmt: skip
    if request.hold_out is not None:
        for compiler in compilers:
            evaluations = [e for _, e in counted(rows, compiler)] if compiler in (EXPERT, RUN) else []
            if both := unseen(compiler, evaluations, request.hold_out, b, p):
                measured.unseen.append(both)
    if request.suite:
        bandwidth = machine_of(config.evaluator).bandwidth
        measured.suite.extend(suite_lines(places, rows, compilers, bandwidth, b, p))
    if request.explains:
        measured.losses.extend(filter(None, (losses(by_key, rows, compiler) for compiler in compilers)))
    return measured


def _failed(rows: list[Row]) -> list[dict[str, Any]]:
    return [{"task": row.task, "compiler": row.compiler, "reason": row.error} for row in rows if row.error]


def _load(paths: list[Path]) -> tuple[list[Task], list[dict[str, Any]]]:
    """Load the tasks; return them, and those that are broken."""
    tasks, broken = [], []
    for path in paths:
        try:
            tasks.append(load_task(path))
        except TaskError as error:
            broken.append({"task": path.resolve().name, "compiler": None, "reason": str(error)})
    return tasks, broken


def _read(request: Request) -> Measured:
    """Return what is in the results directories that TASKS name. Raises UsageError.

    A suite's table needs its tasks, in `request.root`, and has no share of bandwidth: that is one machine's.
    """
    if request.suite and request.root is None:
        raise UsageError(f"--suite {request.suite}: name the directory of its tasks with --root")
    directories = [Path(word) for word in request.tasks]
    rows = read_directories(directories)
    same = rows[0].identity if rows else {}
    compilers = list(dict.fromkeys(row.compiler for row in rows))
    b, p = same.get("b", 0.1), same.get("p", 0.0)
    measured = Measured(
        summaries_of(compilers, rows, b, p), rows, _failed(rows), [one / FILE for one in directories], same
    )
    if request.suite and request.root:
        places = {task.key: place_of(task) for task in _load(find_tasks([request.root], None))[0]}
        measured.suite.extend(suite_lines(places, rows, compilers, None, b, p))
    return measured


def _default_out(request: Request, config: Config) -> Path:
    """Name `runs/bench/NAME` after the first of the tasks, the device, the dispatch and the shard."""
    words = request.tasks
    more = f"+{len(words) - 1}" if len(words) > 1 else ""
    name = f"{Path(words[0]).resolve().stem}{more}-{config.evaluator.device}-{config.evaluator.dispatch}"
    name += f"-{request.shard.replace('/', 'of')}" if request.shard else ""
    return Path("runs/bench") / "".join(c if c.isalnum() or c in "._+-" else "_" for c in name)
