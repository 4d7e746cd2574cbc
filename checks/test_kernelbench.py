"""A problem of KernelBench from its import to the file that `best` writes for KernelBench's own evaluator."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

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


QUICK = ("--set", "evaluator.budget_s=0.05")


def passagent(place: Path, *words: str) -> str:
    """What a command says on stdout."""
    command = [sys.executable, "-m", "passagent", *words]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def best_of_search(place: Path, task: str) -> str:
    """The file that `best` writes after an episode of the expert on a task."""
    passagent(place, "run", f"tasks/{task}", "--iters", "1", "--islands", "1", *QUICK)
    words = ("--format", "kernelbench", "--out", "out", "--json")
    return str(json.loads(passagent(place, "best", "last", *words))["path"])


def test_a_run_on_a_problem_becomes_a_module_and_its_levels_a_table(tmp_path):
    file = tmp_path / "kb" / "KernelBench" / "level2" / "7_Norm_Tanh.py"
    file.parent.mkdir(parents=True)
    file.write_text(PROBLEM)
    passagent(tmp_path, "tasks", "import", "kernelbench", "kb", "--level", "2", "--out", "tasks")
    path = best_of_search(tmp_path, "level2_7_Norm_Tanh")
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
    words = ("--suite", "kernelbench", "--compiler", "expert", "--json")
    told = passagent(tmp_path, "bench", "tasks", *words, *QUICK)
    [line] = json.loads(told)["suite"]
    assert (line["compiler"], line["base"], line["level"], line["problems"]) == (
        "expert",
        "eager",
        "level2",
        1,
    )
