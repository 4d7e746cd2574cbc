"""Measure: task by task, the compilers in turn, so that a slow drift of the machine hits them alike."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from passagent import __version__
from passagent.config import Config
from passagent.data.bench.authored import PASSES, expert_version, first_pass
from passagent.data.bench.held_out import seen_part
from passagent.data.bench.results import Results, Row
from passagent.errors import InfrastructureError, PassagentError, UsageError, nearest
from passagent.evaluator.compilers import PREFIX, check
from passagent.evaluator.fleet.opening import open_pool
from passagent.evaluator.result import MANIFEST, Candidate, Evaluation, Speedup, Subject
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.events import OnEvent
from passagent.search.candidates import RETRY_AFTER_S
from passagent.store import Store
from passagent.store.database import now
from passagent.store.runs import Run
from passagent.tasks import Task

log = logging.getLogger("passagent.data.bench")

EXPERT, PASS_DIR, RUN = "expert", "pass_dir", "run"
COMPILERS = ("eager", "inductor", EXPERT, PASS_DIR, RUN)
"""And `torch:BACKEND[:MODE]`, see evaluator/compilers.py."""
NO_PASSES = Candidate({MANIFEST: "[]"})
"""What stands for passes that are not there: judged like any other, it does not load."""


@dataclass(frozen=True)
class Work:
    """One measurement to be made."""

    task: Task
    compiler: str
    subject: Subject | None
    """None: what a search finds, or what the expert writes."""
    subject_key: str
    searched: bool = False
    """A search goes before it."""
    seen: Task | None = None
    """What its author sees of the task; None: all of it."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """See Row.key."""
        return self.task.name, self.task.key, self.compiler, self.subject_key


class Watch(Protocol):
    """Somebody who looks on."""

    def begin(self, work: Work) -> None:
        """`work` is being measured from now on."""
        ...

    def say(self, text: str) -> None:
        """Something to know meanwhile: a device that is waited for, a fault."""
        ...

    def search(self, store: Store, run: Run) -> OnEvent | None:
        """A search goes before it: where its events go."""
        ...

    def done(self, row: Row) -> None:
        """What was begun is measured, or could not be, and is stored."""
        ...


class Unwatched:
    """Nobody looks on."""

    def begin(self, work: Work) -> None:
        """See Watch."""

    def say(self, text: str) -> None:
        """See Watch."""

    def search(self, store: Store, run: Run) -> None:
        """See Watch."""

    def done(self, row: Row) -> None:
        """See Watch."""


def plan(
    tasks: Iterable[Task],
    compilers: Iterable[str],
    config: Config,
    pass_dirs: Path | None,
    expert_searches: bool = False,
    hold_out: tuple[float, Path] | None = None,
) -> list[Work]:
    """Every measurement of the benchmark, each once, in order.

    pass_dirs: the passes of task NAME are in `pass_dirs/NAME`; default: in its own `pass_dir`.
    expert_searches: the expert is measured after a search and not with its first pass.
    hold_out: the share of each task's subgraphs that its author does not see, and where the rest is written.
    Raises UsageError for an unknown compiler, and if no task has passes and `pass_dir` is asked for.
    """
    chosen = list(dict.fromkeys(compilers))
    for compiler in chosen:
        if compiler.startswith(PREFIX):
            check(compiler)
        elif compiler not in COMPILERS:
            raise UsageError(
                f"--compiler {compiler}: unknown{nearest(compiler, [*COMPILERS, 'torch:BACKEND'])}"
            )
    works: dict[tuple[str, ...], Work] = {}
    for task in tasks:
        for compiler in chosen:
            work = _work(task, compiler, config, pass_dirs, expert_searches)
            if hold_out is not None and work.subject is None:
                share, directory = hold_out
                part = seen_part(task, share, directory)
                key = f"{work.subject_key} without {share:g} of the subgraphs"
                work = replace(work, seen=part, subject_key=key)
            works.setdefault(work.key, work)
    of_passes = [work for work in works.values() if work.compiler == PASS_DIR]
    if of_passes and all(work.subject is NO_PASSES for work in of_passes):
        first = _pass_dir(of_passes[0].task, pass_dirs)
        raise UsageError(
            f"{first}: no passes here, nor for any other task; give --pass-dir DIR (DIR/TASK/*.py)"
        )
    return list(works.values())


def _work(task: Task, compiler: str, config: Config, pass_dirs: Path | None, expert_searches: bool) -> Work:
    if compiler == PASS_DIR:
        path = _pass_dir(task, pass_dirs)
        has_passes = path.is_dir() and any(path.rglob("*.py"))
        candidate = Candidate.from_dir(path) if has_passes else NO_PASSES
        return Work(task, compiler, candidate, candidate.key)
    if compiler == EXPERT and not expert_searches:
        return Work(task, compiler, None, expert_version())
    if compiler in {RUN, EXPERT}:
        settings = config.model_dump(mode="json", exclude={"evaluator"}) | {"version": __version__}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return Work(task, compiler, None, digest, searched=True)
    return Work(task, compiler, compiler, compiler)


def _pass_dir(task: Task, pass_dirs: Path | None) -> Path:
    return pass_dirs / task.name if pass_dirs else task.path / "pass_dir"


async def measure(works: list[Work], config: Config, results: Results, searches: Path, watch: Watch) -> None:
    """Measure `works`, as many at once as there are devices, and store each result as it comes.

    What a task or the machine fails is stored as such. Raises UsageError (a model's key, a device), and what
    the store and the disk raise.
    """
    pool = open_pool(config.evaluator, tell=watch.say)
    waiting = iter(works)

    async def go_through() -> None:
        for work in waiting:
            watch.begin(work)
            row = await _measure(work, pool, config, results, searches, watch)
            results.add(row)
            watch.done(row)

    workers = [asyncio.create_task(go_through()) for _ in range(pool.size)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await pool.close()


async def _measure(
    work: Work, pool: EvaluatorPool, config: Config, results: Results, searches: Path, watch: Watch
) -> Row:
    name, task_key, compiler, subject_key = work.key
    row = Row(
        task=name,
        task_key=task_key,
        compiler=compiler,
        subject=subject_key,
        identity=results.identity,
        at=now(),
    )
    try:
        subject: Subject
        if work.searched:
            from passagent.data.bench.searched import best_of_search

            settings = _with_expert(config) if compiler == EXPERT else config
            seen = work.seen or work.task
            with Store.open(searches) as store:
                row.run, found = await best_of_search(store, seen, settings, pool, watch.search)
            row.left = found is None and compiler == EXPERT
            subject = "eager" if row.left else found or NO_PASSES
        elif work.subject is None:
            written = await asyncio.to_thread(first_pass, work.seen or work.task, config.evaluator.device)
            row.left = written is None
            if written is not None:
                written.write(searches.parent / PASSES / name)
            subject = written or "eager"
        else:
            subject = work.subject
        evaluation = await _evaluate(pool, work.task, subject, watch)
    except UsageError:
        raise
    except PassagentError as error:
        log.exception("%s was not measured with %s", name, compiler)
        row.error = str(error)
    else:
        if evaluation.evaluator_version != results.identity["evaluator"]:
            raise UsageError("passagent's own files changed while it measured; go on with another --out")
        row.evaluation, row.error = evaluation, _why_not_counted(evaluation)
        if row.left:
            evaluation.as_score = evaluation.gmean_speedup = 1.0
            for graph in evaluation.graphs:
                graph.speedup = graph.speedup and Speedup(e2e=1.0)
    row.at = now()
    return row


def _with_expert(config: Config) -> Config:
    model = config.model.model_copy(update={"name": EXPERT})
    return config.model_copy(update={"model": model})


async def _evaluate(pool: EvaluatorPool, task: Task, subject: Subject, watch: Watch) -> Evaluation:
    """The evaluation; what the machine fails is tried again. Raises what the pool raises."""
    for wait in RETRY_AFTER_S:
        try:
            return await pool.evaluate(task.path, subject)
        except InfrastructureError as error:
            watch.say(f"{task.name}: {error}; trying again in {wait:g} s")
            await asyncio.sleep(wait)
    return await pool.evaluate(task.path, subject)


def _why_not_counted(evaluation: Evaluation) -> str | None:
    if evaluation.es is None:
        return "a Triton pass on the CPU is checked by the interpreter and not timed; measure on a GPU"
    return None
