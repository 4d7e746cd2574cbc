"""The tiny recipe of examples/distill, whole: collected, exported, trained, and the student asked.

`make check-exports` runs this, in the environment `trl` (environments.py). TRL and LLaMA-Factory read their
files of Table 4. Nothing is asserted of time, or of how good the student is.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "examples/distill"
PASSAGENT = [sys.executable, "-m", "passagent"]
sys.path.insert(0, str(ROOT / "checks"))

from environments import python_of  # noqa: E402

from passagent.store import Store, runs  # noqa: E402
from passagent.store.trajectories import find_episode, trajectory  # noqa: E402

TABLE_4 = {
    "learning_rate": 2e-5,
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr": 2e-6},
    "num_train_epochs": 5,
    "batch": 8,
    "context": 262144,
}
OF_TRAINING = """
import json
names = ("learning_rate", "lr_scheduler_kwargs", "num_train_epochs")
told = {name: getattr(training, name) for name in names}
told["lr_scheduler_type"] = training.lr_scheduler_type.value
told["batch"] = training.per_device_train_batch_size * training.gradient_accumulation_steps
print(json.dumps(told | more))
"""
TRL_READS = """
import sft
from trl import SFTConfig, TrlParser
words = ["--config", "trl.yaml", "--use_cpu", "true"]
_, training = TrlParser((sft.Wanted, SFTConfig)).parse_args_and_config(words)
assert training.assistant_only_loss
more = {"context": training.max_length}
"""
LLAMAFACTORY_READS = """
import sys, types
from transformers.utils import is_torchaudio_available
assert not is_torchaudio_available()  # remembered: transformers does not take the stub for it
sys.modules["torchaudio"] = types.ModuleType("torchaudio")
import yaml
from llamafactory.hparams import get_train_args
settings = yaml.safe_load(open("llamafactory.yaml"))
_, data, training, tuning, _ = get_train_args(settings | {"bf16": False, "use_cpu": True})
assert tuning.finetuning_type == "full" and tuning.stage == "sft" and not data.mask_history
more = {"context": data.cutoff_len}
"""


def done(command, **more):
    """What a command printed to stdout; it must end with exit code 0."""
    ended = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=1800, **more
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-3000:]}\n{ended.stderr[-5000:]}"
    return ended.stdout


@pytest.fixture
def made(once):
    """The directory that run.sh leaves."""
    return once("distill", run_recipe) / "out"


def run_recipe(place):
    """Run it as a newcomer does: with `passagent` and `python` on PATH."""
    (place / "bin").mkdir()
    program = place / "bin/passagent"  # the environment has passagent's modules, but not its program
    program.write_text('#!/bin/sh\nexec python -m passagent "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), str(python_of("trl").parent), os.environ["PATH"]])
    done(["bash", RECIPE / "tiny/run.sh", place / "out"], env=os.environ | {"PATH": path})


def test_what_is_exported_is_in_order(made):
    told = done([*PASSAGENT, "check", "data", "--runs-dir", "runs"], cwd=made)
    assert told == "data: 4 rows in order (hashes, secrets, database)\n"
    manifest = json.loads((made / "data/export.manifest").read_text())
    assert manifest["counts"]["model"] == {"expert": 3, "replay:scripted.jsonl": 1}
    assert manifest["files"] == {"messages.jsonl": 3, "prompt_completion.jsonl": 1}
    assert manifest["trained"] == manifest["replies"] - 1  # but the reply with the broken arguments


def test_the_check_sees_a_changed_row(made, tmp_path):
    shutil.copytree(made / "data", tmp_path / "data")
    path = tmp_path / "data/messages.jsonl"
    path.write_text(path.read_text().replace('"role": "tool"', '"role": "user"', 1))
    ended = subprocess.run(
        [*PASSAGENT, "check", "data"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1 and "messages.jsonl:" in ended.stderr


def test_the_loss_falls(made):
    history = json.loads((made / "student/trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    print(losses)
    assert len(losses) >= 12
    assert sum(losses[-4:]) < 0.85 * sum(losses[:4])


def test_the_students_replies_went_through_the_loop(made):
    with Store.open(str(made / "runs"), create=False) as store:
        run = runs.find_run(store, "last")
        told = trajectory(store, run, find_episode(store, run, 1))
    assert (told.model, told.task, told.state) == ("openai/student", "quick_gelu", "done")
    replies = [turn for turn in told.messages if turn.message["role"] == "assistant"]
    assert replies
    for turn in replies:
        assert turn.usage.input_tokens > 1000 and turn.usage.output_tokens > 0
        print(repr(turn.message["content"]), turn.message["tool_calls"])
    assert any(turn.message["content"] or turn.message["tool_calls"] for turn in replies)


def test_the_server_says_calls_and_thoughts(tmp_path):
    done([python_of("trl"), ROOT / "checks/exports/student_calls.py"], cwd=tmp_path)


def test_trl_reads_table_4():
    printed = done([python_of("trl"), "-c", TRL_READS + OF_TRAINING], cwd=RECIPE)
    assert json.loads(printed.splitlines()[-1]) == TABLE_4


def test_llamafactory_reads_table_4(tmp_path):
    try:
        python = python_of("llamafactory")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"LLaMA-Factory cannot be installed here: {error}")
    shutil.copy(RECIPE / "llamafactory.yaml", tmp_path)  # it makes its output directory
    printed = done([python, "-c", LLAMAFACTORY_READS + OF_TRAINING], cwd=tmp_path)
    assert json.loads(printed.splitlines()[-1]) == TABLE_4
