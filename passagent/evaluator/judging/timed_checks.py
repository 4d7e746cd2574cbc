"""Checks of a subject while it is timed, and at the end: an audit, and calls on the other input sets."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial

import torch

from passagent.evaluator import score
from passagent.evaluator.correctness.precision import Expected
from passagent.evaluator.judging.agreement import judge_extreme, judge_timed
from passagent.evaluator.judging.loaded_worker import LoadedWorker, outputs_of, refuse_kept
from passagent.evaluator.reference.baseline import Baseline
from passagent.evaluator.reference.reference import Reference
from passagent.evaluator.result import GraphResult
from passagent.evaluator.runner.fresh import Windows
from passagent.evaluator.runner.worker_messages import Kept
from passagent.evaluator.score import SETS


@dataclass
class TimedChecks:
    """The checks of one subgraph. All raise Failed and Refused."""

    loaded: LoadedWorker
    reference: Reference
    result: GraphResult
    baseline: Baseline

    def __post_init__(self) -> None:
        self._outputs = self.loaded.take(self.reference, self.result)
        assert self.result.passes_from_t is not None
        self._allowed = max(self.result.passes_from_t, score.STRICT_T) + 1
        extreme = range(SETS, len(self.reference.expected))
        self._untimed = [0, *(chosen for chosen in extreme if chosen not in self.reference.special)]

    def verify(self, chosen: int, windows: Windows, kept_call: Kept) -> None:
        """Judge a timed call."""
        expected = self.reference.expected[chosen]
        if self.loaded.is_candidate:
            refuse_kept(self.reference, expected.facts, kept_call)
        eager = self.baseline.again(self.reference, chosen, windows)
        self._judge(chosen, eager, outputs_of(self._outputs, kept_call, eager.states), windows)

    def finish(self, is_brief: bool) -> None:
        """Judge a candidate in one more audit, and then on every set that is not timed; on one if `is_brief`.

        That is in calls like the timed ones: a kernel may recognise audits, and be right only there.
        """
        chosen = secrets.randbelow(SETS)
        (got,) = self.loaded.audited(self.reference, self._outputs, [chosen])
        self._compare(chosen, got)
        for other in secrets.SystemRandom().sample(self._untimed, 1 if is_brief else len(self._untimed)):
            self._compare(other, self.loaded.as_timed(self.reference, self._outputs, other))

    def _compare(self, chosen: int, got: list[torch.Tensor]) -> None:
        if chosen < SETS:
            self._judge(chosen, self.reference.expected[chosen], got)
        else:
            is_right = self.result.status == "ok"
            look_closer = partial(self.baseline.look_closer, self.reference)
            judge_extreme(self.reference, chosen, got, self.result, is_right, look_closer)

    def _judge(
        self, chosen: int, eager: Expected, got: list[torch.Tensor], windows: Windows | None = None
    ) -> None:
        look_closer = partial(self.baseline.look_closer, self.reference, chosen=chosen, windows=windows)
        judge_timed(eager, got, self.result, self._allowed, look_closer, self.loaded.is_candidate)
