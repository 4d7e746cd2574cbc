"""A benchmark from its options to its table: measured task by task, for the command line and Python alike.

The compilers take turns, so that a slow drift of the machine hits them alike.

The author of some passes is asked when their turn comes: `--compiler expert` measures the expert's first pass
of a task, `--compiler run` the best candidate of a search on it, measured afresh.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent import __version__
from passagent.config import Config, EvaluatorConfig, load_config
from passagent.data.bench.kernelbench import Line, lines, places_of
from passagent.data.bench.results import (
    FILE,
    SEARCHES,
    Results,
    Row,
    identity,
    open_results,
    read_directories,
)
from passagent.data.bench.summary import Summary, summaries_of
from passagent.errors import PassagentError, UsageError, nearest
from passagent.evaluator.compilers import PREFIX, check
from passagent.evaluator.fleet.opening import check_devices, machine_of, open_pool
from passagent.evaluator.result import MANIFEST, Candidate, Speedup, Subject
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.models import open_model
from passagent.models.probe import check_models
from passagent.options import BenchOptions, settings_of
from passagent.search import finalists
from passagent.search.candidates import evaluate_again
from passagent.search.controller import search
from passagent.search.run_files import run_log
from passagent.search.setup import Parts, new_run, open_session
from passagent.search.thread import side_by_side
from passagent.store import Store, nodes, runs
from passagent.store.database import now
from passagent.store.events import OnEvent
from passagent.store.pass_library import library_path, library_text
from passagent.store.runs import SEEDS, Run
from passagent.tasks import Task, load_task
from passagent.tasks.reader import load_tasks, write_list
from passagent.tasks.tasklist import find_tasks, parse_shard

log = logging.getLogger("passagent.data.bench")

EXPERT, PASS_DIR, RUN = "expert", "pass_dir", "run"
_COMPILERS = ("eager", "inductor", EXPERT, PASS_DIR, RUN)
"""And `torch:BACKEND[:MODE]`, see evaluator/compilers.py."""
NO_PASSES = Candidate({MANIFEST: "[]"})
"""The stand-in for passes that are not there: judged like any other, it does not load."""
_PASSES = "passes"
"""Beside the results: the expert's passes, DIR/TASK as `--pass-dir` takes it."""
_SEEN = "seen"
"""Beside the results: the tasks as their authors see them."""


@dataclass(frozen=True)
class Work:
    """One measurement to be made."""

    task: Task
    row: Row
    """Its result, still without an evaluation."""
    subject: Subject | None = None
    """None: the result of a search, or the expert's first pass."""
    searched: bool = False
    """A search goes before it."""


class Watch:
    """An observer of a benchmark; this one does nothing."""

    def planned(self, results: Results, works: list[Work], todo: list[Work], library: str) -> None:
        """Take all measurements, and those that have no result yet, before the first of them is made."""

    def say(self, text: str) -> None:
        """Take a remark: a device that is waited for, a fault."""

    def search(self, store: Store, run: Run) -> OnEvent | None:
        """Return where the events of a search go."""

    def done(self, row: Row) -> None:
        """Take the row of a measurement that was made, or could not be; it is stored."""


def plan(tasks: Iterable[Task], config: Config, options: BenchOptions) -> list[Work]:
    """List every measurement of the benchmark, each once, in order.

    Raises UsageError for an unknown compiler, and if no task has passes and `pass_dir` is asked for.
    """
    compilers, share = options["compiler"] or (), options["hold_out_shapes"]
    for compiler in compilers:
        if compiler.startswith(PREFIX):
            check(compiler)
        elif compiler not in _COMPILERS:
            raise UsageError(
                f"--compiler {compiler}: unknown{nearest(compiler, [*_COMPILERS, 'torch:BACKEND'])}"
            )
    settings = config.model_dump(mode="json", exclude={"evaluator"}) | {"version": __version__}
    search_key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    works: dict[tuple[str, ...], Work] = {}
    places = []
    for task, compiler in itertools.product(tasks, compilers):
        row = Row(task=task.name, task_key=task.key, compiler=compiler, subject=compiler)
        work = Work(task, row, compiler)
        if compiler == PASS_DIR:
            place = Path(options["pass_dir"]) / task.name if options["pass_dir"] else task.path / PASS_DIR
            places.append(place)
            has_passes = place.is_dir() and any(place.rglob("*.py"))
            candidate = Candidate.from_dir(place) if has_passes else NO_PASSES
            row.subject, work = candidate.key, Work(task, row, candidate)
        elif compiler in (RUN, EXPERT):
            searched = compiler == RUN or bool(options["iters"])
            row.subject, work = search_key if searched else expert_version(), Work(task, row, None, searched)
            if share is not None:
                row.subject += f" without {share:g} of the subgraphs"
                row.hidden = sorted(held_out([graph.name for graph in task.subgraphs], share))
        works.setdefault(row.key, work)
    if places and all(work.subject is NO_PASSES for work in works.values() if work.row.compiler == PASS_DIR):
        raise UsageError(
            f"{places[0]}: no passes here, nor for any other task; give --pass-dir DIR (DIR/TASK/*.py)"
        )
    return list(works.values())


def held_out(names: Sequence[str], share: float) -> set[str]:
    """Choose the subgraphs to hold out: the same for every author and every run; at least one stays."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return set(ordered[: min(int(len(names) * share), len(names) - 1)])


def _seen_part(task: Task, hidden: Collection[str], directory: Path) -> Task:
    """Write the task without its held-out subgraphs as a directory of its own, `DIR/seen/KEY/NAME`."""
    if not hidden:
        return task
    place = directory / _SEEN / task.key[:12] / task.name
    place.mkdir(parents=True, exist_ok=True)
    write_list(place, [graph.path.resolve() for graph in task.subgraphs if graph.name not in hidden])
    return load_task(place)


async def measure(works: list[Work], config: Config, results: Results, watch: Watch) -> None:
    """Measure `works`, as many at once as there are devices, and store each result as it comes.

    A failure of a task or of the machine is stored as a result. Raises UsageError (a model's key, a device),
    and what the store and the disk raise.
    """
    pool, waiting, directory = open_pool(config.evaluator, tell=watch.say), iter(works), results.path.parent

    async def go_through() -> None:
        for work in waiting:
            row = work.row.model_copy(update={"identity": results.identity})
            try:
                await _measure(work, row, config, directory, pool, watch)
            except UsageError:
                raise
            except PassagentError as error:
                log.exception("%s was not measured with %s", row.task, row.compiler)
                row.error = str(error)
            row.at = now()
            results.add(row)
            watch.done(row)

    try:
        async with side_by_side(*(go_through() for _ in range(pool.size))) as workers:
            await asyncio.gather(*workers)
    finally:
        await pool.close()


async def _measure(
    work: Work, row: Row, config: Config, directory: Path, pool: EvaluatorPool, watch: Watch
) -> None:
    """Put the evaluation into the row. A fault of the machine is tried again."""
    subject: Subject = work.subject or NO_PASSES
    if work.subject is None:  # an author writes now
        task = _seen_part(work.task, row.hidden, directory)
        if work.searched:
            if row.compiler == EXPERT:
                config = config.model_copy(update={"model": config.model.model_copy(update={"name": EXPERT})})
            with Store.open(directory / SEARCHES) as store:
                row.run, written = await best_of_search(store, task, config, pool, watch)
        else:
            written = await asyncio.to_thread(first_pass, task, config.evaluator.device)
            if written is not None:
                written.write(directory / _PASSES / work.task.name)
        row.left = written is None and row.compiler == EXPERT
        subject = "eager" if row.left else written or NO_PASSES
    evaluation = await evaluate_again(
        lambda: pool.evaluate(work.task.path, subject), lambda text: watch.say(f"{work.task.name}: {text}")
    )
    if evaluation.evaluator_version != row.identity["evaluator"]:
        raise UsageError("passagent's own files changed while it measured; go on with another --out")
    row.evaluation = evaluation
    if row.left:
        evaluation.as_score = evaluation.gmean_speedup = 1.0
        for graph in evaluation.graphs:
            graph.speedup = graph.speedup and Speedup(e2e=1.0)


def expert_version() -> str:
    """Hash the expert's own files: results of another expert are measured anew."""
    from passagent import expert

    digest = hashlib.sha256()
    root = Path(str(expert.__file__)).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()


def first_pass(task: Task, device: str) -> Candidate | None:
    """Write the expert's default plan of a task; None where it leaves all of it to eager."""
    from passagent.expert.choices import default
    from passagent.expert.expert_model import candidate

    target = "cuda" if device.startswith("cuda") else "cpu"
    files, _ = candidate(str(task.path), target, default(target))
    return Candidate(files) if files else None


async def best_of_search(
    store: Store, task: Task, config: Config, pool: EvaluatorPool, watch: Watch
) -> tuple[str, Candidate | None]:
    """Return the run's id and its model's best candidate, after a search that goes on where one was left.

    Where nothing is correct on every subgraph, the candidate with the best AS counts (PassNet 4.1); None if
    the model made none that could be judged. Raises what the search raises.
    """
    key = (task.key, config.model_dump_json(), __version__)
    equal = (run for run in runs.list_runs(store) if (run.task_key, run.config, run.version) == key)
    run = next(equal, None) or new_run(store, task, config)
    if run.state != "finished":
        model = open_model(config.model)
        try:
            parts = Parts(model, pool)
            await search(open_session(store, run, task, config, parts, watch.search(store, run)))
        finally:
            await model.close()
    node = finalists.winner(store, run.id, by_model=True)
    if node is None:
        wrong = [n for n in nodes.of_run(store, run.id) if n.island != SEEDS and n.status != "ok"]
        scored = [n for n in wrong if n.as_score is not None]
        node = max(scored, key=lambda n: n.as_score or 0.0, default=None)
    return run.id, Candidate(nodes.get_files(store, node)) if node else None


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


async def run(words: Sequence[str], options: BenchOptions, watch: Watch) -> Measured:
    """Measure tasks that are not measured yet; where all words are results directories, read those.

    options: complete ones. Raises UsageError, and PassagentError with how to go on.
    """
    if words and all((Path(word) / FILE).is_file() for word in words):
        return _read([Path(word) for word in words], options)
    settings, iters = settings_of(BenchOptions, options), options["iters"]
    compilers = list(dict.fromkeys(options["compiler"] or ("eager", "inductor")))
    searches = RUN in compilers or (EXPERT in compilers and bool(iters))
    if searches:
        settings |= {} if iters is None else {"search.iters": iters}
    config = load_config(options["config"], settings)
    check_devices(config.evaluator)
    if RUN in compilers:  # one that cannot be asked is an error before anything is measured
        await open_model(config.model).close()
    tasks, faults = load_tasks(find_tasks(list(words), options["root"]))
    broken = [{"task": p.resolve().name, "compiler": None, "reason": why} for p, why in faults.items()]
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
        library = library_path(config.experience.library, directory / SEARCHES) if searches else None
        watch.planned(results, works, todo, f"{library_text(library)}; " if searches else "")
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

    A suite's table needs the tasks, in `root`. It has no share of bandwidth: that is one machine's.
    """
    if options["suite"] and options["root"] is None:
        raise UsageError("--suite: name the directory of the tasks with --root")
    tasks = load_tasks(find_tasks([str(options["root"])]))[0] if options["suite"] else []
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
    return measured


def _default_out(words: Sequence[str], shard: str | None, config: Config) -> Path:
    """Name `runs/bench/NAME` after the first of the tasks, the device, the dispatch and the shard."""
    more = f"+{len(words) - 1}" if len(words) > 1 else ""
    name = f"{Path(words[0]).resolve().stem}{more}-{config.evaluator.device}-{config.evaluator.dispatch}"
    name += f"-{shard.replace('/', 'of')}" if shard else ""
    return Path("runs/bench") / "".join(c if c.isalnum() or c in "._+-" else "_" for c in name)
