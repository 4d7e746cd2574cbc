"""What `best` writes for other suites' evaluators, read by their own classes, or run beside the problem.

flashinfer-bench is installed without what it requires (flashinfer itself); its data classes are imported
alone.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from environments import ROOT

PACKAGE = "flashinfer-bench==0.1.2"
DEFINITION = {
    "name": "rmsnorm_h128",
    "op_type": "rmsnorm",
    "axes": {"batch": {"type": "var"}, "hidden": {"type": "const", "value": 128}},
    "inputs": {
        "hidden_states": {"shape": ["batch", "hidden"], "dtype": "float32"},
        "weight": {"shape": ["hidden"], "dtype": "float32"},
    },
    "outputs": {"output": {"shape": ["batch", "hidden"], "dtype": "float32"}},
    "reference": (
        "import torch\n\n\ndef run(hidden_states, weight):\n"
        "    square = hidden_states.pow(2).mean(dim=-1, keepdim=True)\n"
        "    return hidden_states * torch.rsqrt(square + 1e-6) * weight\n"
    ),
}
PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.tanh(self.norm(x + self.shift)) * 2


def get_inputs():
    return [torch.rand(64, 256)]


def get_init_inputs():
    return [256]
"""
READ = """
import importlib, json, sys, types

import torch

for name in ("flashinfer_bench", "flashinfer_bench.data"):  # without their __init__, which imports flashinfer
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [f"{sys.argv[1]}/{name.replace('.', '/')}"]
data = json.load(open(sys.argv[2]))
found = importlib.import_module("flashinfer_bench.data.solution").Solution.model_validate(data)
ours, theirs = {}, {}
exec(found.get_entry_source().content, ours)
exec(json.load(open(sys.argv[3]))["reference"], theirs)
for batch in (1, 16, 128):
    given = torch.randn(batch, 128), torch.randn(128)
    torch.testing.assert_close(ours[found.get_entry_symbol()](*given), theirs["run"](*given))
print(found.definition, found.spec.language.value)
"""


@pytest.fixture(scope="module")
def package() -> Path:
    place = ROOT / ".envs" / "flashinfer"
    if not (place / "flashinfer_bench").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), PACKAGE]
        subprocess.run(command, check=True)
    return place


def passagent(place: Path, *words: str) -> str:
    """What a command says on stdout."""
    command = [sys.executable, "-m", "passagent", *words]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def best_of_search(place: Path, task: str, form: str) -> str:
    """The file that `best` writes after an episode of the expert on a task."""
    passagent(place, "run", f"tasks/{task}", "--iters", "1", "--islands", "1")
    words = ("--format", form, "--out", "out", "--json")
    return str(json.loads(passagent(place, "best", "last", *words))["path"])


def test_a_run_on_a_definition_becomes_a_solution_that_they_accept(package, tmp_path):
    definition = tmp_path / "norm.json"
    definition.write_text(json.dumps(DEFINITION))
    passagent(tmp_path, "tasks", "import", "flashinfer", str(definition), "--out", "tasks")
    path = best_of_search(tmp_path, "rmsnorm_h128", "flashinfer")
    command = [sys.executable, "-c", READ, str(package), path, str(definition)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["rmsnorm_h128", "python"]


def test_a_run_on_a_problem_becomes_a_module_and_its_levels_a_table(tmp_path):
    file = tmp_path / "kb" / "KernelBench" / "level2" / "7_Norm_Tanh.py"
    file.parent.mkdir(parents=True)
    file.write_text(PROBLEM)
    passagent(tmp_path, "tasks", "import", "kernelbench", "kb", "--level", "2", "--out", "tasks")
    path = best_of_search(tmp_path, "level2_7_Norm_Tanh", "kernelbench")
    assert Path(path).name == "level_2_problem_7_sample_0_kernel.py"
    theirs, ours = dict[str, Any](), dict[str, Any]()
    exec(PROBLEM, theirs)
    exec(Path(path).read_text(), ours)
    made = []
    for one in (theirs["Model"], ours["ModelNew"]):
        torch.manual_seed(42)
        made.append(one(*theirs["get_init_inputs"]()))
    given = theirs["get_inputs"]()
    torch.testing.assert_close(made[1](*given), made[0](*given))
    told = passagent(tmp_path, "bench", "tasks", "--suite", "kernelbench", "--compiler", "expert", "--json")
    [line] = json.loads(told)["suite"]
    assert (line["compiler"], line["base"], line["level"], line["problems"]) == (
        "expert",
        "eager",
        "level2",
        1,
    )
