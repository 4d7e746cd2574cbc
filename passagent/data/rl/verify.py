"""The reward of a pass directory in a file: `eval --reward DIR`, which a Harbor task's test.sh runs.

Writes `evaluation.json`, then `reward.txt`, into DIR: the reward that PassEnv gives for the files as one
candidate. A directory without a readable pass is worth 0. Where the machine or the task fails, there is an
error, and no reward.txt: Harbor then reports the trial as failed instead of scoring it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from passagent.config import EvaluatorConfig, load_config
from passagent.data.rl.reward import reward_of
from passagent.data.rl.shared import close_all, shared
from passagent.errors import UsageError
from passagent.evaluator.result import Candidate, Evaluation
from passagent.system.cache import write_whole
from passagent.system.faults import os_fault
from passagent.tasks import Task, load_task

EVALUATION, REWARD = "evaluation.json", "reward.txt"


def write_reward(
    task_path: str, pass_dir: str | None, preset: str | None, settings: dict[str, Any], out: Path
) -> tuple[float, Evaluation | str]:
    """Judge `pass_dir` and write both files; return the reward, and the evaluation or why there is none.

    Raises PassagentError.
    """
    try:
        for name in (EVALUATION, REWARD):
            (out / name).unlink(missing_ok=True)  # an earlier one's, whatever fails below
        task, config = load_task(task_path), load_config(preset, settings).evaluator
        reward, judged = _judge(task, pass_dir or task.path / "pass_dir", config, out / "runs")
        if isinstance(judged, Evaluation):
            write_whole(out / EVALUATION, judged.model_dump_json() + "\n")
        write_whole(out / REWARD, f"{reward}\n")
    except OSError as error:
        raise os_fault(error, out, "--reward") from error
    return reward, judged


def _judge(
    task: Task, pass_dir: str | Path, config: EvaluatorConfig, runs_dir: Path
) -> tuple[float, Evaluation | str]:
    try:
        candidate = Candidate.from_dir(pass_dir)
    except UsageError as error:
        return 0.0, str(error)
    evaluator = shared(config, str(runs_dir))
    try:
        evaluation = evaluator.run(evaluator.evaluate(task, candidate))
    finally:
        close_all()
    return reward_of(evaluation), evaluation
