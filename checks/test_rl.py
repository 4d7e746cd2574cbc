"""PassEnv in TRL's GRPOTrainer, and Harbor's own reader on what `tasks export --harbor` writes.

`make check-exports` runs this. The first time it makes two environments (checks/environments.py).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from environments import python_of

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import tiny  # noqa: E402

from passagent.data.rl.reward import reward_of  # noqa: E402
from passagent.evaluator.result import Candidate, Evaluation  # noqa: E402

PASSAGENT = [sys.executable, "-m", "passagent"]
QUICK = ("--set", "evaluator.budget_s=0.1")
READ = """
import json, sys
from harbor.models.task.task import Task
for place in sys.argv[1:]:
    assert Task.is_valid_dir(place)
    task = Task(place)
    config = task.config
    print(json.dumps([task.name, task.instruction, config.verifier.environment_mode.value, config.artifacts]))
"""


def done(*command, **more):
    """What a command printed to stdout; it must end with exit code 0."""
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **more)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def test_grpo_takes_a_step_and_the_reward_is_what_eval_gives(tmp_path):
    task, candidate = tiny.write_task(tmp_path / "task"), tiny.candidate()
    asked = {"task": str(task), "files": candidate.files, "runs_dir": str(tmp_path / "runs")}
    program = ROOT / "checks/grpo_step.py"
    printed = done(
        python_of("trl"), program, json.dumps(asked | {"out": str(tmp_path / "out")}), cwd=tmp_path
    )
    told = json.loads(printed.splitlines()[-1])
    assert told["steps"] == 1 and told["changed"] > 0
    tools = ["check", "file_editor", "pass_evaluator", "profile", "search_knowledge"]
    assert told["tools"] == tools
    assert told["calls"] == pytest.approx(8 / 3) and told["failures"] == pytest.approx(1 / 8)
    reward, nothing, unknown = told["rewards"]
    assert nothing == 0 and unknown is None and told["faults"] == [None, None, "a lost GPU"]
    assert told["mean"] == pytest.approx(reward / 2)  # what the machine failed is left out

    left = tmp_path / "left"
    Candidate(told["files"]).write(left)
    assert told["files"] == candidate.files
    words = ("eval", task, "--pass-dir", left, "--runs-dir", tmp_path / "runs", "--json", *QUICK)
    found = json.loads(done(*PASSAGENT, *words))
    evaluation = Evaluation.model_validate({k: v for k, v in found.items() if k in Evaluation.model_fields})
    if found["from_store"]:  # the very measurement that the reward rests on
        assert reward == reward_of(evaluation)
    else:  # an unstable one is never reused: another measurement, as unlike as a busy machine makes it
        assert evaluation.status == "ok" and reward > 0


def test_harbor_reads_what_is_exported(tmp_path):
    try:
        python = python_of("harbor", (3, 12))
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    done(
        *PASSAGENT,
        "tasks",
        "export",
        "--harbor",
        tmp_path / "out",
        "example:quick_gelu",
        "example:add_rms_norm",
    )
    printed = done(python, "-c", READ, *sorted((tmp_path / "out").iterdir()))
    read = [json.loads(line) for line in printed.splitlines()]
    assert [one[0] for one in read] == ["passagent/add_rms_norm", "passagent/quick_gelu"]
    for _, instruction, mode, artifacts in read:
        assert "/app/pass_dir" in instruction and "Operators:" in instruction
        assert mode == "separate" and artifacts == ["/app/pass_dir"]
