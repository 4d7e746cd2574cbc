"""The wheel as a new user gets it: built, installed into an empty environment, used in an empty directory.

`make check-wheel` runs this. It takes minutes: pip installs torch and everything else anew.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TASK = "example:add_layer_norm"
QUICK = ("--set", "evaluator.budget_s=0.1")


def done(*command, cwd, **more):
    """What a command printed. It must end with exit code 0, and without a traceback."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    ended = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False, **more
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stdout


@pytest.fixture
def programs(once):
    """The directory of the programs of an environment that the wheel was installed into."""

    def make(top):
        done(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", top, ROOT, cwd=top)
        (wheel,) = top.glob("*.whl")
        venv.create(top / "venv")
        python = top / "venv/bin/python"
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
        done(*pip, "-c", ROOT / "constraints.txt", wheel, cwd=top)
        done(python, "-c", "import torch._dynamo", cwd=top)  # compiled once, not by five processes at a time

    return once("wheel", make) / "venv/bin"


SNIPPET = """
import passagent as pa

quick = {"evaluator.budget_s": 0.1, "search.finalists": 0}
task = pa.load_task("example:add_layer_norm")
events = []
run = pa.run(task, model="expert", iters=2, runs_dir="runs", on_event=events.append, settings=quick)
with pa.Evaluator(device="cpu", settings=quick) as evaluator:
    result = evaluator.evaluate(task, run.best.files)
    assert result.status == "ok" and result.as_score > 0 and result.speedup > 0, result
    assert evaluator.evaluate(task, run.best.plan).status == "ok"
    table = result.table()
assert events and "<pre" in run.tree()._repr_html_() and "<pre" in run._repr_html_()
assert pa.open_run("last") == run and len(run.nodes()) >= 2
assert pa.resume(run, iters=3).data["episodes"] == 3
assert pa.bench([str(task.path)], compiler=["expert"], settings=quick).failed == []
assert pa.export(run, format="trl", out="data").examples
print(table)
"""


def test_python_from_the_wheel(programs, tmp_path):
    (tmp_path / "snippet.py").write_text(SNIPPET)
    said = done(programs / "python", "snippet.py", cwd=tmp_path)
    assert "bfloat16" in said and "run " not in said  # nothing but what the snippet prints
    assert {path.name for path in tmp_path.iterdir()} == {"snippet.py", "runs", "data"}


def test_a_first_look_from_the_wheel(programs, tmp_path):
    def passagent(*words):
        return done(programs / "passagent", *words, cwd=tmp_path)

    assert passagent("--version").startswith("passagent ")
    assert TASK.removeprefix("example:") in passagent("tasks", "list")
    passagent("run", TASK, "--iters", "2", "--islands", "1", *QUICK)
    assert "best" in passagent("show", "last")
    passagent("best", "last", "--out", "x")
    found = json.loads(passagent("eval", TASK, "--pass-dir", "x", "--json", *QUICK))
    plans = json.loads(passagent("eval", TASK, "--pass-dir", "x/plans.pass", "--json", *QUICK))
    assert (plans["status"], plans["plans"], plans["edited"]) == ("ok", found["plans"], [])
    assert found["status"] == "ok" and found["as_score"] > 0
    (tmp_path / "found").mkdir()
    (tmp_path / "x").rename(tmp_path / "found/add_layer_norm")
    table = passagent("bench", TASK, "--compiler", "pass_dir", "--pass-dir", "found", "--json", *QUICK)
    assert json.loads(table)
    passagent("resume", "last", "--iters", "3")
    assert json.loads(passagent("show", "last", "--json"))
    assert {path.name for path in tmp_path.iterdir()} == {"found", "runs"}
