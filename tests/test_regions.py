"""A model is cut into what Inductor fuses: each region once, with its count, as a task of its own."""

import json
from pathlib import Path

import models_to_extract as models
import pytest
import torch
from torch import fx, nn

import passagent as pa
from passagent.errors import PassagentError
from passagent.evaluator.matching.effects import is_pure
from passagent.expert.read.fusible_regions import attentions
from passagent.tasks import load_task
from passagent.tasks.constraints import check_task
from passagent.tasks.extract.extracting import extract_regions
from passagent.tasks.extract.model_capture import Model, capture_model
from passagent.tasks.extract.regions import Kernels, cut, scheduled_kernels


@pytest.fixture(scope="module")
def regions(tmp_path_factory):
    model, inputs = models.encoder()
    return pa.extract_regions(model, *inputs, name="encoder", out=tmp_path_factory.mktemp("all") / "out")


def test_a_repeated_region_is_one_task_with_its_count(regions):
    counts = {task.operators: task.count for task in regions.tasks}
    assert counts[("gelu",)] == 3
    assert counts[("add", "layer_norm")] == 3
    assert all(task.problems == () for task in regions.tasks) and regions.refused == []


def test_regions_are_tasks_in_order_that_come_by_their_share_of_the_time(regions):
    shares = [task.share for task in regions.tasks]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) < 1
    assert [task.name[:3] for task in regions.tasks] == [f"{n:02}_" for n in range(1, len(shares) + 1)]
    assert json.loads((regions.path / "regions.json").read_text())["tasks"][0]["share"] == shares[0]
    for task in regions.tasks:
        assert len(load_task(regions.path / task.name).subgraphs) == len(task.instances)
        assert all(result.ok for result in check_task(regions.path / task.name)), task.name


def test_sizes_of_one_region_are_subgraphs_of_one_task(tmp_path):
    first, second = models.Layer(32).eval(), models.Layer(48).eval()
    inputs = torch.randn(4, 32), torch.randn(4, 48)
    found = pa.extract_regions(lambda x, y: (first(x), second(y)), *inputs, name="m", out=tmp_path / "out")
    by_operators = {task.operators: task for task in found.tasks}
    assert list(by_operators[("add", "layer_norm")].instances.values()) == [1, 1]
    assert all(task.problems == () for task in found.tasks)


def test_scheduling_generates_and_runs_nothing(monkeypatch):
    from torch._inductor.scheduler import Scheduler

    def no_code(*_: object):
        raise AssertionError("code was generated")

    monkeypatch.setattr(Scheduler, "codegen", no_code)
    model, inputs = models.encoder()
    piece = capture_model(Model("m", model, inputs)).pieces[0]
    kernels = scheduled_kernels(piece.graph_module, piece.inputs)
    assert len(kernels.fused) == 7 and len(kernels.library) == 6


@pytest.mark.long
def test_an_attention_is_a_region_where_the_expert_writes_it(tmp_path):
    model, inputs = models.attending()
    found = extract_regions(Model("m", model, inputs), tmp_path / "out", whole=attentions)
    names = [task.operators for task in found.tasks]
    [(attention, count)] = [(t.operators, t.count) for t in found.tasks if "softmax" in t.operators]
    assert count == 2 and attention.count("matmul") == 2 and attention[-1] == "reshape", names
    assert sum("matmul" in one for one in names) == 1
    assert all(task.problems == () for task in found.tasks)


def graph_of(text: str) -> fx.Graph:
    """`name = function of names` a line; the last one is the output."""
    graph, values = fx.Graph(), {}
    for line in text.splitlines():
        name, _, function, *operands = line.split()
        args = tuple(values[operand] for operand in operands)
        is_input, target = function == "input", getattr(torch, function, None)
        values[name] = graph.placeholder(name) if is_input else graph.call_function(target, args, name=name)
        values[name].meta["example_value"] = torch.empty(4)
    graph.output((values[name],))
    return graph


CUTS = {
    "a region that comes back is split": (
        "x = input\na = relu x\nb = tanh a\nm = sin a\nc = add b m\nd = neg c", ["abcd"], "m", ["ab", "cd"],
    ),
    "kernels that share an operator are one": (
        "x = input\na = relu x\nb = tanh a\nc = neg b", ["ab", "bc"], "", ["abc"],
    ),
    "views that only the region uses belong to it": (
        "x = input\nt = t x\nu = t t\nv = t x\nm = mm v v\na = add u v\nz = add a m", ["a"], "mz", ["tua"],
    ),
    "what writes memory of the region alone belongs to it": (
        "x = input\na = tanh x\nb = relu_ a\nc = neg b", ["abc"], "", ["abc"],
    ),
    "what writes the memory of another is left out": (
        "x = input\na = tanh x\nb = relu_ a\nc = neg b", ["bc"], "a", ["c"],
    ),
    "what writes an input is left out": (
        "x = input\na = relu x\nb = relu_ x\nc = tanh b\nd = add a c", ["abcd"], "", ["acd"],
    ),
}  # fmt: skip


def names(regions) -> list[str]:
    return ["".join(node.name for node in region.nodes) for region in regions]


@pytest.mark.parametrize("name", CUTS)
def test_a_graph_is_cut_by_kernels(name):
    text, fused, library, expected = CUTS[name]
    regions, refused = cut(graph_of(text), Kernels([*map(frozenset, fused)], frozenset(library)))
    assert names(regions) == expected
    assert all(why.startswith("writes memory that it did not make") for _, why in refused)
    assert {name for name, _ in refused} == ({"b"} if "left out" in name else set())


def test_what_is_one_region_in_any_case_takes_its_operators_from_others():
    graph = graph_of("x = input\na = relu x\nm = mm a a\nb = tanh m\nn = mm b a\nc = neg n\nd = sin c")
    m, b, n, c = list(graph.nodes)[2:6]
    kernels = Kernels([frozenset("a"), frozenset("b"), frozenset("cd")], frozenset("mn"))
    assert names(cut(graph, kernels, whole=[[m, b, n, c]])[0]) == ["a", "mbnc", "d"]


def test_logical_operators_of_python_are_pure():
    graph = fx.symbolic_trace(lambda x, y: x & y | x).graph
    assert all(is_pure(node) for node in graph.nodes if node.op == "call_function")


@pytest.mark.long
def test_command_prints_the_regions_and_refuses_dynamic_sizes(call, tmp_path):
    words = ["extract", f"{Path(models.__file__)}:encoder", "--regions", "--out", tmp_path / "out"]
    code, out, err = call(*words)
    assert code == 0, err
    assert "gelu" in out and f"below {tmp_path / 'out'}" in out
    assert call(*words, "--dynamic")[0] == 2


def test_a_convolution_that_a_library_computes_is_no_region(tmp_path):
    model = nn.Sequential(nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)).eval()
    found = pa.extract_regions(model, torch.randn(2, 8, 16, 16), out=tmp_path / "out")
    assert [task.operators for task in found.tasks] == [("batch_norm", "relu")]
    assert found.tasks[0].problems == () and found.refused == []


def test_operators_under_vmap_are_no_region_and_those_around_it_are(tmp_path):
    linear = nn.Linear(8, 8).requires_grad_(False)

    def model(x):
        y = nn.functional.gelu(x * 2) + x
        rows = y[:, None, :] * y[:, :, None]
        mixed = torch.vmap(lambda row: torch.softmax(row @ row.t(), -1) * 2)(rows)
        return torch.vmap(linear)(mixed.sum(1)) + nn.functional.gelu(y)

    before = torch._C._functorch.get_dynamic_layer_stack_depth()
    regions = pa.extract_regions(model, torch.randn(4, 8), name="m", out=tmp_path / "regions")
    assert all(not task.problems for task in regions.tasks)
    assert {"softmax", "linear"}.isdisjoint({name for task in regions.tasks for name in task.operators})
    assert any("gelu" in task.operators for task in regions.tasks)
    assert any(line.startswith("softmax") and "vmap" in line for line in regions.refused)
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == before


def routed(x, w):
    """Fills an inverse permutation in place before the region that reads it."""
    order = w.argsort()
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel())
    return nn.functional.gelu(x @ x.t())[inverse] * w[:, None] + 1


def framed(x, w):
    """Fills zeros in place within a region, and again outside of it."""
    y = torch.nn.functional.pad(x * w[:, None], (0, 0, 0, 1))
    out = y.new_zeros(y.shape)
    out[1:] = y[:-1]
    out[0, 1:] = y[0, :-1] * 2
    z = (out @ out.t()).softmax(-1)
    out.copy_(z @ out)
    return out + z @ out


@pytest.mark.parametrize("model", [routed, framed])
def test_values_of_a_region_are_those_that_it_meets_though_others_write_in_place(tmp_path, model):
    found = pa.extract_regions(model, torch.randn(8, 8), torch.rand(8), name="m", out=tmp_path / "out")
    assert [problem for task in found.tasks for problem in task.problems] == []


def test_torch_is_as_before_where_a_model_fails_under_vmap(tmp_path):
    def lost(index):
        return torch.vmap(lambda i: torch.arange(4).index_select(0, i[None]))(index)

    with pytest.raises(PassagentError, match="lost: cannot be captured"):
        pa.extract_regions(lost, torch.tensor([1, 7]), name="lost", out=tmp_path / "regions")
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    torch.rand(2)  # would raise under vmap


@pytest.mark.parametrize("as_number", [False, True])
def test_a_size_that_depends_on_data_is_left_to_eager_and_what_is_before_it_is_a_region(tmp_path, as_number):
    def model(x):
        y = torch.nn.functional.gelu(x * 2).sigmoid()
        chosen = y[0, : int(y.argmax())] if as_number else y[y > 0.5]
        return torch.relu(chosen * 3)

    x = torch.linspace(-1, 1, 64).view(2, 32)
    found = pa.extract_regions(model, x, name="m", out=tmp_path / "out")
    assert any({"mul", "gelu", "sigmoid"} <= set(task.operators) for task in found.tasks)
    assert any(Path(__file__).name in place for place in found.graph_breaks)
