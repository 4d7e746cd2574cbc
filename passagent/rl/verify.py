"""`python -m passagent.rl.verify TASK PASS_DIR --out DIR`: what a Harbor task's test.sh runs.

Writes `evaluation.json`, then `reward.txt`, into DIR: the reward that PassEnv gives for the files as one
candidate. A directory without a readable pass is worth 0. Where the machine or the task fails, there is an
error, and no reward.txt: Harbor then reports the trial as failed instead of scoring it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from passagent.cache import write_whole
from passagent.cli import guarded
from passagent.config import load_config, parse_set
from passagent.errors import UsageError
from passagent.evaluator.result import Candidate
from passagent.rl.reward import reward_of
from passagent.rl.shared import close_all, shared
from passagent.tasks import load_task

EVALUATION, REWARD = "evaluation.json", "reward.txt"


def verify(task_path: str, pass_dir: str, device: str, settings: list[str], out: Path) -> None:
    """Judge `pass_dir` and write both files. Raises PassagentError."""
    for name in (EVALUATION, REWARD):
        (out / name).unlink(missing_ok=True)  # an earlier one's, whatever fails below
    config = load_config(None, parse_set(settings) | {"evaluator.device": device}).evaluator
    task = load_task(task_path)
    try:
        candidate = Candidate.from_dir(pass_dir)
    except UsageError as error:
        print(f"reward 0: {error}")
        write_whole(out / REWARD, "0.0\n")
        return
    evaluator = shared(config, str(out / "runs"))
    try:
        evaluation = evaluator.run(evaluator.evaluate(task, candidate))
    finally:
        close_all()
    reward = reward_of(evaluation)
    write_whole(out / EVALUATION, evaluation.model_dump_json() + "\n")
    write_whole(out / REWARD, f"{reward}\n")
    score = "none" if evaluation.as_score is None else f"{evaluation.as_score:.4f}"
    print(f"reward {reward}: {evaluation.status}, AS {score}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m passagent.rl.verify", description=__doc__)
    parser.add_argument("task")
    parser.add_argument("pass_dir")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    given = parser.parse_args()
    guarded(lambda: verify(given.task, given.pass_dir, given.device, given.settings, given.out))


if __name__ == "__main__":
    main()
