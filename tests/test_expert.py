"""The expert's passes: matched, and equal to eager at strict tolerances, in several shapes and dtypes."""

from __future__ import annotations

import ast
import json

import pytest
import torch
import torch.nn.functional as F
from expert_cases import CASES, captured, check, check_empty, held, held_in_each, r, rewritten, write

from passagent.evaluator.result import MANIFEST
from passagent.expert.choices import Plan

HALVES = {
    "broadcast": torch.float16,
    "masked_softmax": torch.bfloat16,
    "rms_norm": torch.float16,
    "norm_pool": torch.bfloat16,
    "rotate": torch.bfloat16,
}
"""Cases whose kernels are compared in a type of 16 bits, in which each step rounds."""


@pytest.mark.parametrize("name", sorted(CASES.keys() - HALVES))
def test_equals_eager(name):
    function, inputs = CASES[name]
    graph = captured(function, inputs)
    authored = write([graph])
    result = check(authored, graph, inputs)
    operators = [n for n in result.graph_module.graph.nodes if n.op not in {"placeholder", "output"}]
    kernels = [n for n in operators if n.name.startswith("call")]
    assert kernels


@pytest.mark.parametrize(("name", "dtype"), HALVES.items())
def test_half_types_round_where_eager_does(name, dtype):
    function, inputs = CASES[name]
    halves = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    held(function, halves)


def test_one_pass_serves_all_shapes_and_dtypes():
    def function(x, y, w, b):
        return F.layer_norm(x + y, (x.shape[-1],), w, b, 1e-6).view(x.shape[0], -1)

    def inputs(batch, length, width, dtype):
        return [r(batch, length, width, dtype=dtype, seed=k) for k in (0, 1)] + [r(width, dtype=dtype)] * 2

    tried = [(1, 4, 32, torch.float32), (3, 5, 48, torch.float32), (2, 3, 64, torch.bfloat16)]
    sets = [inputs(*t) for t in tried]
    authored = held_in_each([(function, s) for s in sets])
    assert sum(name.startswith("Fuse") for name in authored.files) == 1
    unseen = inputs(4, 7, 1000, torch.float32)  # longer than a block, and no shape of the task
    check(authored, captured(function, unseen), unseen)


def test_shapes_that_do_not_fit_are_an_error_and_not_a_wrong_result():
    function, inputs = CASES["rotate"]
    authored = write([captured(function, inputs)])
    other = [r(2, 3, 5, 16), r(1, 16), r(5, 16, seed=1)]  # broadcast where the lowering relied on equal sizes
    graph = captured(function, other)
    with pytest.raises(RuntimeError, match="does not take tensors of shapes"):
        rewritten(authored, graph).graph_module(*[other[i] for i in graph.order])


@pytest.mark.parametrize("dtypes", [("int64", "int64"), ("float32", "float16")])
def test_dtypes_that_the_task_does_not_have_are_an_error(dtypes):
    def function(x, y):
        return torch.relu(x + y) * 2

    authored = write([captured(function, [r(2, 3, 8), r(2, 3, 8)])])
    x, y = (r(2, 3, 8).mul(10).to(getattr(torch, dtype)) for dtype in dtypes)
    graph = captured(function, [x, y])
    with pytest.raises(RuntimeError, match=f"and dtypes torch.{dtypes[0]}, torch.{dtypes[1]}"):
        rewritten(authored, graph).graph_module(*[(x, y)[i] for i in graph.order])
    half = [r(2, 3, 8, dtype=torch.bfloat16), r(2, 3, 8, dtype=torch.bfloat16)]
    check(authored, captured(function, half), half)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_pass_that_matches_nothing_is_not_written(target):
    """The first graph's pattern matches the second one, too, which only writes an argument otherwise."""
    inputs = [r(2, 3, 8), r(2, 5, 8)]
    functions = [lambda x, y: torch.cat([x, y], 1) * 2, lambda x, y: torch.cat([x, y], dim=1) * 2]
    graphs = [captured(function, inputs) for function in functions]
    authored = write(graphs, target)
    assert json.loads(authored.files[MANIFEST]) == ["FuseCatMul"]
    assert authored.fused == ["cat + mul"]
    for graph in graphs:
        assert rewritten(authored, graph).applied == ["FuseCatMul"]


def test_passes_of_one_operator_stay_where_each_matches():
    functions = [lambda x: torch.relu(x) * 2, lambda x: torch.relu(x) * 3 + x]
    graphs = [captured(function, [r(2, 3)]) for function in functions]
    assert len(json.loads(write(graphs).files[MANIFEST])) == 2


@pytest.mark.parametrize(
    "name", ["broadcast", "masked_softmax", "rms_norm", "group_norm", "cat_norm", "chunk"]
)
def test_empty_tensors_give_eagers_result_or_an_error_that_names_shapes(name):
    check_empty(*CASES[name])


def test_a_guard_divides_by_no_size_that_is_zero():
    def function(x, y):
        return x.flatten(2).transpose(1, 2) + y

    inputs = [r(2, 8, 3, 4), r(1, 12, 8)]
    authored = write([captured(function, inputs)])
    assert " // s0[2]" in "".join(authored.files.values())
    empty = [r(2, 8, 0, 4), r(1, 0, 8)]
    graph = captured(function, empty)
    with pytest.raises(RuntimeError, match="does not take tensors of shapes"):
        rewritten(authored, graph).graph_module(*[empty[i] for i in graph.order])


def test_library_operators_stay_outside():
    def function(x, w, y):
        return torch.sigmoid(F.linear(x, w)) * y + 1.0

    inputs = [r(4, 8), r(16, 8), r(4, 16)]
    graph = captured(function, inputs)
    authored = write([graph])
    result = check(authored, graph, inputs)
    assert any("linear" in n.name for n in result.graph_module.graph.nodes)
    assert authored.refused["linear"] == "is left to the vendor library"


def test_a_write_that_others_see_is_refused():
    def function(x, y):
        seen = x.view(-1)
        x += y
        return torch.sigmoid(x * y), seen * 2.0

    inputs = [r(4, 8), r(4, 8, seed=1)]
    authored = held(function, inputs)
    assert "iadd" in authored.refused


def test_an_update_of_an_input_that_nobody_uses_is_left_to_eager():
    def function(cache, x):
        y = torch.tanh(x) * 2.0
        cache.add_(y)
        return y

    inputs = [r(4, 8), r(4, 8, seed=1)]
    authored = held(function, inputs)
    assert authored.refused["add_"] == "is there for what it leaves in an input"


def test_a_later_reader_sees_the_value_written_in_place():
    def function(x, y):
        z = x * 2.0
        z += y
        return F.relu(z, inplace=True) + z

    inputs = [r(4, 8), r(4, 8, seed=1)]
    held(function, inputs)


def test_views_are_taken_on_the_host_where_no_kernel_pays():
    def function(x, w):
        y = F.linear(x, w)
        return F.dropout(y, 0.1, False, False).view(2, 3, 4, 5).transpose(1, 2)

    inputs = [r(2, 3, 8), r(20, 8)]
    graph = captured(function, inputs)
    authored = write([graph])
    assert "cpp_kernel" not in "".join(authored.files.values())
    result = check(authored, graph, inputs)
    assert not any(n.target is F.dropout for n in result.graph_module.graph.nodes)


def test_every_plan_gives_the_same_result():
    function, inputs = CASES["layer_norm"]
    graph = captured(function, inputs)
    for plan in (Plan(block=16, keep=0), Plan(keep=1, grain=1), Plan(without=("layer_norm",))):
        check(write([graph], plan=plan), graph, inputs)


def test_sums_that_cancel_are_more_exact_than_eager():
    x = r(40, 5000)
    x[:, -1] -= x.sum(-1)

    def function(x):
        return x.sum(-1) * 2.0

    graph = captured(function, [x])
    ours = rewritten(write([graph]), graph).graph_module(x)[0]
    want = x.double().sum(-1) * 2.0
    eager = (function(x) - want).abs().max()
    assert (ours - want).abs().max() < eager / 4


def test_an_outside_write_divides_regions():
    def function(x, y):
        z = torch.zeros(6, 8)
        a = z[:3] + x
        z[1:5].fill_(2.0)
        z[2:, 3:] = y
        return a * 2.0 + 1.0, z.reshape(3, 16) * 2.0 - 1.0

    inputs = [r(3, 8), r(4, 5)]
    held(function, inputs)


def test_an_empty_tensor_stays_with_eager():
    def function(x, y):
        return torch.cat([x * 2.0 + 1.0, torch.as_tensor((), dtype=torch.float32)]), x * y + y

    inputs = [r(5), r(5, seed=1)]
    authored = held(function, inputs)
    assert authored.refused["cat"] == "reads an empty tensor"


def test_nothing_to_fuse_says_why():
    graph = captured(torch.matmul, [r(4, 8), r(8, 16)])
    authored = write([graph])
    assert authored.files == {}
    assert authored.refused == {"matmul": "is left to the vendor library"}


def test_a_check_of_shapes_covers_all_inputs():
    graph = captured(*CASES["silu_mul"])
    [text] = [text for name, text in write([graph]).files.items() if name.endswith(".py")]
    checks = [
        node.test
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)
    ]
    assert checks
    assert all(isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) for test in checks)


def test_an_operator_that_returns_a_tensor_and_none_stays_with_eager():
    weights = r(96, 32), r(96), r(32, 32), r(32)

    def block(x, first, bias, second, last):
        heads = F.multi_head_attention_forward(
            x, x, x, 32, 4, first, bias, None, None, False, 0.0, second, last, need_weights=False
        )
        return F.gelu(x + heads[0]) * 2.0

    authored = held(block, [r(5, 2, 32), *weights])
    assert "multi_head_attention_forward" in authored.refused


def test_operators_under_vmap_stay_with_eager():
    def block(x):
        return torch.vmap(lambda row: F.gelu(row * 2) + row)(x) * torch.sigmoid(x) + 1

    authored = held(block, [r(4, 60)])
    assert "vmap" in authored.refused["gelu"]


@pytest.mark.parametrize("operator", [torch.nan_to_num, lambda x: x.cumsum(1)])
def test_an_operator_without_a_lowering_stays_with_eager(operator):
    authored = held(lambda x: F.gelu(operator(x * 2.0)) + 1.0, [r(4, 60)])
    assert list(authored.refused.values()) == ["has no lowering"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_numbers_between_two_ends_are_eagers(dtype):
    held(lambda x: x * torch.linspace(-1.5, 2.0, 60, dtype=dtype) + 1.0, [r(4, 60).to(dtype)])
