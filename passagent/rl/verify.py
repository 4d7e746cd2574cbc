"""`passagent tasks reward`, which a Harbor task's test.sh runs: the reward of a pass directory, in a file.

Writes `evaluation.json`, then `reward.txt`, into DIR: the reward that PassEnv gives for the files as one
candidate. A directory without a readable pass is worth 0. Where the machine or the task fails, there is an
error, and no reward.txt: Harbor then reports the trial as failed instead of scoring it.
"""

from __future__ import annotations

from pathlib import Path

from passagent.cache import write_whole
from passagent.config import load_config
from passagent.errors import UsageError
from passagent.evaluator.result import Candidate, Evaluation
from passagent.faults import os_fault
from passagent.rl.reward import reward_of
from passagent.rl.shared import close_all, shared
from passagent.settings import parse_set
from passagent.tasks import load_task

EVALUATION, REWARD = "evaluation.json", "reward.txt"


def verify(task_path: str, pass_dir: str, device: str, settings: list[str], out: Path) -> None:
    """Judge `pass_dir` and write both files. Raises PassagentError."""
    try:
        for name in (EVALUATION, REWARD):
            (out / name).unlink(missing_ok=True)  # an earlier one's, whatever fails below
        reward, evaluation = judge(task_path, pass_dir, device, settings, out / "runs")
        if evaluation is not None:
            write_whole(out / EVALUATION, evaluation.model_dump_json() + "\n")
        write_whole(out / REWARD, f"{reward}\n")
    except OSError as error:
        raise os_fault(error, out, "--out") from error


def judge(
    task_path: str, pass_dir: str, device: str, settings: list[str], runs_dir: Path
) -> tuple[float, Evaluation | None]:
    """The reward, which is printed, and the evaluation if there is a pass. Raises PassagentError."""
    config = load_config(None, parse_set(settings) | {"evaluator.device": device}).evaluator
    task = load_task(task_path)
    try:
        candidate = Candidate.from_dir(pass_dir)
    except UsageError as error:
        print(f"reward 0: {error}")
        return 0.0, None
    evaluator = shared(config, str(runs_dir))
    try:
        evaluation = evaluator.run(evaluator.evaluate(task, candidate))
    finally:
        close_all()
    reward = reward_of(evaluation)
    score = "none" if evaluation.as_score is None else f"{evaluation.as_score:.4f}"
    print(f"reward {reward}: {evaluation.status}, AS {score}")
    return reward, evaluation
