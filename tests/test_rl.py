"""PassEnv: tools, rewards, refusals, faults. The Harbor export: what is written, and what test.sh does."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from passagent.agent.toolbox import SPECS
from passagent.config import load_config
from passagent.data.rl import PassEnv, harbor, reward
from passagent.data.rl.reward import FLOOR, reward_of, step_of
from passagent.errors import InfrastructureError, TaskError, UsageError
from passagent.evaluator.fleet import opening
from passagent.evaluator.result import MANIFEST, Evaluation, Measured, Violation
from passagent.evaluator.service.pool import SubjectLost
from passagent.tasks import load_task

QUICK = {"evaluator.budget_s": 0.05}
BY_TEXT = Violation(rule="host_name", file="Fused.py", line=1, message="no")
BY_TIME = Violation(
    rule="clock", file="", line=0, message="no", measured=Measured(claimed=1, seen=2, bound=1, unit="us")
)


def evaluation(score, status="ok", low=None, high=None, violations=()):
    return Evaluation(
        task="t", candidate="c", device="cpu", dispatch="direct", timing="wall", status=status,
        as_score=score, as_low=low, as_high=high, es=None, graphs=[], violations=list(violations),
        evaluator_version="test",
    )  # fmt: skip


class Pool:
    """A pool that answers what it is given, or raises it."""

    answers: list[Evaluation | Exception] = []  # noqa: RUF012
    asked = 0
    made = 0

    def __init__(self, config, tell):
        Pool.made += 1

    async def evaluate(self, path, candidate):
        Pool.asked += 1
        answer = Pool.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def outline(self, path, candidate):
        return ["nothing to speak of"]

    async def close(self):
        pass


@pytest.fixture
def task(tmp_path):
    return str(tiny.write_subgraph(tmp_path / "task", [4, 64]))


@pytest.fixture(autouse=True)
def _closed():
    yield
    while reward._open:
        reward._open.popitem()[1].close()


@pytest.fixture
def answers(monkeypatch):
    monkeypatch.setattr(opening, "open_pool", Pool)
    Pool.answers, Pool.asked, Pool.made = [], 0, 0
    return Pool.answers


def begun(task, **more):
    """An environment at the beginning of an episode, its directory with a pass in it."""
    env = PassEnv(**({"settings": QUICK, "runs_dir": None} | more))
    env.reset(task=task, prompt="ignored")
    write(env, "v0")
    return env


def write(env, name):
    """Another version of the pass."""
    for file, text in tiny.candidate().files.items():
        env.file_editor("create", file, file_text=text if file == MANIFEST else f"# {name}\n{text}")


def test_it_imports_no_torch_and_no_trainer():
    code = "import sys, passagent.data.rl; print(sorted({'torch', 'trl', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_its_public_methods_are_the_agents_tools():
    found = {name for name, _ in inspect.getmembers(PassEnv, inspect.isfunction) if name[0] != "_"}
    assert found - {"reset", "get_reward"} == set(SPECS)
    for name, spec in SPECS.items():
        method = getattr(PassEnv, name)
        signature = inspect.signature(method)
        arguments = {key: value for key, value in signature.parameters.items() if key != "self"}
        assert set(arguments) == set(spec.parameters["properties"])
        required = [key for key, value in arguments.items() if value.default is inspect.Parameter.empty]
        assert required == spec.parameters["required"]
        assert all(f"    {key}: " in method.__doc__ for key in arguments), name
        assert signature.return_annotation is str and "Returns:" in method.__doc__


GOOD, BETTER = evaluation(1.52, low=1.5, high=1.54), evaluation(3.0)
CHEATING = evaluation(0.1, "refused", violations=[BY_TEXT])
SLOW_CLOCK = evaluation(0.1, "refused", violations=[BY_TIME])


@pytest.mark.parametrize(
    ("judged", "reward", "is_refused"),
    [
        ([], 0.0, False),
        ([GOOD, evaluation(0.4, "wrong_result"), evaluation(1.4)], reward_of(GOOD), False),
        ([GOOD, CHEATING, BETTER], 0.0, True),  # for the whole episode
        ([SLOW_CLOCK, BETTER], reward_of(BETTER), False),  # a measured refusal has to repeat itself
        ([GOOD, SLOW_CLOCK, SLOW_CLOCK], 0.0, True),
        ([GOOD, InfrastructureError("a lost GPU")], None, False),
        ([GOOD, TaskError("model.py: broken")], None, False),
    ],
)
def test_reward_follows_from_what_was_judged(task, answers, judged, reward, is_refused):
    env = begun(task)
    answers += judged
    while answers:
        write(env, f"v{len(answers)}")
        fault = answers[0] if isinstance(answers[0], Exception) else None
        with pytest.raises(type(fault)) if fault else contextlib.nullcontext():
            env.pass_evaluator()
        assert env.fault == (str(fault) if fault else None)
    assert env.reward == env.get_reward() == reward != 1.52
    assert env.refused == is_refused and Pool.asked == len(judged)
    env.reset(task=task)
    assert (env.reward, env.refused, env.best, env.best_files) == (0.0, False, None, {})


def test_answer_of_evaluator_names_score_and_rest(task, answers):
    env = begun(task)
    answers.append(GOOD)
    assert env.pass_evaluator().endswith("status: ok\nAS: 1.5200\nleft: 7 of 8 evaluations")
    assert env.best_files["Fused.py"].startswith("# v0")


def test_no_episode_begins_on_a_machine_that_keeps_failing(task, answers):
    env = begun(task)
    answers += [InfrastructureError("a lost GPU")] * 3
    for _ in range(3):
        with pytest.raises(InfrastructureError):
            env.pass_evaluator()
    with pytest.raises(InfrastructureError, match="3 evaluations in a row"):
        env.reset(task=task)


def test_candidates_that_end_the_evaluator_do_not_stop_the_training(task, answers):
    env = begun(task)
    answers += [SubjectLost("gone")] * 4
    for _ in range(4):
        with pytest.raises(SubjectLost):
            env.pass_evaluator()
    env.reset(task=task)


def test_mistakes_are_answers_and_evaluations_are_limited(task, answers):
    env = begun(task, settings=QUICK | {"agent.max_evaluations": 1})
    assert "did you mean 'view'" in env.file_editor("vew", ".")
    assert env.search_knowledge().startswith("error: give either query")
    assert "nothing is found wrong" in env.check()
    answers.append(evaluation(2.0))
    env.pass_evaluator()
    assert env.pass_evaluator().startswith("error: no evaluation is left")
    assert Pool.asked == 1


def test_the_same_files_are_measured_once_an_episode(task, answers):
    env = begun(task)
    answers.append(evaluation(2.0))
    assert env.pass_evaluator().count("AS: 2.0000") == env.pass_evaluator().count("AS: 2.0000") == 1
    assert Pool.asked == 1


def test_environments_share_an_evaluator(task, answers):
    begun(task), begun(task)
    assert Pool.made == 1
    begun(task, settings={"evaluator.budget_s": 0.2})
    assert Pool.made == 2


def test_what_is_asked_wrongly_is_said_in_a_line(task, answers):
    with pytest.raises(UsageError, match="no column 'task'"):
        PassEnv().reset(prompt="x")
    with pytest.raises(UsageError, match="no such example"):
        PassEnv().reset(task="example:nope")
    with pytest.raises(UsageError, match="reset"):
        PassEnv().check()


def test_the_text_holds_rules_and_task(task, answers):
    whole = PassEnv(runs_dir=None).reset(task=task)
    short = PassEnv(runs_dir=None, rules=False).reset(task=task)
    assert whole.endswith(short) and "What a pass directory holds" in whole.removesuffix(short)
    assert short.startswith("# Task task") and "Hardware:" in short


@given(st.floats(0.01, 100), st.floats(0, 0.5))
def test_rounding_keeps_to_the_interval(score, half):
    one = evaluation(score, low=score * math.exp(-half), high=score * math.exp(half))
    step = step_of(one)
    assert max(2 * half, FLOOR) <= step * (1 + 1e-6) and step <= 2.5 * max(2 * half, FLOOR) * (1 + 1e-6)
    assert abs(math.log(reward_of(one) / score)) <= step / 2 + 1e-5


def test_rounding_of_what_has_no_interval():
    assert reward_of(evaluation(1.0, low=0.9, high=1.1)) == 1.0
    assert reward_of(evaluation(0.1, "mismatch")) == pytest.approx(0.1, rel=FLOOR)
    assert reward_of(evaluation(None, "infrastructure")) == 0.0
    assert reward_of(evaluation(None)) == 0.0
    assert reward_of(evaluation(0.1, "refused")) == 0.0


def passagent(*words, **more):
    command = [sys.executable, "-m", "passagent", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def root_of(exported, path):
    """A container's root as Harbor would make it of an exported task; the pass directory is empty."""
    app = path / "app"
    app.mkdir(parents=True)
    (exported / "environment/task").rename(app / "task")
    (app / "pass_dir").mkdir()
    return path


def run_test(exported, root):
    """What test.sh says outside a container, and the reward that it leaves."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PASSAGENT_ROOT": str(root), "PATH": path}
    command = ["bash", str(exported / "tests/test.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    reward = root / "logs/verifier/reward.txt"
    return done, float(reward.read_text()) if reward.exists() else None


@pytest.mark.long
@pytest.mark.slow
def test_the_exported_test_gives_evals_as_rounded(tmp_path, task):
    out = tmp_path / "out"
    settings = ("--set", "evaluator.budget_s=0.1")
    done = passagent("tasks", "export", "--harbor", out, task, *settings)
    assert done.returncode == 0 and done.stdout.split() == [str(out / "task")]
    root = root_of(out / "task", tmp_path / "root")

    done, reward = run_test(out / "task", root)
    assert done.returncode == 0 and reward == 0.0, done.stderr  # nothing was written

    tiny.candidate().write(root / "app/pass_dir")
    done, reward = run_test(out / "task", root)
    assert done.returncode == 0, done.stderr
    logs = root / "logs/verifier"
    judged = Evaluation.model_validate_json((logs / "evaluation.json").read_text())
    assert judged.status == "ok" and reward == reward_of(judged) > 0

    words = ("eval", task, "--pass-dir", root / "app/pass_dir", "--runs-dir", logs / "runs", *settings)
    found = json.loads(passagent(*words, "--json").stdout)
    assert found["candidate"] == judged.candidate
    if found["from_store"]:  # a measurement that was unstable is made again
        assert found["as_score"] == judged.as_score

    computing = tiny.candidate("    return a * b").files["Fused.py"]
    (root / "app/pass_dir/Fused.py").write_text(computing)
    done, reward = run_test(out / "task", root)
    assert done.returncode == 0 and reward == 0.0 and "refused" in done.stdout

    (root / "app/task/graph_list.txt").unlink()
    done, reward = run_test(out / "task", root)
    assert done.returncode != 0 and reward is None and done.stderr.startswith("passagent: error: ")


def test_what_is_exported_is_the_task_without_answers(tmp_path, task):
    tiny.candidate().write(Path(task) / "pass_dir")
    config = load_config(None, {"evaluator.device": "cuda"})
    wheel = tmp_path / "passagent-1-py3-none-any.whl"
    wheel.write_text("")
    (place,) = harbor.export([Path(task)], tmp_path / "out", config, ["agent.hints=1"], wheel)
    names = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert {"task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"} <= names
    assert not [name for name in names if "pass_dir" in name]
    assert load_task(place / "environment/task").key == load_task(task).key
    told = tomllib.loads((place / "task.toml").read_text())
    assert told["task"]["name"] == "passagent/task" and told["environment"]["gpus"] == 1
    assert told["metadata"]["task_key"] == load_task(task).key
    image = (place / "environment/Dockerfile").read_text()
    assert f'"/opt/{wheel.name}[cuda]"' in image and (place / "environment" / wheel.name).exists()
    assert "--device cuda --set agent.hints=1" in (place / "tests/test.sh").read_text()
    assert os.access(place / "tests/test.sh", os.X_OK)
    instruction = (place / "instruction.md").read_text()
    assert "Task directory: /app/task" in instruction and str(tmp_path) not in instruction
    assert "Hardware:" not in instruction  # this machine's are not the container's


def test_an_export_is_whole_or_not_there(call, tmp_path, task, monkeypatch):
    for place, word, said in (
        (tmp_path, task, "is there already"),
        ("out", "example:nope", "no such example"),
    ):
        code, _, err = call("tasks", "export", "--harbor", place, word)
        assert code == 2 and said in err and err.count("\n") == 1
    twin = tmp_path / "other/task"
    tiny.write_subgraph(twin, [2, 2])
    settings = load_config()
    with pytest.raises(UsageError, match="2 tasks have this name"):
        harbor.export([Path(task), twin], tmp_path / "out", settings)
    with pytest.raises(UsageError, match="no such wheel"):
        harbor.export([twin], tmp_path / "out", settings, (), tmp_path / "no.whl")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(harbor, "render", full)
    with pytest.raises(InfrastructureError, match="disk is full"):
        harbor.export([twin], tmp_path / "out", settings)
    assert {path.name for path in tmp_path.iterdir()} == {"task", "other"}
