"""`best --format kernelbench`: one file with a `ModelNew` that computes what the problem's `Model` does."""

import json
import re

import pytest
import torch
from closeness import assert_as_exact_as_eager
from exported import by_the_expert

from passagent.errors import UsageError
from passagent.evaluator.candidate import Candidate
from passagent.packages.delivery.kernelbench_module import file_name, kernelbench_module
from passagent.packages.delivery.linker import link
from passagent.packages.delivery.standalone import standalone
from passagent.plan.facts import device_facts
from passagent.plan.record import record, subgraphs_of
from passagent.tasks import load_task

PROBLEM = '''
import torch
import torch.nn as nn

class Model(nn.Module):
    """Docstring of the problem."""
    def __init__(self, width):
        super(Model, self).__init__()
        self.net = nn.Sequential(nn.Linear(width, width))
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.tanh(self.net(x) + self.shift) * 2

def get_inputs():
    return [torch.rand(8, 32)]

def get_init_inputs():
    return [32]
'''
GRAPH = """
import torch

class GraphModule(torch.nn.Module):
    def forward(self, in_0, in_1, in_2, in_3):
        tmp_0 = torch._C._nn.linear(in_0, in_1, in_2)
        tmp_1 = tmp_0 + in_3
        tmp_2 = torch.tanh(tmp_1)
        tmp_3 = tmp_2 * 2
        return (tmp_3,)
"""
INPUTS = {
    "L_x_": [8, 32],
    "L_self_modules_net_modules_0_parameters_weight_": [32, 32],
    "L_self_modules_net_modules_0_parameters_bias_": [32],
    "L_self_parameters_shift_": [32],
}
FACTS = {"origin": {"suite": "kernelbench", "file": "KernelBench/level2/7_Seven.py"}, "returns": "Tensor"}


@pytest.fixture
def task(tmp_path):
    place = tmp_path / "level2_7_Seven"
    (place / "graph").mkdir(parents=True)
    metas = [
        f'class {name}:\n\tname = "in_{number}"\n\toriginal_name = "{name}"\n\tshape = {shape}\n'
        '\tdtype = "torch.float32"\n\tdevice = "cpu"\n\tmean = 0.1\n\tstd = 0.5\n'
        for number, (name, shape) in enumerate(INPUTS.items())
    ]
    (place / "graph" / "weight_meta.py").write_text("\n".join(metas))
    (place / "graph" / "model.py").write_text(GRAPH)
    (place / "graph" / "graph_net.json").write_text(json.dumps(FACTS))
    (place / "graph_list.txt").write_text("graph\n")
    (place / "problem.py").write_text(PROBLEM)
    return load_task(place)


def written(task, recorder):
    files = standalone(by_the_expert(task, "cpu"))
    answer = record(recorder, Candidate(files), subgraphs_of(task, "cpu"), "cpu", device_facts("cpu"))
    return kernelbench_module(task, answer.recording, files)


@pytest.mark.long
def test_it_computes_what_the_problem_does_and_says_where_it_does_not(task, recorder, tmp_path):
    text = written(task, recorder)
    assert file_name(task) == "level_2_problem_7_sample_0_kernel.py"
    for part in ("class ModelNew(nn.Module)", "super(ModelNew, self)", "self.net[0].weight", "self.shift"):
        assert part in text
    assert "passagent.kernels" not in text and "def get_inputs" not in text and "class Model(" not in text
    assert "torch.tanh(" not in text[text.index("class ModelNew") :]
    theirs, ours = {}, {}
    exec(PROBLEM, theirs)
    exec(text, ours)
    models = []
    for one in (theirs["Model"], ours["ModelNew"]):
        torch.manual_seed(42)
        models.append(one(*theirs["get_init_inputs"]()))
    [given] = theirs["get_inputs"]()
    with torch.no_grad():
        assert_as_exact_as_eager(models[1](given), models[0], [given])
        with pytest.raises(ValueError, match="for the shapes"):
            models[1](given[:4])
    exec(re.sub(r"(_values\[j\] = )([^;]+);", r"\1(\2) + 0.25f;", text), ours)
    torch.manual_seed(42)
    assert not torch.allclose(ours["ModelNew"](32)(given), models[0](given))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"origin": {"suite": "other"}}, "was not imported from KernelBench"),
        ({"returns": None}, "import it again"),
        ({"graph_breaks": ["here"]}, "graph breaks"),
    ],
)
def test_what_is_no_whole_problem_is_said(task, facts, told):
    known = {name: value for name, value in (FACTS | facts).items() if value is not None}
    (task.path / "graph" / "graph_net.json").write_text(json.dumps(known))
    with pytest.raises(UsageError, match=told):
        file_name(task)


HIGH = "from b import low\n\n\n# why\ndef high():\n    return low() * math.pi\n"


def test_linked_module_holds_what_is_needed_behind_what_it_needs():
    files = {
        "a": f"import math\n{HIGH}\n\ndef pattern(x):\n    return x\n",
        "b": "from __future__ import annotations\n\nONE = 1\n\n\ndef low():\n    return ONE\n",
        "other": "UNUSED = 1\n",
        "main": "import math\nfrom a import high\n\n\ndef run():\n    return high() + math.e\n",
    }
    text = link('"""About."""', files, "main", ["run"])
    assert text.startswith('"""About."""\n\nfrom __future__ import annotations\nimport math\n\n')
    assert (
        text.index("ONE = 1") < text.index("def low") < text.index("# why\ndef high") < text.index("def run")
    )
    assert text.count("import math") == 1
    assert all(word not in text for word in ("UNUSED", "from b", "pattern"))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (f"math = 1\n{HIGH}", "import math\n\n\ndef low():\n    return math.e\n", "math is defined in"),
        (f"ONE = 1\n{HIGH}ONE += high()\n", "ONE = 2\n\n\ndef low():\n    return ONE\n", "ONE is defined"),
        ("import b\n\n\ndef high():\n    return b.low()\n", "low = 1\n", "a.py: `import b`: in one file"),
        ("from b import low; N = 3\n", "low = 1\n", "a.py: two statements on one line"),
    ],
)
def test_modules_that_cannot_be_linked_are_an_error(a, b, message):
    with pytest.raises(UsageError, match=message):
        link("", {"a": a, "b": b}, "a", ["high", "ONE"])
