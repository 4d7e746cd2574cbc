"""Inputs in another memory order are read where they lie; results lie as eager's do, where cheaper."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_as_exact_as_eager
from expert_cases import LAYOUTS, captured, check, held, held_in_each, r, rewritten, write
from interpreting import interpreted
from test_expert_cuda import source

from passagent.expert.schedule.layouts import memory_order
from passagent.kernels import plain


@pytest.fixture
def given(monkeypatch) -> list[tuple[torch.Tensor, ...]]:
    """What kernels are given, in each call."""
    seen: list[tuple[torch.Tensor, ...]] = []
    types = plain.argument_types

    def noted(name, args, *how):
        seen.append(args)
        return types(name, args, *how)

    monkeypatch.setattr(plain, "argument_types", noted)
    return seen


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_lies_in_another_order_is_read_where_it_lies(name, given):
    function, inputs = LAYOUTS[name]
    authored = held(function, inputs)
    assert "order={" in "".join(authored.files.values())
    assert len(given) == 1
    assert any(not t.is_contiguous() for t in given[0] if isinstance(t, torch.Tensor))


@pytest.mark.long
def test_kernels_equal_eager_in_the_interpreter():
    interpreted("""
        from expert_cases import LAYOUTS, captured, check, write
        for name, (function, inputs) in LAYOUTS.items():
            graph = captured(function, inputs)
            authored = write([graph], target="cuda")
            assert "order={" in "".join(authored.files.values()), name
            check(authored, graph, inputs)
            others = [x.contiguous() for x in inputs]
            check(authored, graph, others)
    """)


LIES_OTHERWISE = {
    "row-major": r(4, 5, 7),
    "another permutation": r(7, 5, 4).permute(2, 1, 0),
    "its inverse": r(5, 7, 4).permute(2, 0, 1),
    "gaps": r(7, 4, 10)[..., ::2].permute(1, 2, 0),
    "expanded": r(4, 5, 1).expand(4, 5, 7),
    "shifted": r(141)[1:].view(7, 4, 5).permute(1, 2, 0),
}


@pytest.mark.parametrize("name", LIES_OTHERWISE)
def test_what_lies_otherwise_at_run_time_gives_the_same(name, given):
    function, inputs = LAYOUTS["pointwise"]
    graph = captured(function, inputs)
    module = rewritten(write([graph]), graph).graph_module
    x, y = LIES_OTHERWISE[name], r(4, 5, 7, seed=1)
    assert_as_exact_as_eager(module(x, y)[0], function, [x, y])
    assert [args[0].data_ptr() == x.data_ptr() for args in given] == [name == "shifted"]


def test_other_sizes_in_the_same_order_are_taken(given):
    function, inputs = LAYOUTS["channels last"]
    graph = captured(function, inputs)
    module = rewritten(write([graph]), graph).graph_module
    x, w = r(3, 9, 4, 2).contiguous(memory_format=torch.channels_last), r(9, 1, 1)
    out = module(x, w)[0]
    assert_as_exact_as_eager(out, function, [x, w])
    assert [args[0].data_ptr() for args in given] == [x.data_ptr()]
    assert out.stride() == function(x, w).stride()


RESULTS = {
    "transposed": (lambda x: torch.tanh(x.transpose(1, 2)) * 2.0, [r(3, 40, 70)]),
    "bias": (lambda x, b: F.gelu(x.flatten(2).transpose(1, 2) + b), [r(2, 6, 5, 8), r(6)]),
    "after a norm": (
        lambda x, w: torch.tanh(F.layer_norm(x, (24,), w).transpose(1, 2)),
        [r(2, 9, 24), r(24)],
    ),
    "two": (lambda x: (x.t() * 2.0, x.t().sigmoid()), [r(30, 50)]),
}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", RESULTS)
def test_results_lie_as_eagers_do_where_that_crosses_nothing(name, target):
    function, inputs = RESULTS[name]
    graph = captured(function, inputs)
    authored = write([graph], target)
    assert ", (0, 2, 1))" in (text := "".join(authored.files.values())) or ", (1, 0))" in text
    if target == "cpu":
        result = check(authored, graph, inputs)
        strides = [[t.stride() for t in m(*inputs)] for m in (result.graph_module, graph.graph_module)]
        assert strides[0] == strides[1]
    else:
        assert "_square(" not in text  # no tiles that are turned


def test_results_are_row_major_where_an_input_lies_otherwise_than_it_did():
    """Eager's may be then: a result with other strides would be refused."""
    function, inputs = RESULTS["transposed"]
    graph = captured(function, inputs)
    module = rewritten(write([graph]), graph).graph_module
    x = r(3, 70, 40).transpose(1, 2)
    out = module(x)[0]
    assert out.is_contiguous() and function(x).is_contiguous()
    assert_as_exact_as_eager(out, function, [x])


def test_results_stay_row_major_where_eagers_order_would_cross_as_much():
    graph = captured(lambda x, y: torch.tanh(x.transpose(1, 2) + y), [r(3, 40, 70), r(3, 70, 40)])
    assert "(0, 2, 1)" not in "".join(write([graph]).files.values())


@pytest.mark.long
def test_results_lie_as_eagers_do_where_a_decomposition_lays_them_otherwise():
    """Dynamo's example of it is channels last; eager's result is row-major, and a refusal if ours is not."""
    interpreted("""
        import torch
        import torch.nn.functional as F
        from expert_cases import captured, check, r, write
        from passagent.expert.graph import example
        from passagent.expert.read import lay_as_eager

        def resize(x):
            return F.interpolate(x.permute(0, 2, 1).reshape(1, -1, 8, 8), size=(8, 8), mode="bilinear")

        inputs = [r(1, 64, 32)]
        graph = captured(resize, inputs)
        *_, resized, _ = graph.graph_module.graph.nodes
        assert not example(resized).is_contiguous()
        lay_as_eager(graph.graph_module)
        out = check(write([graph], "cuda"), graph, inputs).graph_module(*inputs)[0]
        assert out.is_contiguous() and resize(*inputs).is_contiguous()
    """)


def test_where_graphs_differ_in_layout_inputs_are_read_row_major():
    function = lambda x, y: torch.tanh(x + y) * 2.0  # noqa: E731
    sets = [[r(4, 5, 7), r(4, 5, 7)], [r(7, 4, 5).permute(1, 2, 0), r(4, 5, 7)]]
    authored = held_in_each([(function, inputs) for inputs in sets])
    assert "order={" not in "".join(authored.files.values())


def strided(shape: tuple[int, ...], *strides: int) -> torch.Tensor:
    return torch.empty_strided(shape, strides, device="meta")


@pytest.mark.parametrize(
    ("tensors", "order"),
    [
        ([strided((2, 3, 4), 12, 4, 1)], ()),
        ([strided((2, 3, 4), 3, 1, 6)], (2, 0, 1)),
        ([strided((1, 512, 64, 64), 64, 64, 32768, 1)], (0, 2, 1, 3)),
        ([strided((1, 8, 4, 4), 4, 4, 32, 1), strided((2, 8, 4, 4), 128, 4, 32, 1)], (0, 2, 1, 3)),
        ([strided((2, 3, 4), 3, 1, 6), strided((2, 3, 4), 1, 2, 6)], ()),
        ([strided((2, 3, 4), 3, 1, 6), strided((2, 3, 4), 12, 4, 1)], ()),
        ([strided((2, 3, 4), 6, 1, 12)], ()),
        ([strided((2, 3, 4), 4, 0, 1)], ()),
    ],
)
def test_the_order_of_dimensions_in_memory(tensors, order):
    assert memory_order(tensors) == order


@pytest.mark.long
def test_moves_after_a_library_are_left_to_views_where_it_already_lies_so():
    def attend(q):
        return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).contiguous().reshape(2, 200, 32)

    text = source(attend, [r(2, 4, 200, 8)])  # long ones without a mask are the library's
    assert "if not x.is_contiguous():" in text and "@triton_kernel" in text
    interpreted("""
        import torch
        from closeness import assert_as_exact_as_eager
        from expert_cases import captured, r, rewritten, write
        from passagent.expert.schedule import layouts
        layouts.DEVICE_DECIDES |= {"exp"}  # a library's operator whose result lies as its input does

        def function(x):
            return torch.exp(x).transpose(1, 2).contiguous().reshape(2, 7, 32)

        graph = captured(function, [r(2, 4, 7, 8)])
        authored = write([graph], target="cuda")
        module = rewritten(authored, graph).graph_module
        for x in (r(2, 4, 7, 8), r(2, 7, 4, 8).transpose(1, 2), r(8, 2, 4, 7).permute(1, 2, 3, 0)):
            assert_as_exact_as_eager(module(x)[0], function, [x])
    """)
