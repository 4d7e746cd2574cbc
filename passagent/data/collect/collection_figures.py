"""What a collection came to: PassNet's figures about its trajectories (4.2 (4), 4.3)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from passagent.config import EvaluatorConfig
from passagent.data.collect.trials import Outcome

KEPT_ABOVE = 0.1
"""The paper keeps trajectories with a higher AS."""


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
    """Of these, with pass -> fail -> pass."""
    tokens: int = 0
    """Of all trials, unfinished ones too."""
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
        """Of the finished trials."""
        return self.kept / self.runs if self.runs else None

    def went_back_share(self) -> float | None:
        """Of the trials that have a right candidate at all, as in the paper."""
        return self.went_back / self.correct if self.correct else None


def summarise(outcomes: Iterable[Outcome]) -> list[Summary]:
    """A summary for each model, in the order in which they come."""
    found: dict[str, Summary] = {}
    for outcome in outcomes:
        found.setdefault(outcome.model, Summary(outcome.model)).add(outcome)
    return list(found.values())
