"""Modules and the graphs that Dynamo captures of them; `tasks check`."""

import re
from pathlib import Path

import pytest
import torch
import torch.utils._pytree as pytree

from passagent.errors import TaskError
from passagent.tasks import load_task
from passagent.tasks.capture import capture
from passagent.tasks.constraints import check_task
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module

EXAMPLES = Path(__file__).parent.parent / "examples" / "tasks"
HEADER = "import torch\nfrom torch import device\n\nclass GraphModule(torch.nn.Module):\n    def forward(self"


def write(path: Path, body: str, inputs: str) -> Path:
    """A subgraph directory: `inputs` is `name: dtype shape` entries separated by `;`."""
    path.mkdir(exist_ok=True)
    entries = [entry.split() for entry in inputs.split(";") if entry.strip()]
    arguments = "".join(f", {name}" for name, *_ in entries)
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    (path / "model.py").write_text(f"{HEADER}{arguments}):\n{lines}")
    metas = [
        f'class M_{name}:\n\tname = "{name}"\n\tshape = {shape}\n\tdtype = "torch.{dtype}"\n'
        + ("\tmean = 0.0\n\tstd = 1.0\n" if "float" in dtype else "\tmin_val = 0\n\tmax_val = 3\n")
        for name, dtype, shape in entries
    ]
    (path / "weight_meta.py").write_text("\n".join(metas))
    return path


def both(path: Path, variant: int = 0):
    """The outputs of the module and of the captured graph, and the graph."""
    (subgraph, *_) = load_task(path).subgraphs
    module = load_module(subgraph, "cpu")
    inputs = make_inputs(subgraph, "cpu", 1, variant)
    copy = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    captured = capture(module, inputs)
    assert all(a.equal(b) for a, b in zip(inputs, copy, strict=True) if isinstance(a, torch.Tensor))
    with torch.no_grad():
        got = captured.graph_module(*[inputs[i] for i in captured.order])
        expected = pytree.tree_leaves(module(*copy))
    return expected, list(got), captured


@pytest.mark.parametrize("name", ["masked_mean_pool", "add_rms_norm", "window_roll_layer_norm"])
@pytest.mark.parametrize("variant", [0, 1])
def test_the_captured_graph_computes_what_the_module_does(name, variant):
    expected, got, _ = both(EXAMPLES / name, variant)
    assert len(expected) == len(got)
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "body",
    [
        "return (b - a, )",
        "return (a, b)",  # no operator at all
        "return (a + 1, b, 3, a)",  # an input and a number among the outputs
        "c = a * b\nreturn (c, c, a)",  # one output twice
        "a += b\nreturn (a, b)",  # in place on an input
        "a[0] = 1.0\nreturn (a.view(-1), a)",
        "c = (a, (b * 2, a - b))\nreturn c",  # nested
    ],
)
def test_inputs_come_in_the_order_of_use_and_outputs_that_dynamo_leaves_out_are_restored(tmp_path, body):
    path = write(tmp_path, body, "a float32 [3,2]; unused float32 [2]; b float32 [3,2]")
    expected, got, captured = both(path)
    assert set(captured.order) <= {0, 2} and len(expected) == len(got)
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_operators_that_give_the_same_tensor_are_outputs_each(tmp_path):
    body = (
        "b = torch.nn.functional.relu(a, inplace=True)\n"
        "c = torch.nn.functional.dropout2d(b, 0.1, False, False)\nreturn (c, b, c)"
    )
    expected, got, captured = both(write(tmp_path, body, "a float32 [1,2,2,2]"))
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    (outputs,) = captured.graph_module.graph.output_node().args
    assert [str(node.target.__name__) for node in outputs] == ["dropout2d", "relu", "dropout2d"]


def test_data_dependent_sizes_are_captured(tmp_path):
    body = "n = int(a[0]) + 1\ntorch._check_is_size(n)\nreturn (torch.ones(n), a + 1)"
    expected, got, _ = both(write(tmp_path, body, "a int64 [3]"))
    assert torch.equal(expected[0], got[0])
    assert not torch._dynamo.config.capture_scalar_outputs


def test_a_graph_without_inputs_and_device_literals(tmp_path):
    body = (
        "a = torch.arange(4, device=device(type='cuda', index=0))\n"
        "b = a.to('cuda:0') + torch.ones(4, device=torch.device('cuda'))\nreturn (b,)"
    )
    expected, got, captured = both(write(tmp_path, body, ""))
    assert captured.order == []
    assert torch.equal(expected[0], got[0])


def test_two_graphs_are_refused_with_the_reason(tmp_path):
    path = write(tmp_path, "torch._dynamo.graph_break()\nreturn (a + 1,)", "a float32 [2]")
    (subgraph,) = load_task(path).subgraphs
    with pytest.raises(TaskError, match="not one graph") as caught:
        capture(load_module(subgraph, "cpu"), make_inputs(subgraph, "cpu", 0))
    assert "\n" not in str(caught.value)


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("quick_gelu", "add_rms_norm")]


@pytest.mark.parametrize("name", ["masked_mean_pool", *LONG])
def test_check_finds_nothing_wrong_with_the_examples(name):
    for result in check_task(EXAMPLES / name):
        assert result.ok, result.problems


@pytest.mark.parametrize(
    ("body", "wrong", "message"),
    [
        ("b = a.reshape(7)\nreturn (b,)", "runnable", r"model\.py:6: does not run: RuntimeError"),
        ("return (a.nosuch(),)", "runnable", "nosuch"),
        ("return (torch.rand(3) + 0 * a[:1],)", "runnable", "output 0 differs from that of a second run"),
        ("return (a.log() - a.log() + (a - a) / (a - a),)", "runnable", "output 0 has NaN"),
        ("torch._dynamo.graph_break()\nreturn (a + 1,)", "analysable", "not one graph"),
    ],
)
def test_check_names_what_is_wrong(tmp_path, body, wrong, message):
    (result,) = check_task(write(tmp_path, body, "a float32 [4]"))
    assert not getattr(result, wrong)
    assert any(re.search(message, problem) for problem in result.problems), result.problems


def test_a_module_that_does_not_load(tmp_path):
    file = write(tmp_path, "return (a,)", "a float32 [4]") / "model.py"
    file.write_text("import torch_nowhere\n" + file.read_text())
    (result,) = check_task(tmp_path)
    assert not result.runnable
    assert "model.py: does not load: ModuleNotFoundError" in result.problems[0]
