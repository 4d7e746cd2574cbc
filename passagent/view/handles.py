"""Objects for Python and notebooks: an evaluator, an evaluation, a run, its nodes, a benchmark, a collection.

A Run reads the store each time that it is asked, so that it follows a live run.
"""

from __future__ import annotations

import functools
import html
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from passagent.agent.prompt import plain_note
from passagent.errors import UsageError
from passagent.evaluator.candidate import MANIFEST, PLAN, Candidate
from passagent.evaluator.result import Evaluation, Status
from passagent.option_groups import checked
from passagent.options import EvaluatorOptions, config_of
from passagent.search import finalists
from passagent.search.thread import LoopThread
from passagent.store import Store, nodes, runs
from passagent.store.database import now
from passagent.tasks import Task, load_task

if TYPE_CHECKING:
    import pandas

    from passagent.config import Config
    from passagent.data.bench.measure import Measured
    from passagent.data.collect.campaign import Collection as Collected
    from passagent.plan.model import Recording

log = logging.getLogger("passagent.evaluator")
T = TypeVar("T")


class Shown:
    """An object that a notebook shows as its text, in a fixed-width font."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f'<pre style="font-family:monospace">{html.escape(str(self))}</pre>'


class Table(str, Shown):
    """Aligned or indented text. It prints as text; a notebook shows it in a fixed-width font."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(frozen=True)
class Result(Shown):
    """A candidate judged on a task."""

    evaluation: Evaluation
    """All of it: every subgraph, its samples, violations, the protocol."""
    measured_at: str
    """ISO 8601, UTC."""
    from_store: bool
    """It was measured before, on this machine and under these settings."""

    @property
    def status(self) -> Status:
        """`ok`, or the gravest of its subgraphs' failures."""
        return self.evaluation.status

    @property
    def as_score(self) -> float | None:
        """AS (PassNet 3.5); eager is 1. None where nothing was timed though everything passed."""
        return self.evaluation.as_score

    @property
    def speedup(self) -> float | None:
        """Geometric mean of eager / compiled over the correct subgraphs; None if none is."""
        return self.evaluation.gmean_speedup

    def table(self) -> Table:
        """A line for each subgraph: status, speedup with its 95% interval, times in ms."""
        from passagent.view.evaluation import graph_table

        return Table(str(graph_table(self.evaluation)))

    def __str__(self) -> str:
        from passagent.view.evaluation import evaluation_text

        return evaluation_text(self.evaluation)

    def __repr__(self) -> str:
        return f"<Result {self.status}, AS {self.as_score}, {self.evaluation.task}>"


@dataclass(frozen=True)
class Plan(Shown):
    """The recorded decisions of a pass's host code (docs/plans.md). `evaluate` takes it as it is."""

    files: dict[str, str] = field(repr=False)
    """Name to text, as `passagent best` writes them to plans.pass."""

    @functools.cached_property
    def recording(self) -> Recording:
        """It as data. Imports torch. Raises UsageError for files that are no recording."""
        from passagent.plan import artefact

        return artefact.read(self.files).recording

    def __str__(self) -> str:
        from passagent.plan.show import recording_text

        return recording_text(self.recording)


@dataclass(frozen=True)
class Node:
    """A candidate of a run, and what became of it."""

    id: int
    parent_id: int | None
    """The node that it was made from; None: from the task itself."""
    island: int
    """-1: a seed."""
    episode: int
    state: str
    """`proposed`, `evaluating` or `done`."""
    status: str | None
    """Its evaluation's; None until it is done."""
    as_score: float | None
    """AS of its first measurement; `Run.best` has that of all its measurements."""
    note: str
    """First line of the first pass's docstring."""
    runs_dir: Path = field(repr=False)

    @classmethod
    def of(cls, store: Store, node: nodes.Node, as_score: float | None) -> Node:
        """Return the handle of a stored node."""
        place, note = store.runs_dir, plain_note(node.note)
        state = node.state, node.status
        return cls(node.id, node.parent_id, node.island, node.number, *state, as_score, note, place)

    @functools.cached_property
    def files(self) -> dict[str, str]:
        """The candidate, name to text: what `evaluate` takes."""
        with Store.open(self.runs_dir, create=False) as store:
            return nodes.get_files(store, nodes.get_node(store, self.id))

    @functools.cached_property
    def plan(self) -> Plan | None:
        """Its recorded plans; None where none were kept, as of a candidate that is not correct."""
        with Store.open(self.runs_dir, create=False) as store:
            files = nodes.get_plans(store, nodes.get_node(store, self.id))
        return Plan(files) if files else None


class Nodes(tuple[Node, ...]):
    """The nodes of a run, in the order in which they were made."""

    __slots__ = ()

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each node. Raises UsageError where pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise UsageError("to_pandas: pandas is not installed; pip install pandas") from error
        columns = ["id", "parent_id", "island", "episode", "state", "status", "as_score", "note"]
        rows = [{name: getattr(node, name) for name in columns} for node in self]
        return pandas.DataFrame(rows, columns=columns)


@dataclass(frozen=True)
class Run(Shown):
    """A stored run: one search on one task."""

    id: str
    runs_dir: Path

    @classmethod
    def find(cls, name: str, runs_dir: str | Path) -> Run:
        """The run of an id, a unique prefix of one, or `last`. Raises UsageError."""
        with Store.open(runs_dir, create=False) as store:
            return cls(runs.find_run(store, name).id, store.runs_dir)

    def _read(self, view: Callable[[Store, runs.Run], T]) -> T:
        """Return what `view` makes of the run as it is stored now."""
        with Store.open(self.runs_dir, create=False) as store:
            return view(store, runs.get_run(store, self.id))

    @property
    def data(self) -> dict[str, Any]:
        """Everything about the run as plain data, as `passagent show --json` prints it."""
        from passagent.view.run_summary import run_data

        return self._read(run_data)

    @property
    def state(self) -> str:
        """`running`, `interrupted` (its process died), `stopped`, `failed` or `finished`."""
        from passagent.view.run_summary import shown_state

        return self._read(shown_state)

    @property
    def best(self) -> Node | None:
        """The winner; None if nothing is correct on every subgraph yet."""
        with Store.open(self.runs_dir, create=False) as store:
            best = finalists.winner(store, self.id)
            return Node.of(store, best, finalists.score_of(store, best)) if best else None

    def nodes(self) -> Nodes:
        """All its nodes."""
        with Store.open(self.runs_dir, create=False) as store:
            return Nodes(Node.of(store, node, node.as_score) for node in nodes.of_run(store, self.id))

    def tree(self) -> Table:
        """Parents above their children; `*` marks the best."""
        from passagent.view.tree import run_tree

        return Table(self._read(lambda store, run: run_tree(store, run.id)))

    def __str__(self) -> str:
        from passagent.view.run_summary import run_data, run_text

        return self._read(lambda store, run: run_text(store, run_data(store, run)))


@dataclass(frozen=True)
class Bench(Shown):
    """A benchmark's measurements."""

    measured: Measured = field(repr=False)
    """All of it: `summaries` (a line for each compiler), `rows` (a task with a compiler), `failed`."""

    @property
    def paths(self) -> list[Path]:
        """The files of the results; a call that measures adds to the only one."""
        return self.measured.paths

    @property
    def failed(self) -> list[dict[str, Any]]:
        """`task`, `compiler` and `reason` of each that could not be measured."""
        return self.measured.failed

    def table(self) -> Table:
        """PassNet's Table 1, with 95% intervals."""
        from passagent.view import bench_table

        return Table(str(bench_table.bench_table(self.measured.summaries)))

    def __str__(self) -> str:
        return self.table()


@dataclass(frozen=True)
class Collection(Shown):
    """The trials of a collection. Its trials are runs: `open_run(id, runs_dir=...)` opens one."""

    collected: Collected = field(repr=False)
    """All of it: `summaries` (of each model), `unfinished` and `failed` trials, `broken` tasks."""

    @property
    def runs_dir(self) -> Path:
        """Where its database is, to which the same call adds."""
        return self.collected.store.runs_dir

    @property
    def data(self) -> dict[str, Any]:
        """All of it as plain data, as `passagent collect --json` prints it."""
        from passagent.view import collect_table

        return collect_table.all_data(self.collected)

    def table(self) -> Table:
        """PassNet's figures about the finished trials in the database, a column for each model."""
        from passagent.view import collect_table

        return Table(str(collect_table.figures_table(self.collected.summaries)))

    def __str__(self) -> str:
        return self.table()


class Evaluator:
    """Judges candidates on one warm pool of processes: a context manager."""

    def __init__(
        self,
        *,
        runs_dir: str | Path | None = None,
        notify: Callable[[str], None] = log.warning,
        **options: Unpack[EvaluatorOptions],
    ) -> None:
        """Raises UsageError for a device that is not here, and for a wrong option.

        runs_dir: where evaluations are kept and found again; None: nowhere. notify: gets a line for what is
        waited for. options: those of `passagent eval`, such as device: `cpu` (the default), `cuda`, `cuda:N`,
        `cuda:all`.
        """
        self._open(config_of(EvaluatorOptions, checked(EvaluatorOptions, options)), runs_dir, notify)

    def _open(self, config: Config, runs_dir: str | Path | None, notify: Callable[[str], None]) -> None:
        from passagent.evaluator.fleet.opening import open_pool

        self._config, self._runs_dir = config, runs_dir
        self._pool = open_pool(self._config.evaluator, notify)
        self._thread = LoopThread("passagent-evaluator")

    def evaluate(self, task: Task | str | Path, candidate: CandidateLike, *, fresh: bool = False) -> Result:
        """Judge a candidate on a task: integrity, matching, correctness, speed, AS.

        candidate: a pass directory, its files as `{"name.py": source}` (without a manifest every file is a
        pass, in this order), or a plan. fresh: measure, whatever the store knows of it.
        Raises UsageError, TaskError, InfrastructureError; what is wrong with the candidate is the result.
        """
        return self._thread.run(self._evaluate(task, candidate, fresh))

    async def _evaluate(self, task: Task | str | Path, candidate: CandidateLike, fresh: bool) -> Result:
        from passagent.evaluator.fleet.opening import environment_key
        from passagent.evaluator.service import known

        loaded = task if isinstance(task, Task) else load_task(task)
        subject = _candidate(candidate)
        if self._runs_dir is None:
            return Result(await self._pool.evaluate(loaded.path, subject), now(), from_store=False)
        case = known.Case(loaded, subject, environment_key(self._config.evaluator))
        with Store.open(self._runs_dir) as store:
            result = await known.evaluate(self._pool.evaluate, store, case, fresh)
        return Result(result.evaluation, result.measured_at, result.from_store)

    def close(self) -> None:
        """End its processes; an evaluation that is under way raises InfrastructureError."""
        self._thread.run(self._pool.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


CandidateLike = str | Path | Mapping[str, str] | Plan | Candidate
"""A pass directory (or a recorded plan's), files by name, a plan, or `Node.files`."""


def _candidate(source: CandidateLike) -> Candidate:
    if isinstance(source, Candidate):
        return source
    if isinstance(source, Plan):
        return Candidate(source.files)
    if isinstance(source, str | Path):
        return Candidate.from_dir(source)
    files = dict(source)
    if not any(name.endswith(".py") for name in files) and PLAN not in files:
        raise UsageError("the candidate: holds no .py file; give {'name.py': source}")
    if MANIFEST not in files and PLAN not in files:
        files[MANIFEST] = json.dumps([name.removesuffix(".py") for name in files if name.endswith(".py")])
    return Candidate(files)
