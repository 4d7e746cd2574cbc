"""From a candidate to a reward, which is no finer than what was measured.

A trainer compares the rewards of a group. A difference that is within the measurement's noise would be
learned from like any other. So ln(AS) is rounded to a step as wide as the evaluation's own interval:

    step = the smallest of 1, 2 and 5 times a power of ten that is >= ln(as_high / as_low), and >= FLOOR
    AS'  = exp(step * round(ln(AS) / step))

`as_low` and `as_high` are the AS with every speedup at an end of its 95% interval (evaluator/result.py). The
logarithm is rounded because AS is a geometric mean of speedups: the same step is the same factor everywhere,
AS = 1 (eager) stays 1, and no correct candidate is rounded to 0.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from passagent.config import Config, EvaluatorConfig, load_config
from passagent.errors import InfrastructureError, UsageError
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.service.pool import SubjectLost
from passagent.sandbox.cache import write_whole
from passagent.sandbox.faults import writing
from passagent.tasks import Task, load_task
from passagent.view.handles import Evaluator, T

log = logging.getLogger("passagent.data.rl")

FLOOR = 0.001
"""The smallest step of ln(AS): a tenth of a per cent."""
MAX_FAULTS = 3
"""Evaluations in a row that the machine failed; then no episode is begun any more."""


def step_of(evaluation: Evaluation) -> float:
    """Return the step of ln(AS) to which this evaluation is known."""
    low, high = evaluation.as_low, evaluation.as_high
    width = max(FLOOR, math.log(high / low) if low and high and high > low else 0.0)
    power = math.floor(math.log10(width) + 1e-9)
    exact = [float(f"{digit}e{power}") for digit in (1, 2, 5, 10)]
    return next(step for step in exact if step >= width * (1 - 1e-9))


def reward_of(evaluation: Evaluation) -> float:
    """Return the worth of a candidate by itself: its AS, rounded to the evaluation's step, to six digits.

    It is 0 if it was refused, has no AS, or nothing was measured.
    """
    score = evaluation.as_score
    if not score or score < 0 or evaluation.status in ("refused", "infrastructure"):
        return 0.0
    step = step_of(evaluation)
    return float(f"{math.exp(step * round(math.log(score) / step)):.6g}")


class SharedEvaluator(Evaluator):
    """Judges for every environment of this process with the same settings; get it by `shared`.

    The pool holds a device's lock around each evaluation, as for every other command: environments queue,
    also with those of other processes.
    """

    def __init__(self, config: EvaluatorConfig, runs_dir: str | None) -> None:
        """`runs_dir`: where evaluations are kept and found again; None: nowhere. Raises UsageError."""
        self._open(Config(evaluator=config), runs_dir, log.warning)
        self._faults: list[str] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the evaluator's loop; it is cancelled if the caller is interrupted."""
        return self._thread.run(work)

    async def confirmed(self, task: Task, candidate: Candidate) -> Evaluation:
        """Return the evaluation, from the store if it is known there.

        A refusal that rests on a measurement must repeat itself to count: it is measured once more. Raises
        what EvaluatorPool.evaluate raises.
        """
        evaluation = await self._counted(task, candidate)
        if evaluation.status == "refused" and evaluation.rests_on_measurement:
            evaluation = await self._counted(task, candidate)
        return evaluation

    async def outline(self, task: Task, candidate: Candidate) -> Evaluation | list[str]:
        """Return EvaluatorPool.outline of the candidate."""
        return await self._pool.outline(task.path, candidate)

    async def _counted(self, task: Task, candidate: Candidate) -> Evaluation:
        try:
            evaluation = (await self._evaluate(task, candidate, False)).evaluation
        except SubjectLost:
            raise
        except InfrastructureError as error:
            self._faults.append(str(error))
            raise
        self._faults.clear()
        return evaluation

    def check(self) -> None:
        """Raise InfrastructureError if the machine failed the last MAX_FAULTS evaluations."""
        if len(self._faults) >= MAX_FAULTS:
            raise InfrastructureError(
                f"the machine failed {len(self._faults)} evaluations in a row, training on would teach "
                f"nothing: {self._faults[-1]}"
            )


_open: dict[tuple[str, str | None], SharedEvaluator] = {}
_guard = threading.Lock()


def shared(config: EvaluatorConfig, runs_dir: str | None) -> SharedEvaluator:
    """Return this process's evaluator with these settings, made when first asked for. Raises UsageError.

    Nobody ends it: its processes see their sockets close when this one ends, and end, too.
    """
    key = config.model_dump_json(), runs_dir
    with _guard:
        if key not in _open:
            _open[key] = SharedEvaluator(config, runs_dir)
        return _open[key]


def write_reward(
    task_path: str, pass_dir: str | None, preset: str | None, settings: dict[str, Any], out: Path
) -> tuple[float, Evaluation | str]:
    """Judge `pass_dir`; return the reward, and the evaluation or why there is none. Raises PassagentError.

    `evaluation.json`, then `reward.txt`, are written into `out` (`eval --reward DIR`, which a Harbor task's
    test.sh runs): the reward that PassEnv gives for the files as one candidate. A directory without a
    readable pass is worth 0. Where the machine or the task fails, there is no reward.txt: Harbor then reports
    the trial as failed instead of scoring it.
    """
    evaluation_path, reward_path = out / "evaluation.json", out / "reward.txt"
    with writing(out, "--reward"):
        for path in (evaluation_path, reward_path):
            path.unlink(missing_ok=True)  # an earlier one's, whatever fails below
        task, config = load_task(task_path), load_config(preset, settings).evaluator
        judged: Evaluation | str
        try:
            candidate = Candidate.from_dir(pass_dir or task.path / "pass_dir")
        except UsageError as error:
            reward, judged = 0.0, str(error)
        else:
            with SharedEvaluator(config, str(out / "runs")) as evaluator:
                judged = evaluator.run(evaluator.confirmed(task, candidate))
            reward = reward_of(judged)
            write_whole(evaluation_path, judged.model_dump_json() + "\n")
        write_whole(reward_path, f"{reward}\n")
    return reward, judged
