"""Measure task by task, the compilers in turn, so that a slow drift of the machine hits them alike.

The author of some passes is asked when their turn comes: `--compiler expert` measures the expert's first pass
of a task, `--compiler run` the best candidate of a search on it, measured afresh.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from passagent import __version__
from passagent.config import Config
from passagent.data.bench.results import SEARCHES, Results, Row
from passagent.data.bench.summary import held_out
from passagent.errors import InfrastructureError, PassagentError, UsageError, nearest
from passagent.evaluator.compilers import PREFIX, check
from passagent.evaluator.fleet.opening import open_pool
from passagent.evaluator.result import MANIFEST, Candidate, Evaluation, Speedup, Subject
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.events import OnEvent
from passagent.models import open_model
from passagent.search.candidates import RETRY_AFTER_S
from passagent.search.controller import search
from passagent.search.setup import Prepared, new_run, open_session
from passagent.search.startup import Parts
from passagent.store import Store, confirmations, nodes, runs
from passagent.store.database import now
from passagent.store.runs import SEEDS, Run
from passagent.tasks import Task, load_task
from passagent.tasks.reader import GRAPH_LIST

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
Watching = Callable[[Store, Run], OnEvent | None]
"""Given the run of a search, it returns where the events go."""


@dataclass(frozen=True)
class Work:
    """One measurement to be made."""

    task: Task
    compiler: str
    subject: Subject | None
    """None: the result of a search, or the expert's first pass."""
    subject_key: str
    searched: bool = False
    """A search goes before it."""
    seen: Task | None = None
    """The part of the task that its author sees; None: all of it."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The Row.key of its result."""
        return self.task.name, self.task.key, self.compiler, self.subject_key


class Watch:
    """An observer of a benchmark; this one does nothing."""

    def begin(self, work: Work) -> None:
        """Take note that `work` is being measured from now on."""

    def say(self, text: str) -> None:
        """Take a remark: a device that is waited for, a fault."""

    def search(self, store: Store, run: Run) -> OnEvent | None:
        """Return where the events of a search go."""

    def done(self, row: Row) -> None:
        """Take the row of a measurement that was made, or could not be; it is stored."""


@dataclass(frozen=True)
class Authors:
    """The settings of those who write passes, and what they see."""

    config: Config
    pass_dirs: Path | None = None
    """The passes of task NAME are in `pass_dirs/NAME`; None: in its own `pass_dir`."""
    expert_searches: bool = False
    """The expert is measured after a search and not with its first pass."""
    hold_out: float | None = None
    """The share of each task's subgraphs that its author does not see."""

    def pass_dir(self, task: Task) -> Path:
        """Return the directory of the passes for a task."""
        return self.pass_dirs / task.name if self.pass_dirs else task.path / "pass_dir"


def plan(tasks: Iterable[Task], compilers: Iterable[str], authors: Authors, directory: Path) -> list[Work]:
    """List every measurement of the benchmark, each once, in order; `directory`: of its results.

    Raises UsageError for an unknown compiler, and if no task has passes and `pass_dir` is asked for.
    """
    chosen = list(dict.fromkeys(compilers))
    for compiler in chosen:
        if compiler.startswith(PREFIX):
            check(compiler)
        elif compiler not in _COMPILERS:
            raise UsageError(
                f"--compiler {compiler}: unknown{nearest(compiler, [*_COMPILERS, 'torch:BACKEND'])}"
            )
    works: dict[tuple[str, ...], Work] = {}
    for task in tasks:
        for compiler in chosen:
            work = _work(task, compiler, authors)
            if authors.hold_out is not None and work.subject is None:
                key = f"{work.subject_key} without {authors.hold_out:g} of the subgraphs"
                work = replace(work, seen=_seen_part(task, authors.hold_out, directory), subject_key=key)
            works.setdefault(work.key, work)
    of_passes = [work for work in works.values() if work.compiler == PASS_DIR]
    if of_passes and all(work.subject is NO_PASSES for work in of_passes):
        first = authors.pass_dir(of_passes[0].task)
        raise UsageError(
            f"{first}: no passes here, nor for any other task; give --pass-dir DIR (DIR/TASK/*.py)"
        )
    return list(works.values())


def _work(task: Task, compiler: str, authors: Authors) -> Work:
    if compiler == PASS_DIR:
        path = authors.pass_dir(task)
        has_passes = path.is_dir() and any(path.rglob("*.py"))
        candidate = Candidate.from_dir(path) if has_passes else NO_PASSES
        return Work(task, compiler, candidate, candidate.key)
    if compiler == EXPERT and not authors.expert_searches:
        return Work(task, compiler, None, expert_version())
    if compiler in {RUN, EXPERT}:
        settings = authors.config.model_dump(mode="json", exclude={"evaluator"}) | {"version": __version__}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return Work(task, compiler, None, digest, searched=True)
    return Work(task, compiler, compiler, compiler)


def _seen_part(task: Task, share: float, directory: Path) -> Task:
    """Write the task without its held-out subgraphs as a directory of its own, `DIR/seen/KEY/NAME`."""
    hidden = held_out([one.name for one in task.subgraphs], share)
    if not hidden:
        return task
    place = directory / _SEEN / task.key[:12] / task.name
    place.mkdir(parents=True, exist_ok=True)
    paths = [str(one.path.resolve()) for one in task.subgraphs if one.name not in hidden]
    (place / GRAPH_LIST).write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    return load_task(place)


@dataclass(frozen=True)
class Measuring:
    """The measurements of a benchmark as they are made."""

    config: Config
    results: Results
    watch: Watch
    pool: EvaluatorPool

    async def go_through(self, waiting: Iterable[Work]) -> None:
        """Make one measurement after the other, and store each result as it comes."""
        for work in waiting:
            self.watch.begin(work)
            row = await self._measure(work)
            self.results.add(row)
            self.watch.done(row)

    async def _measure(self, work: Work) -> Row:
        name, task_key, compiler, subject_key = work.key
        identity = self.results.identity
        row = Row(
            task=name, task_key=task_key, compiler=compiler, subject=subject_key, identity=identity, at=now()
        )
        try:
            subject = await self._written(work, row) if work.subject is None else work.subject
            evaluation = await self._evaluate(work.task, subject)
        except UsageError:
            raise
        except PassagentError as error:
            log.exception("%s was not measured with %s", name, compiler)
            row.error = str(error)
        else:
            if evaluation.evaluator_version != identity["evaluator"]:
                raise UsageError("passagent's own files changed while it measured; go on with another --out")
            row.evaluation = evaluation
            if evaluation.es is None:
                row.error = (
                    "a Triton pass on the CPU is checked by the interpreter and not timed; measure on a GPU"
                )
            if row.left:
                evaluation.as_score = evaluation.gmean_speedup = 1.0
                for graph in evaluation.graphs:
                    graph.speedup = graph.speedup and Speedup(e2e=1.0)
        row.at = now()
        return row

    async def _written(self, work: Work, row: Row) -> Subject:
        """Return the passes that an author writes now; eager where the expert leaves the task to it."""
        directory, seen = self.results.path.parent, work.seen or work.task
        if work.searched:
            config = self.config
            if work.compiler == EXPERT:
                config = config.model_copy(update={"model": config.model.model_copy(update={"name": EXPERT})})
            with Store.open(directory / SEARCHES) as store:
                row.run, written = await best_of_search(store, seen, config, self.pool, self.watch.search)
        else:
            written = await asyncio.to_thread(first_pass, seen, self.config.evaluator.device)
            if written is not None:
                written.write(directory / _PASSES / work.task.name)
        row.left = written is None and work.compiler == EXPERT
        return "eager" if row.left else written or NO_PASSES

    async def _evaluate(self, task: Task, subject: Subject) -> Evaluation:
        """Return the evaluation; a fault of the machine is tried again. Raises what the pool raises."""
        for wait in RETRY_AFTER_S:
            try:
                return await self.pool.evaluate(task.path, subject)
            except InfrastructureError as error:
                self.watch.say(f"{task.name}: {error}; trying again in {wait:g} s")
                await asyncio.sleep(wait)
        return await self.pool.evaluate(task.path, subject)


async def measure(works: list[Work], config: Config, results: Results, watch: Watch) -> None:
    """Measure `works`, as many at once as there are devices.

    A failure of a task or of the machine is stored as a result. Raises UsageError (a model's key, a device),
    and what the store and the disk raise.
    """
    pool = open_pool(config.evaluator, tell=watch.say)
    measuring, waiting = Measuring(config, results, watch, pool), iter(works)
    workers = [asyncio.create_task(measuring.go_through(waiting)) for _ in range(pool.size)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await pool.close()


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
    store: Store,
    task: Task,
    config: Config,
    pool: EvaluatorPool,
    watch: Watching,
) -> tuple[str, Candidate | None]:
    """Return the run's id and its model's best candidate, after a search that goes on where one was left.

    Where nothing is correct on every subgraph, the
    candidate with the best AS counts (PassNet 4.1); None if the model made none that could be judged. Raises
    what the search raises.
    """
    wanted = (task.key, config.model_dump_json(), __version__)
    equal = (run for run in runs.list_runs(store) if (run.task_key, run.config, run.version) == wanted)
    run = next(equal, None) or new_run(store, task, config)
    if run.state != "finished":
        model = open_model(config.model)
        try:
            await search(
                open_session(Prepared(store, run, task, config, model, Parts()), watch(store, run), pool)
            )
        finally:
            await model.close()
    node = confirmations.winner(store, run.id, by_model=True)
    if node is None:
        wrong = [n for n in nodes.of_run(store, run.id) if n.island != SEEDS and n.status != "ok"]
        scored = [n for n in wrong if n.as_score is not None]
        node = max(scored, key=lambda n: n.as_score or 0.0, default=None)
    return run.id, Candidate(nodes.get_files(store, node)) if node else None
