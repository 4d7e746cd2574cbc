"""What the expert writes for CUDA: eager's formulas, forms of blocks, regions, launches. No GPU is needed."""

from __future__ import annotations

import ast

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from expert_cases import BLOCKS, CASES, captured, r, write
from interpreting import interpreted

from passagent.expert.choices import default
from passagent.expert.write import Part
from passagent.expert.write.cuda_grid import MOST_LOADS, Launch, launches
from passagent.expert.write.routes import MOST_NAMED


def source(function, *sets) -> str:
    authored = write([captured(function, inputs) for inputs in sets], target="cuda")
    return "".join(authored.files.values())


@pytest.mark.long
def test_kernels_equal_eager_in_the_interpreter():
    names = ["broadcast", "masked_softmax", "layer_norm", "rms_norm", "norm_pool", "masked_mean", "window"]
    interpreted(f"""
        from expert_cases import BLOCKS, CASES, held
        for name in {[*names, "cat_norm", "max_along", *BLOCKS]!r}:
            function, inputs = (CASES | BLOCKS)[name]
            authored = held(function, inputs, target="cuda")
            assert "@triton.jit" in "".join(authored.files.values()), name
    """)


@pytest.mark.long
def test_normalised_rows_of_one_large_value_are_zero():
    interpreted("""
        import torch, torch.nn.functional as F
        from expert_cases import captured, rewritten, write
        norms = [
            lambda x: F.layer_norm(x * 1.0, (83,)),
            lambda x: F.group_norm(x * 1.0, 3),
            lambda x: F.instance_norm(x * 1.0),
            lambda x: F.batch_norm(x * 1.0, None, None, training=True),
            lambda x: torch.var(x * 1.0, -1),
        ]
        for rows in (torch.full((2, 3, 83), 123456789.0), torch.full((2, 3, 83), -987654.3)):
            for norm in norms:
                graph = captured(norm, [rows])
                (ours,) = rewritten(write([graph], "cuda"), graph).graph_module(rows)
                assert ours.eq(0).all(), norm.__code__.co_firstlineno
    """)


@pytest.mark.long
def test_empty_tensors_give_eagers_result_or_an_error_that_names_shapes():
    interpreted("""
        from expert_cases import CASES, check_empty
        names = ["broadcast", "masked_softmax", "rms_norm", "group_norm", "norm_pool", "permute_out"]
        for name in [*names, "cat_norm", "chunk", "outer"]:
            check_empty(*CASES[name], target="cuda")
    """)


@pytest.mark.long
def test_a_plan_chooses_among_the_variants_of_a_kernel():
    interpreted("""
        import torch.nn.functional as F
        from expert_cases import captured, check, held_in_each, r

        def function(x):
            return F.softmax(x * 2.0, -1).mean(1)

        sets = [[r(3, 4, 50)], [r(2, 1, 50)], [r(65, 1, 33000)], [r(3, 4, 50).bfloat16()]]
        authored = held_in_each([(function, inputs) for inputs in sets], "cuda")
        text = "".join(authored.files.values())
        assert text.count("@triton_kernel") == 1 and "VARIANT" in text and "lru_cache" not in text
        unseen = [r(5, 33, 99)]
        check(authored, captured(function, unseen), unseen)
    """)


def planned(files, kernel, *shapes):
    """What a pass's plan function gives its kernel for tensors of these shapes, sizes only."""
    text = next(text for text in files.values() if f"_plan{kernel}" in text)
    space: dict = {"__name__": "pass_under_test"}
    head = text.partition("@triton_kernel")[0].replace("from passagent.kernels import triton_kernel", "")
    exec(head, space)
    return space[f"_plan{kernel}"](*[torch.empty(shape, device="meta") for shape in shapes])[2]


def test_sizes_are_constants_for_the_shapes_that_a_task_names_and_arguments_for_others():
    sets = [[r(rows, 768), r(768)] for rows in range(2, 40)]
    graphs = [captured(lambda x, w: F.rms_norm(x, (768,), w, 1e-6), inputs) for inputs in sets]
    authored = write(graphs, "cuda")
    seen = [planned(authored.files, "_fused_rms_norm_kernel", (rows, 768), (768,)) for rows in range(2, 50)]
    constant = [isinstance(sizes["n0"], tl.constexpr) for sizes in seen]
    assert constant == [True] * MOST_NAMED + [False] * (len(seen) - MOST_NAMED)
    assert [getattr(sizes["rows"], "value", sizes["rows"]) for sizes in seen] == list(range(2, 50))
    assert type(seen[0]["BLOCK"]) is int  # those are constants in any case


def test_rows_without_elements_are_refused_and_no_rows_are_no_programs():
    files = write([captured(lambda x: F.softmax(x * 2, -1), [r(4, 50)])], "cuda").files
    assert planned(files, "_fused_mul_softmax_kernel", (0, 50))["rows"] == 0
    with pytest.raises(RuntimeError, match=r"does not take tensors of shapes torch.Size\(\[4, 0\]\)"):
        planned(files, "_fused_mul_softmax_kernel", (4, 0))


def softmax_of(*sizes):
    return lambda x: F.softmax(x.view(sizes) * 2.0, -1).mean(1)


@pytest.mark.parametrize(
    ("functions", "sets"),
    [
        ([lambda x, y: F.relu(torch.cat([x, y], 1))], [[r(2, 3, 8), r(2, 5, 8)]]),  # a part copies one input
        ([softmax_of(3, 4, 50), softmax_of(2, 1, 50)], [[r(12, 50)], [r(2, 50)]]),  # sizes are the plan's
        ([F.scaled_dot_product_attention], [[r(2, 3, 40, 16)] * 3]),
        ([lambda x: x.exp() * 2.0], [[r()]]),
    ],
    ids=["parts", "variants", "attention", "scalar"],
)
def test_kernels_use_their_parameters(functions, sets):
    """All but those that the plan is called with: these are a kernel's first."""
    graphs = [captured(function, inputs) for function, inputs in zip(functions, sets, strict=True)]
    text = next(text for text in write(graphs, "cuda").files.values() if "@triton.jit" in text)
    defined = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    kernels = [node for node in defined.values() if "triton.jit" in map(ast.unparse, node.decorator_list)]
    assert kernels
    for kernel in kernels:
        used = {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name)}
        if len(kernel.decorator_list) > 1:
            used |= {one.arg for one in defined[f"_plan{kernel.name}"].args.args}
        assert {one.arg for one in kernel.args.args} <= used, kernel.name


NORM = "tl.fma(weight_v * (x_v - running_mean_v), tl.rsqrt(running_var_v + 1e-05), bias_v)"


@pytest.mark.parametrize(
    ("function", "inputs", "formula"),
    [
        (CASES["norm_pool"][0], CASES["norm_pool"][1], NORM),
        (lambda x: x / 3.0 + 1.0, [r(9)], "x_v * 0.3333333432674408"),
        (lambda x, y: x / y + 1.0, [r(9), r(9, seed=1)], "x_v / x2_v"),
        (lambda x, y: torch.add(x, y, alpha=0.5) * y, [r(9), r(9, seed=1)], "tl.fma(0.5, x2_v, x_v)"),
        (lambda x: x**3 + 1.0, [r(9).half()], "x_v * x_v).to(x.dtype.element_ty).to(tl.float32) * x_v"),
        (lambda x: F.silu(x) + 1.0, [r(9)], "x_v / (tl.exp(x_v * -1) + 1.0)"),
        (lambda x: x.mean(-1) + 1.0, [r(9, 9)], "sum_v * tl.div_rn(1.0, n0 * 1.0)"),
        (lambda x: F.hardswish(x) + 1.0, [r(9)], "* 0.1666666716337204"),
    ],
)  # fmt: skip
def test_formulas_are_those_of_eagers_cuda_kernels(function, inputs, formula):
    assert formula in source(function, inputs)


def test_a_lone_operator_is_taken_where_a_launch_costs_less_than_eagers():
    def function(x):
        return F.relu(x).view(-1, 4).unsqueeze(0)

    graph = captured(function, [r(8, 8)])
    assert write([graph], target="cuda").fused == ["relu"]


def test_a_large_copy_alone_is_left_to_eager():
    small, large = ([r(1, n, n)] for n in (32, 1024))
    graphs = [captured(lambda x: x.transpose(1, 2).contiguous(), inputs) for inputs in (small, large)]
    assert "triton_kernel" in "".join(write(graphs[:1], target="cuda").files.values())
    assert "triton_kernel" not in "".join(write(graphs[1:], target="cuda").files.values())


def test_a_transpose_is_a_tile_of_both_runs():
    text = source(*[BLOCKS["transpose"][0]], BLOCKS["transpose"][1])
    assert "_square(" in text


@pytest.mark.parametrize(
    ("function", "by"),
    [
        (lambda x: x.amax(-1), ", _larger,"),
        (lambda x: x.min(0)[0], "tl.minimum(min_v, x_v, propagate_nan"),
        (lambda x: x.amax(), ", _larger,"),
        (lambda x: torch.softmax(x, -1), "tl.max("),
        (lambda x: x.long().amax(-1), "tl.max("),
    ],
)
def test_an_extreme_is_nan_where_an_element_is(function, by):
    """On a GPU `tl.max` drops NaN; a softmax is NaN without it. The interpreter shows no difference."""
    text = source(function, [r(8, 3000)])
    assert by in text and ("PropagateNan" in text) == (by != "tl.max(")


def depthwise(x, w, b):
    """As in a mixing feed-forward layer."""
    return F.gelu(F.conv2d(x, w, b, padding=w.shape[-1] // 2, groups=w.shape[0]).flatten(2).transpose(1, 2))


def test_a_depthwise_convolution_of_a_small_window_is_taken_and_of_any_other_the_bias():
    def taken(*shape):
        inputs = [r(2, 16, 9, 9), r(*shape), r(shape[0])]
        groups = 16 // shape[1]
        function = lambda x, w, b: torch.tanh(F.conv2d(x, w, b, 1, 1, 1, groups))  # noqa: E731
        written = write([captured(function, inputs)], "cuda")
        return "conv2d" not in written.refused and "".join(written.files.values()).count("conv2d(x") == 1

    assert taken(16, 1, 3, 3) and taken(16, 1, 5, 5)
    assert not any([taken(16, 1, 7, 7), taken(32, 1, 3, 3), taken(16, 2, 3, 3), taken(4, 16, 1, 1)])
    assert "conv2d" in write([captured(depthwise, [r(2, 6, 9, 9), r(6, 1, 3, 3), r(6)])], "cpu").refused


def test_a_kernel_adds_the_bias_of_the_convolution_before_it():
    """The library is called without it; what it reads and what reads it are other kernels' work."""

    def text(function, *shapes):
        return source(function, [r(2, 4, 9, 9), r(6, 4, 3, 3), r(6), *(r(*s) for s in shapes)])

    assert "conv2d(x, weight, None)" in text(lambda x, w, b: F.conv2d(x, w, b).relu())
    chained = text(
        lambda x, w, b, v: F.conv_transpose2d(F.conv2d(x.sigmoid(), w, b).relu(), v, b).tanh(), (6, 6, 3, 3)
    )
    assert chained.count("@triton_kernel") == 3 and chained.count(", weight, None)") == 2
    two = text(lambda x, w, b, v: F.conv2d(x, w, b) + F.conv2d(x, v, b).exp(), (6, 4, 3, 3))
    assert two.count("@triton_kernel") == 1 and two.count(", None)") == 2


@pytest.mark.parametrize(
    "function",
    [
        F.conv2d,  # alone: torch adds it as well as a kernel of ours
        lambda x, w, b: F.conv2d(x, w, b).flatten(1),
        lambda x, w, b: F.conv2d(x, w, b, padding="same"),
        lambda x, w, b: F.conv2d(x, w).flatten(1),
    ],
)
def test_a_convolution_with_nothing_behind_it_is_the_librarys(function):
    assert "conv2d" not in str(
        write([captured(function, [r(2, 4, 9, 9), r(6, 4, 3, 3), r(6)])], "cuda").files
    )


def test_a_convolution_with_its_bias_added_behind_it_equals_eager():
    interpreted("""
        import torch
        import torch.nn.functional as F
        from expert_cases import held, r
        def biased(function, *inputs):
            authored = held(function, inputs, "cuda")
            assert "None" in str(authored.files) and not authored.refused, authored.refused
        x, w, b = r(2, 4, 7, 8), r(6, 4, 3, 3), r(6)
        biased(lambda x, w, b: F.conv2d(x, w, b, 2, 1).relu() * 2, x, w, b)
        biased(lambda x, w, b, y: F.conv2d(x, w, b, groups=2) + y, x, r(6, 2, 3, 3), b, r(2, 6, 5, 6))
        biased(lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1).sigmoid(), x, r(4, 6, 3, 3), b)
        biased(lambda x, w, b: F.conv3d(x, w, b).abs().mean((2, 3, 4)), r(2, 4, 3, 5, 5), r(6, 4, 3, 3, 3), b)
    """)


def test_a_depthwise_convolution_reads_runs_of_memory_and_what_is_computed_once():
    text = source(depthwise, [r(2, 64, 16, 16), r(64, 1, 3, 3), r(64)])
    assert "(0, 2, 1))" in text and "lane * n" not in text
    again = lambda x, w: (y := F.conv2d(x, w, None, 1, 1, 1, 6), y.mean((2, 3)))  # noqa: E731
    assert (
        "computed again" in write([captured(again, [r(2, 6, 9, 9), r(6, 1, 3, 3)])], "cuda").refused["conv2d"]
    )
    text = source(lambda x, w: F.conv2d(F.silu(x), w, None, 1, 1, 1, 6) * 2.0, [r(2, 6, 9, 9), r(6, 1, 3, 3)])
    assert text.count("@triton_kernel") == 2 and text.count("tl.exp(") == 1
    normed = lambda x, w: F.conv2d(  # noqa: E731
        F.layer_norm(x, (6,)).transpose(1, 2).reshape(2, 6, 9, 9), w, None, 1, 1, 1, 6
    )
    text = source(normed, [r(2, 81, 6), r(6, 1, 3, 3)])
    assert text.count("@triton_kernel") == 2 and text.count("tl.rsqrt(") == 1


@pytest.mark.long
def test_a_depthwise_convolution_equals_eager():
    """Elements beside the image are not multiplied: an infinite weight would make NaN of them."""
    interpreted("""
        import torch
        from expert_cases import captured, check, r, write
        from test_expert_cuda import depthwise
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            inputs = [r(2, 4, 5, 9).to(dtype), r(4, 1, 3, 3).to(dtype), r(4).to(dtype)]
            if dtype == torch.float32:
                inputs[1][3, 0, 0, 0] = torch.inf
            graph = captured(depthwise, inputs)
            authored = write([graph], "cuda")
            assert "conv2d" not in authored.refused
            check(authored, graph, inputs)
            check(authored, graph, [r(3, 4, 4, 4).to(dtype), *inputs[1:]])
    """)


@pytest.mark.long
def test_resizing_to_the_same_size_copies_as_the_library_does():
    """By the formula a weight of 0 would make NaN of an infinite neighbour."""
    interpreted("""
        import torch
        import torch.nn.functional as F
        from expert_cases import captured, check, r, write
        for kwargs in [{"size": (6, 8), "mode": "bilinear"}, {"scale_factor": 1.0}]:
            x = r(2, 3, 8, 6)
            graph = captured(lambda x: F.interpolate(x.transpose(2, 3), **kwargs), [x])
            rewritten = check(write([graph], "cuda"), graph, [x]).graph_module
            x[0, 1, 4, 2] = torch.inf
            assert torch.equal(rewritten(x)[0], x.transpose(2, 3)), kwargs
    """)


def test_a_large_window_begins_a_kernel_where_what_it_reads_is_computed():
    """Else each element would be computed once for each window that it lies in."""

    def chain(x):
        first = F.max_pool2d(F.silu(x), 5, 1, 2)
        second = F.max_pool2d(first, 5, 1, 2)
        return torch.cat([x, first, second], 1)

    authored = write([captured(chain, [r(1, 8, 20, 20)])], "cuda")
    assert sorted(authored.fused) == ["max_pool2d", "max_pool2d + cat", "silu"]


@pytest.mark.long
def test_what_eager_writes_into_an_input_the_pass_writes_too():
    interpreted("""
        import torch
        import torch.nn.functional as F
        from closeness import assert_as_near
        from expert_cases import captured, check, fresh, r, rewritten, write

        def alone(x):
            return F.silu(x, inplace=True)

        def chain(x, y):
            x += y
            return F.adaptive_avg_pool2d(F.relu(x, inplace=True), 1)

        def normed(x, y):
            x += y
            return F.dropout(x, 0.1, False), F.layer_norm(x, (40,)), x * 2.0

        image, rows = r(2, 3, 5, 5), r(6, 40)
        cases = [(alone, [rows]), (chain, [image, r(2, 3, 5, 5, seed=1)]), (normed, [rows, r(6, 40, seed=1)])]
        for function, inputs in cases:
            graph = captured(function, inputs)
            authored = write([graph], "cuda")
            check(authored, graph, inputs)
            ours, theirs = fresh(graph, inputs), fresh(graph, inputs)
            results = rewritten(authored, graph).graph_module(*ours)
            eager = graph.graph_module(*theirs)
            for have, want in zip(ours, theirs, strict=True):
                assert_as_near(have, want, None)
            assert not torch.equal(ours[0], inputs[0])
            assert [t is ours[0] for t in results] == [t is theirs[0] for t in eager]
    """)


def test_what_other_programs_read_is_not_written_in_place():
    """A window reads its neighbours' inputs: then the operator that writes stays with eager."""
    authored = write(
        [captured(lambda x: F.max_pool2d(F.silu(x, inplace=True), 3, 1, 1), [r(1, 2, 8, 8)])], "cuda"
    )
    assert authored.fused == ["max_pool2d"]
    assert authored.refused["silu"] == "what it writes in place is read by other programs, too"


@pytest.mark.long
def test_an_average_pools_windows_of_one_size():
    interpreted("""
        import torch.nn.functional as F
        from expert_cases import held, r
        for size in [2, (3, None), (1, 4)]:
            held(lambda x: F.adaptive_avg_pool2d(x * 2.0, size), [r(2, 4, 6, 8)], "cuda")
    """)
    uneven = captured(lambda x: F.adaptive_avg_pool2d(x * 2.0, 3), [r(2, 4, 8, 8)])
    refused = write([uneven], "cuda").refused
    assert refused == {"adaptive_avg_pool2d": "to windows of several sizes is left to the library"}


@pytest.mark.long
def test_a_result_can_be_a_constant():
    interpreted("""
        import torch
        from expert_cases import captured, check, r, write
        for dtype in (torch.float16, torch.float32):
            for number in (0, 1):
                def function(x):
                    made = x.new_zeros(3, 4) if number == 0 else x.new_ones(3, 4)
                    return made, x * 2.0 + 1.0, torch.full_like(x, True, dtype=torch.bool)
                graph = captured(function, [r(9, dtype=dtype)])
                authored = write([graph], "cuda")
                assert len(check(authored, graph, [r(9, dtype=dtype)]).applied) == 1
    """)


def test_a_tensor_on_the_cpu_is_left_there():
    def function(x):
        return x * 2.0 + 1.0, torch.arange(9) * 2

    authored = write([captured(function, [r(9)])], "cuda")
    assert (authored.fused, authored.refused["arange"]) == (["mul + add"], "makes a tensor on the CPU")
    index = write([captured(lambda x: x[torch.arange(9)] * 2.0, [r(9)])], "cuda")
    assert index.fused == ["arange + mul"]
    moved = captured(lambda x: torch.arange(9, device=x.device) + x, [r(9)])
    assert write([moved], "cuda").fused == ["arange + add"]


def test_rows_of_channels_are_reduced_down_a_column():
    for name in ("layer_norm_transposed", "layer_norm_of_patches", "narrow"):
        text = source(BLOCKS[name][0], BLOCKS[name][1])
        assert "axis=0" in text, name  # its loads and stores are runs of memory, each along its own axis
        assert "for " not in text.partition("@triton.jit")[2], name
    assert "for start in" in source(BLOCKS["tall"][0], BLOCKS["tall"][1])
    short = source(BLOCKS["layer_norm_of_patches"][0], [r(1, 24, 2, 3), r(1, 1, 24), r(1, 7, 24), r(24)])
    assert "axis=1" in short  # seven rows are no run


@pytest.mark.long
def test_reductions_of_two_inputs_of_one_length_share_a_row():
    """Their axes never meet in an operator: that they are equal is checked at every call."""

    def ratio(ids, mask):
        return 1.0 - (ids == 2).sum(-1).float() / mask.sum(-1)

    text = source(ratio, [torch.randint(0, 4, (3, 5000)), torch.ones(3, 5000, dtype=torch.int64)])
    assert text.count("@triton_kernel") == 1
    assert "s0[1] == s1[1]" in text or "s1[1] == s0[1]" in text
    interpreted("""
        import torch
        from expert_cases import held
        def ratio(ids, mask):
            return 1.0 - (ids == 2).sum(-1).float() / mask.sum(-1)
        inputs = [torch.randint(0, 4, (3, 5000)), torch.ones(3, 5000, dtype=torch.int64)]
        assert "truediv" in held(ratio, inputs, "cuda").operators
    """)


def test_an_axis_of_one_index_is_no_lane():
    """The pieces of a stack have one: their lanes are those beside it."""
    parts = write([captured(lambda x: torch.stack([x.cos(), x.sin()], -1), [r(9, 64)])], "cuda").parts
    assert [part.hints[:2] for part in parts] == [(1, 9 * 64)]


def test_a_long_sum_is_refused():
    """Many programs share only what lies along one axis (test_expert_long_reductions.py)."""
    inputs = [r(300, 300, 64), r(300, 1)]
    authored = write([captured(lambda x, w: (x * w).sum((0, 1)), inputs)], target="cuda")
    assert "sum" in authored.refused


def test_a_plan_refuses_what_does_not_fit_whatever_its_guards_begin_with():
    """`not (a, b) == (3, 3) and ...` refused nothing, so that an add that broadcasts read past an end."""
    authored = write([captured(lambda x, y: F.relu(x + y), [r(2, 3, 4), r(2, 3, 4)])], target="cuda")
    source = next(text for text in authored.files.values() if "_plan_" in text)
    [plan] = [node for node in ast.parse(source).body if getattr(node, "name", "").startswith("_plan_")]
    module = {"torch": torch, "triton": triton}
    helpers = [node for node in ast.parse(source).body if getattr(node, "name", "") == "_run"]
    exec(compile(ast.Module([*helpers, plan], []), "plan", "exec"), module)
    plan_of = module[plan.name]
    known = next(name for name in plan.body[-2].test.comparators if isinstance(name, ast.Name))
    module[known.id] = {}
    x = torch.zeros(2, 3, 4)
    assert plan_of(x, x)[0] == 1 and plan_of(x.half(), x.half())[0] == 1
    wide = torch.empty(1, device="meta").expand(3, 2**15, 2**15)
    for refused in [(x, x[:, :1]), (x, x[0]), (x, x.half()), (x.long(), x.long()), (x.double(), x.double())]:
        with pytest.raises(RuntimeError, match="does not take tensors of shapes"):
            plan_of(*refused)
    with pytest.raises(RuntimeError, match="32-bit indices"):
        plan_of(wide, wide)


@pytest.mark.parametrize(
    ("function", "shape", "kernel"),
    [
        (lambda x: F.softmax(x * 2, -1), (1000, 300), "_fused_mul_softmax_kernel"),
        (lambda x: F.softmax(x * 2, -1), (40960, 64), "_fused_mul_softmax_kernel"),
        (lambda x: F.softmax(x * 2, -1), (32768, 49), "_fused_mul_softmax_kernel"),
        (lambda x: F.relu(x) + 1.0, (1 << 12, 1 << 12), "_fused_relu_add_kernel"),
    ],
)
def test_launches_are_those_of_the_plan_functions(function, shape, kernel):
    authored = write([captured(function, [torch.empty(shape)])], "cuda")
    [launch] = launches(authored.parts, default("cuda"))
    constants = planned(authored.files, kernel, shape)
    assert {key: getattr(constants[key], "value", constants[key]) for key in ("BLOCK",)} == {
        "BLOCK": launch.block
    }


def test_only_the_last_program_of_an_odd_size_has_a_mask():
    text = source(lambda x: F.relu(x) + 1.0, [r(37, 99)])
    assert "if tl.program_id(0) * BLOCK + BLOCK <= n0:" in text
    assert "if tl.program_id" not in source(lambda x: F.relu(x) + 1.0, [r(37, 104)])
    part = Part([], [], "", False, "flat", ends=True, hints=(1, 361 * 49 * 49, 0, 1 << 21))
    assert launches([part], default("cuda")) == (Launch(847, 1024, 1, 4),)


@pytest.mark.long
def test_kernel_of_several_graphs_equals_eager_in_each():
    """Their sizes are odd and even; or the numbers that differ among them are the kernel's arguments."""
    interpreted("""
        import torch.nn.functional as F
        from expert_cases import held_in_each, r

        def odd_or_even(x):
            return F.relu(x) + 1.0, x == 0

        scaled = [lambda x, scale=scale: (x * scale).sum(-1) * scale for scale in (0.5, 0.25)]
        for cases in (
            [(odd_or_even, [r(37, 99)]), (odd_or_even, [r(37, 104)]), (odd_or_even, [r(3, 3)])],
            [(function, [r(9, 40)]) for function in scaled],
        ):
            held_in_each(cases, "cuda")
    """)


def test_lanes_run_over_all_axes_where_a_load_leaves_out_elements():
    text = source(lambda x: F.avg_pool2d(x, 2), [r(2, 3, 8, 8)])
    assert "lane //" in text and "ROWS" not in text
    text = source(lambda x, y: x * y, [r(2, 3, 8, 8), r(3, 1, 1)], [r(2, 512, 16, 16), r(512, 1, 1)])
    assert ">= 135168" in text and text.count("VARIANT ==") == 1 and "ROWS" in text
    assert ">= 135168" not in source(lambda x, y: x * y, [r(2, 512, 16, 16), r(512, 1, 1)])


def test_cat_that_is_normalised_is_stored_by_the_rows_that_hold_it():
    def function(x, y):
        joined = torch.cat([x, y * 2.0], 1)
        return joined, F.layer_norm(joined, (32,))

    text = source(function, [r(2, 1, 32), r(2, 7, 32)])
    assert text.count("tl.store(") == 2 and "_part" not in text


def test_a_thread_handles_fewer_elements_where_each_is_of_many_loads():
    text = source(lambda x: F.max_pool2d(x, 5, 1, 2), [r(1, 8, 20, 20)])
    assert "window=True" in text and "64 if window else 256" in text
    assert "window" not in source(lambda x: F.max_pool2d(x, 3, 1, 1), [r(1, 8, 20, 20)])
    part = Part([], [], "", False, "flat", hints=(1, 1 << 24, 0, 1 << 26), loads=MOST_LOADS + 1)
    assert launches([part], default("cuda"))[0].warps == 8


def test_all_is_loaded_before_the_first_reduction():
    def found(size):
        return source(
            lambda x, i, t, w, b: F.layer_norm(x + F.embedding(i, t), (size,), w, b),
            [r(4, size), torch.tensor([2, 0, 1, 2]), r(3, size), r(size), r(size)],
        )

    text = found(96)
    places = [text.index(f"tl.load({name} ") for name in ("indices", "table", "weight", "bias")]
    assert max(places) < text.index("tl.sum(") and places[0] < places[1]
    assert "tl.sum(" in found(8192).split("tl.load(weight")[0]  # a thread has no room for so many


def test_what_stands_in_a_cat_twice_is_computed_once():
    """YOLO's spatial pyramid calls one pooling three times."""

    def twice(x):
        return torch.cat([x, F.max_pool2d(x, 3, 1, 1), F.max_pool2d(x, 3, 1, 1)], 1)

    once = source(lambda x: torch.cat([x, F.max_pool2d(x, 3, 1, 1)], 1), [r(1, 8, 20, 20)])
    text = source(twice, [r(1, 8, 20, 20)])
    assert (text.count("tl.load("), text.count("tl.store(")) == (once.count("tl.load("), 3)


def test_what_is_written_in_place_is_computed_anew():
    def changing(x):
        first = x.exp()
        x.mul_(2.0)
        return first + x.exp()

    assert source(changing, [r(64, 64)]).count("libdevice.exp(") == 2


@pytest.mark.parametrize(("side", "kernels"), [(16, 1), (512, 2)])
def test_a_large_image_that_is_enlarged_is_computed_before(side, kernels):
    def enlarged(x):
        return F.interpolate(F.relu(x) * 2.0, (2 * side, 2 * side), None, "bilinear", False)

    assert source(enlarged, [r(1, 8, side, side)]).count("@triton_kernel") == kernels


@pytest.mark.long
def test_values_that_occur_twice_and_images_of_one_element():
    interpreted("""
        import torch
        import torch.nn.functional as F
        from expert_cases import captured, check, r, write
        def twice(x):
            return torch.cat([x, F.max_pool2d(x, 3, 1, 1), F.max_pool2d(x, 3, 1, 1), x * 2.0], 1)
        def changing(x):
            first = x.exp()
            x.mul_(2.0)
            return first + x.exp()
        def enlarged(x):
            return F.interpolate(F.relu(x), (3, 5), None, "bilinear", False)
        cases = [(twice, [r(2, 3, 5, 7)]), (changing, [r(5, 7)])]
        cases += [(enlarged, [r(2, 3, 1, 1)]), (enlarged, [r(2, 3, 1, 4)])]
        for function, inputs in cases:
            graph = captured(function, inputs)
            applied = check(write([graph], "cuda"), graph, inputs).applied
            assert len(applied) == 1 or function is changing, function  # what it writes stays with eager
    """)
