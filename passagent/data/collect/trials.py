"""The trials of a collection, tasks times trials, and PassNet's figures about them (4.2 (4), 4.3).

A trial is a run that `collect` makes of a task with a model. The trials of one model in a database are its
collection.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent import __version__
from passagent.config import Config, override
from passagent.errors import UsageError
from passagent.evaluator.score import B
from passagent.evaluator.target import kind_of
from passagent.store import Store
from passagent.store.runs import Run
from passagent.store.sessions import changed_settings
from passagent.tasks import Task
from passagent.tasks.reader import load_tasks

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
BUDGETS = ("max_tokens", "max_cost", "max_time_s", "max_evaluations")
"""Keys of `search` that bound the whole collection and no single trial."""
_FREE = (
    "model.base_url", "model.timeout_s", "model.max_retries", "model.prices", "model.stream",
    "experience.library",
)  # fmt: skip
"""Settings that may differ when a collection is gone on with: they change nothing in a conversation."""
KEPT_ABOVE = 0.1
"""The paper keeps trajectories with a higher AS."""
_OUTCOMES = (Path(__file__).parent / "outcomes.sql").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Trial:
    """A trial of a task, which is not loaded."""

    path: Path
    task: str
    key: str
    """sha256 of the subgraphs' content."""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.task} trial {self.number}"


def list_trials(paths: Iterable[Path], count: int) -> tuple[list[Trial], dict[str, str]]:
    """List `count` trials of each task, one task after the other; tasks of equal content are one.

    With them it returns the directory of each task that cannot be loaded, and why.
    """
    tasks, broken = load_tasks(paths)
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(task.key, task)
    every = [Trial(t.path, t.name, t.key, number) for t in first.values() for number in range(count)]
    return every, {str(path): reason for path, reason in broken.items()}


def settings_of_trials(config: Config, settings: Iterable[str]) -> Config:
    """Return `config` with FIXED. Raises UsageError if one of `settings` has another value there."""
    data = config.model_dump()
    for key in settings:
        section, _, name = key.partition(".")
        if key in FIXED and data[section][name] != FIXED[key]:
            raise UsageError(
                f"{key}: is {FIXED[key]} in a collection: a trial is one conversation from the task on"
            )
    return override(config, FIXED)


def config_of(config: Config, trial: Trial) -> Config:
    """Return the settings of a trial's run: a seed of its own, and no budget, which is the collection's."""
    search = config.search.model_copy(
        update={"seed": config.search.seed + trial.number} | dict.fromkeys(BUDGETS, None)
    )
    return config.model_copy(update={"search": search})


def find_run(store: Store, trial: Trial, model: str) -> Run | None:
    """Return the run of this trial, None if it has not begun."""
    return store.one(
        Run,
        "SELECT * FROM runs WHERE task_key = :task AND model = :model AND trial = :trial",
        {"task": trial.key, "model": model, "trial": trial.number},
    )


def finished_trials(store: Store, trials: Iterable[Trial], config: Config) -> set[Trial]:
    """Return the trials that are finished.

    Raises UsageError for a trial that was made by another passagent or under other settings.
    """
    finished = set[Trial]()
    for trial in trials:
        run = find_run(store, trial, config.model.label)
        if run is None:
            continue
        differ = [f"passagent {run.version}, now {__version__}"] if run.version != __version__ else []
        same = kind_of(run.device) == kind_of(config.evaluator.device)
        for change in changed_settings(run.config, config_of(config, trial).model_dump_json()):
            key = change.partition(" ")[0]
            if key not in _FREE and not (key == "evaluator.device" and same):
                differ.append(change)
        if differ:
            raise UsageError(
                f"{store.runs_dir}: holds {run.task} trial {run.trial} of {run.model} made with "
                f"{', '.join(differ)}; collect as before, or with another --runs-dir"
            )
        if run.state == "finished":
            finished.add(trial)
    return finished


@dataclass(frozen=True)
class Outcome:
    """The end of a trial, or where it stands."""

    id: str
    """The id of its run."""
    task: str
    model: str
    trial: int
    state: str
    """Run.state; `finished`: the conversation came to its end."""
    tokens: int
    cost: float
    steps: int
    """Model calls."""
    evaluations: int
    """Candidates that were judged, answers from the store and refusals included."""
    first_as: float | None
    """AS of the first judged candidate; None: there is none, or it was not timed."""
    best_as: float | None
    """The highest AS of its candidates, right or wrong."""
    is_correct: int
    """1: a candidate is right on every subgraph."""
    went_back: int
    """1: a right candidate was followed by a wrong one, and that by a right one, with anything between."""


def outcomes(store: Store, run_id: str | None = None) -> list[Outcome]:
    """Read the outcome so far of a trial, or of every one in the database in the order of their beginning."""
    return store.all(Outcome, _OUTCOMES, {"run": run_id})


@dataclass(frozen=True)
class Summary:
    """The figures of one model's trials; those that are not finished are only counted."""

    model: str
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
    as_score: float | None = None
    """Geometric mean of the finished trials' best AS; b counts for one without a candidate."""
    median_steps: float | None = None
    """Median of model calls in a trial."""
    median_evaluations: float | None = None
    """Median of judged candidates in a trial."""
    first_share: float | None = None
    """Share of `as_score` that the trials' first evaluations alone would give (Figure 3)."""


def summarise(outcomes: Sequence[Outcome], model: str) -> Summary:
    """Sum up the trials of a model."""
    mine = [outcome for outcome in outcomes if outcome.model == model]
    done = [outcome for outcome in mine if outcome.state == "finished"]
    floor, runs = B, len(done)
    best = [floor if outcome.best_as is None else outcome.best_as for outcome in done]
    first = [floor if outcome.first_as is None else outcome.first_as for outcome in done]
    kept = sum(outcome.is_correct and score > KEPT_ABOVE for outcome, score in zip(done, best, strict=True))
    correct, back = sum(outcome.is_correct for outcome in done), sum(outcome.went_back for outcome in done)
    as_score = statistics.geometric_mean(best) if best else None
    return Summary(
        model=model,
        runs=runs,
        unfinished=len(mine) - runs,
        kept=kept,
        correct=correct,
        went_back=back,
        tokens=sum(outcome.tokens for outcome in mine),
        cost=math.fsum(outcome.cost for outcome in mine),
        as_score=as_score,
        median_steps=statistics.median(outcome.steps for outcome in done) if done else None,
        median_evaluations=statistics.median(outcome.evaluations for outcome in done) if done else None,
        first_share=statistics.geometric_mean(first) / as_score if as_score else None,
    )


def summaries_of(store: Store) -> list[Summary]:
    """Sum up each model's trials in the database, in the order in which the models come."""
    every = outcomes(store)
    return [summarise(every, model) for model in dict.fromkeys(outcome.model for outcome in every)]
