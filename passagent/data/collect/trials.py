"""The trials of a collection, tasks times trials, and PassNet's figures about them (4.2 (4), 4.3).

A trial is a run that `collect` makes of a task with a model. The trials of one model in a database are its
collection.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent import __version__
from passagent.config import Config, EvaluatorConfig, SearchConfig, override
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.target import kind_of
from passagent.search.remeasure import changed_settings
from passagent.store import Store
from passagent.store.runs import Run, get_run
from passagent.tasks import load_task

FIXED: dict[str, Any] = {
    "search.islands": 1,
    "search.iters": 1,
    "search.expert_seeds": 0,
    "search.seed_dir": None,
    "search.drafts": 0,
    "search.finalists": 0,
    "agent.hints": 0,
    "experience.seeds": False,
    "experience.examples": 0,
    "roles.hint_distiller": None,
}
"""A trial is one conversation that starts from the task alone. No other run has a say in it: which hints, and
which past task, are shown depends on what came of them in other runs."""
_BUDGETS = ("max_tokens", "max_cost", "max_time_s", "max_evaluations")
"""Keys of `search` that bound the whole collection and no single trial."""
_FREE = (
    "model.base_url", "model.timeout_s", "model.max_retries", "model.prices", "model.stream",
    "experience.library",
)  # fmt: skip
"""Settings that may differ when a collection is gone on with: they change nothing in a conversation."""
KEPT_ABOVE = 0.1
"""The paper keeps trajectories with a higher AS."""
_MOST_BROKEN = 0.2
"""Share of the tasks that may be broken; with more the collection counts as failed."""


@dataclass(frozen=True)
class Entry:
    """A task of a collection, not loaded."""

    path: Path
    name: str
    key: str
    """sha256 of the subgraphs' content."""


@dataclass(frozen=True)
class Pair:
    """A trial that is to be made."""

    entry: Entry
    trial: int

    def __str__(self) -> str:
        return f"{self.entry.name} trial {self.trial}"


@dataclass(frozen=True)
class Listing:
    """The tasks that were asked for."""

    entries: list[Entry]
    """Each task once."""
    broken: dict[str, str]
    """Directory of each task that cannot be loaded, and why."""
    equal: list[tuple[Path, Path]]
    """Tasks with the content of an earlier one, and that one."""

    def too_broken(self, unfit: dict[str, str]) -> PassagentError | None:
        """Return the error of more than _MOST_BROKEN broken tasks, if they are; `unfit`: more of them."""
        broken, count = self.broken | unfit, len(self.entries) + len(self.broken)
        if not broken or len(broken) <= _MOST_BROKEN * count:
            return None
        path, reason = next(iter(broken.items()))
        tasks = "1 task" if count == 1 else f"{count} tasks"
        return PassagentError(f"{len(broken)} of {tasks} are broken, such as {path}: {reason}")


def list_tasks(paths: Iterable[Path]) -> Listing:
    """Read every task of `paths` once for its key; it is not kept."""
    entries: dict[str, Entry] = {}
    listing = Listing([], {}, [])
    for path in paths:
        try:
            task = load_task(path)
        except PassagentError as error:
            listing.broken[str(path)] = str(error)
            continue
        if task.key in entries:
            listing.equal.append((path, entries[task.key].path))
        else:
            entries[task.key] = Entry(path, task.name, task.key)
    listing.entries.extend(entries.values())
    return listing


def pairs_of(
    entries: Sequence[Entry], count: int, shuffle: int | None = None, shard: tuple[int, int] = (0, 1)
) -> list[Pair]:
    """List `count` trials of each task, one after the other, or all in the order of the seed `shuffle`.

    shard: (I, N) takes every Nth pair from the Ith on, so that the N shards are a partition.
    """
    pairs = [Pair(entry, trial) for entry in entries for trial in range(count)]
    if shuffle is not None:
        random.Random(shuffle).shuffle(pairs)
    return pairs[shard[0] :: shard[1]]


def settings_of_trials(config: Config, given: Iterable[str]) -> Config:
    """Return `config` with FIXED. Raises UsageError for a setting that is `given` another value there."""
    data = config.model_dump()
    for key in given:
        section, _, field = key.partition(".")
        if key in FIXED and data[section][field] != FIXED[key]:
            raise UsageError(
                f"{key}: is {FIXED[key]} in a collection: a trial is one conversation from the task on"
            )
    return override(config, FIXED)


def config_of(config: Config, trial: int) -> Config:
    """Return the settings of a trial's run: a seed of its own, and no budget, which is the collection's."""
    search = config.search.model_copy(
        update={"seed": config.search.seed + trial} | dict.fromkeys(_BUDGETS, None)
    )
    return config.model_copy(update={"search": search})


def budgets_of(config: Config) -> SearchConfig:
    """Return the limits that bound the whole collection."""
    return SearchConfig(**config.search.model_dump(include=set(_BUDGETS)))


def find_trial(store: Store, pair: Pair, model: str) -> Run | None:
    """Return the run of this trial, None if it has not begun."""
    return store.one(
        Run,
        "SELECT * FROM runs WHERE task_key = :task AND model = :model AND trial = :trial",
        {"task": pair.entry.key, "model": model, "trial": pair.trial},
    )


def finished_trials(store: Store, pairs: Iterable[Pair], config: Config) -> dict[Pair, str]:
    """Return the pairs whose trial is finished, and its run's id.

    Raises UsageError for a trial that was made by another passagent or under other settings.
    """
    finished = {}
    for pair in pairs:
        run = find_trial(store, pair, config.model.label)
        if run is None:
            continue
        differ = [f"passagent {run.version}, now {__version__}"] if run.version != __version__ else []
        same = kind_of(run.device) == kind_of(config.evaluator.device)
        for change in changed_settings(run.config, config_of(config, pair.trial).model_dump_json()):
            key = change.partition(" ")[0]
            if key not in _FREE and not (key == "evaluator.device" and same):
                differ.append(change)
        if differ:
            raise UsageError(
                f"{store.runs_dir}: holds {run.task} trial {run.trial} of {run.model} made with "
                f"{', '.join(differ)}; collect as before, or with another --runs-dir"
            )
        if run.state == "finished":
            finished[pair] = run.id
    return finished


@dataclass(frozen=True)
class Outcome:
    """The end of a trial, or where it stands."""

    task: str
    model: str
    trial: int
    state: str
    """Run.state."""
    steps: int
    """Model calls."""
    evaluations: int
    """Candidates that were judged, answers from the store and refusals included."""
    tokens: int
    cost: float
    first_as: float | None
    """AS of the first judged candidate; None: there is none, or it was not timed."""
    best_as: float | None
    """The highest AS of its candidates, right or wrong."""
    is_correct: bool
    """A candidate is right on every subgraph."""
    went_back: bool
    """A right candidate was followed by a wrong one, and that by a right one."""

    @property
    def is_done(self) -> bool:
        """The conversation came to its end."""
        return self.state == "finished"


def outcomes(store: Store) -> Iterator[Outcome]:
    """Read the outcome of every trial in the database, in the order in which they began."""
    for row in store.rows("SELECT id FROM runs WHERE trial IS NOT NULL ORDER BY rowid"):
        yield outcome(store, row["id"])


def outcome(store: Store, run_id: str) -> Outcome:
    """Read the outcome of a trial so far."""
    run = get_run(store, run_id)
    assert run.trial is not None
    judged = store.rows(
        "SELECT status, as_score FROM nodes WHERE run_id = :run AND state = 'done' "
        "AND status != 'infrastructure' ORDER BY number, place",
        {"run": run_id},
    )
    steps = store.row("SELECT sum(steps) AS steps FROM episodes WHERE run_id = :run", {"run": run_id})
    scores = [row["as_score"] for row in judged]
    right = [row["status"] == "ok" for row in judged]
    return Outcome(
        task=run.task,
        model=run.model,
        trial=run.trial,
        state=run.state,
        steps=(steps and steps["steps"]) or 0,
        evaluations=len(judged),
        tokens=run.tokens,
        cost=run.cost,
        first_as=scores[0] if scores else None,
        best_as=max((score for score in scores if score is not None), default=None),
        is_correct=any(right),
        went_back=went_back(right),
    )


def went_back(right: list[bool]) -> bool:
    """Return whether a pass, a failure and a pass follow each other, with anything between them."""
    if True not in right:
        return False
    first, last = right.index(True), len(right) - 1 - right[::-1].index(True)
    return False in right[first:last]


@dataclass
class Summary:
    """The figures of one model's trials; those that are not finished are only counted."""

    model: str
    floor: float = EvaluatorConfig().b
    """AS of a trial without a candidate."""
    runs: int = 0
    """Finished trials."""
    unfinished: int = 0
    """Begun, and to be gone on with."""
    kept: int = 0
    """Right, with an AS over KEPT_ABOVE: what `export --keep 'as_score > 0.1'` chooses."""
    correct: int = 0
    """With a candidate that is right on every subgraph."""
    went_back: int = 0
    """The correct ones with pass -> fail -> pass."""
    tokens: int = 0
    """The tokens of all trials, unfinished ones too."""
    cost: float = 0.0
    """USD, as far as prices are known; of all trials, unfinished ones too."""
    _steps: list[int] = field(default_factory=list)
    _evaluations: list[int] = field(default_factory=list)
    _log_best: float = 0.0
    _log_first: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count a trial."""
        self.tokens += outcome.tokens
        self.cost += outcome.cost
        if not outcome.is_done:
            self.unfinished += 1
            return
        best = self.floor if outcome.best_as is None else outcome.best_as
        self.runs += 1
        self.kept += outcome.is_correct and best > KEPT_ABOVE
        self.correct += outcome.is_correct
        self.went_back += outcome.went_back
        self._steps.append(outcome.steps)
        self._evaluations.append(outcome.evaluations)
        self._log_best += math.log(best)
        self._log_first += math.log(self.floor if outcome.first_as is None else outcome.first_as)

    @property
    def as_score(self) -> float | None:
        """Geometric mean of the finished trials' best AS; None without any."""
        return math.exp(self._log_best / self.runs) if self.runs else None

    @property
    def first_share(self) -> float | None:
        """Share of `as_score` that the trials' first evaluations alone would give (Figure 3)."""
        return math.exp((self._log_first - self._log_best) / self.runs) if self.runs else None

    @property
    def steps(self) -> float | None:
        """Median of model calls in a trial."""
        return statistics.median(self._steps) if self._steps else None

    @property
    def evaluations(self) -> float | None:
        """Median of judged candidates in a trial."""
        return statistics.median(self._evaluations) if self._evaluations else None

    def kept_share(self) -> float | None:
        """Return the share of the finished trials that is kept."""
        return self.kept / self.runs if self.runs else None

    def went_back_share(self) -> float | None:
        """Return the share of the trials that have a right candidate at all, as in the paper."""
        return self.went_back / self.correct if self.correct else None


def summarise(outcomes: Iterable[Outcome]) -> list[Summary]:
    """Sum up each model's trials, in the order in which the models come."""
    summaries: dict[str, Summary] = {}
    for outcome in outcomes:
        summaries.setdefault(outcome.model, Summary(outcome.model)).add(outcome)
    return list(summaries.values())
