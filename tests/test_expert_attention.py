"""Attention for CUDA: what is found, what the kernel holds, and that it is as exact as eager."""

from __future__ import annotations

import inspect
import runpy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from attention_cases import ATTENTIONS
from expert_cases import captured, r, write
from interpreting import interpreted
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from passagent import kernels
from passagent.expert.choices import default
from passagent.expert.graph import arguments, example
from passagent.expert.read.pattern_text import parameters
from passagent.expert.write.cuda_grid import launches
from passagent.kernels.layout import Like

LOG2E = "0f3FB8AA3B"
"""As PTX writes it."""


@pytest.mark.long
@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_attention_is_one_kernel_as_exact_as_eager(name):
    interpreted(f"""
        import torch
        from attention_cases import ATTENTIONS, exactness
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            exactness(*ATTENTIONS[{name!r}], dtype, {name!r})
    """)


def compiled(monkeypatch, tmp_path, name, sizes_known):
    """PTX of a case's kernel in float16, with its sizes as constants or as arguments."""
    function, inputs = ATTENTIONS[name]
    given = [x.half() if x.is_floating_point() else x for x in inputs]
    graph = captured(function, given)
    seen = []
    monkeypatch.setattr(kernels, "triton_kernel", lambda plan, **_: lambda k: seen.append((plan, k)) or k)
    authored = write([graph], "cuda")
    text = next(text for file, text in authored.files.items() if file.endswith(".py"))
    (tmp_path / "attention_pass.py").write_text(text)
    runpy.run_path(str(tmp_path / "attention_pass.py"))
    [(plan, kernel)], region = seen, authored.taken[0][1]
    tensors = [Like(tuple(example(node).shape), example(node).dtype) for node in region.inputs]
    literals = {p.name: dict(arguments(region.nodes[p.node]))[p.path] for p in parameters([region])}
    asked = list(inspect.signature(plan).parameters)
    _, outputs, numbers = plan(*tensors, *(literals[one] for one in asked[len(tensors) :]))
    names = list(inspect.signature(kernel.fn).parameters)
    kinds = dict.fromkeys(names, "i32") | dict.fromkeys([*asked[: len(tensors)], *outputs], "*fp16")
    kinds |= {one: "*i1" for one, like in zip(asked, tensors, strict=False) if like.dtype == torch.bool}
    known = {one for one, size in numbers.items() if sizes_known and isinstance(size, tl.constexpr)}
    known |= {one for one in names if one.isupper()}
    constants = {(names.index(one),): getattr(numbers[one], "value", numbers[one]) for one in known}
    kinds |= dict.fromkeys(known, "constexpr")
    source = ASTSource(kernel, kinds, constants)
    options = {"num_warps": numbers["num_warps"], "num_stages": numbers["num_stages"]}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


@pytest.mark.long
@pytest.mark.parametrize("sizes_known", [True, False])
@pytest.mark.parametrize("name", ["long", "causal", "swin_call", "grouped", "call_bool", "t5"])
def test_kernels_compile_without_a_gpu(name, sizes_known, monkeypatch, tmp_path):
    """The interpreter takes kernels that the compiler does not: types of a loop's values that change.

    It has no fma either: one with log2(e) in it would make the largest weight of large scores infinite.
    """
    ptx = compiled(monkeypatch, tmp_path, name, sizes_known)
    assert "mma" in ptx and LOG2E in ptx
    assert not any("fma" in line and LOG2E in line for line in ptx.splitlines())


@pytest.mark.long
def test_other_sizes_than_a_task_names_are_taken_too():
    interpreted("""
        import torch
        from attention_cases import ATTENTIONS
        from expert_cases import captured, check, write
        for name, longer in (("bert", 140), ("causal", 150)):
            function, inputs = ATTENTIONS[name]
            authored = write([captured(function, inputs)], "cuda")
            generator = torch.Generator().manual_seed(1)
            shapes = [[longer if n in (20, 40) else n for n in x.shape] for x in inputs]
            unseen = [torch.randn(shape, generator=generator) for shape in shapes]
            check(authored, captured(function, unseen), unseen)
    """)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 48, 16))
def test_any_form_sizes_layout_and_mask(first):
    interpreted(f"""
        from attention_draws import check_draws
        check_draws(range({first}, {first} + 16))
    """)


def test_an_attention_leaves_no_operator_to_eager():
    for function, inputs in (ATTENTIONS[name] for name in ("bert", "swin_call")):
        authored = write([captured(function, [x.half() for x in inputs])], "cuda")
        assert (len(authored.fused), authored.refused) == (1, {})
        text = "".join(authored.files.values())
        assert text.count("tl.dot(") == 4 and text.count("@triton_kernel") == 1


def test_loads_ahead_are_a_choice_where_there_is_a_loop():
    """Keys that are one block are read once: there another plan is no other kernel."""
    for name, count in (("bert", 1), ("long", 2)):
        function, inputs = ATTENTIONS[name]
        parts = write([captured(function, inputs)], "cuda").parts
        assert len({launches(parts, replace(default("cuda"), stages=n)) for n in (1, 2)}) == count


def test_an_operator_left_to_eager_takes_its_attention_along():
    function, inputs = ATTENTIONS["bert"]
    plan = replace(default("cuda"), without=("softmax",))
    authored = write([captured(function, inputs)], "cuda", plan)
    assert "softmax" not in "".join(authored.fused) and "tl.dot" not in "".join(authored.files.values())


def test_scores_that_something_else_reads_are_left_to_the_library():
    def function(q, k, v):
        weights = torch.softmax(q @ k.transpose(1, 2), -1)
        return weights @ v, weights

    graph = captured(function, [r(2, 9, 16, seed=seed) for seed in range(3)])
    assert write([graph], "cuda").refused["matmul"] == "is left to the vendor library"


def test_double_precision_is_left_to_the_library():
    function, inputs = ATTENTIONS["bert"]
    authored = write([captured(function, [x.double() for x in inputs])], "cuda")
    assert "tl.dot" not in "".join(authored.files.values())
    assert "float64" in authored.refused["matmul"]


def test_a_long_call_without_a_mask_is_left_to_the_library():
    for length, fused in ((128, ["scaled_dot_product_attention"]), (129, [])):
        inputs = [r(1, 2, length, 16, seed=seed) for seed in range(3)]
        graph = captured(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), inputs)
        assert write([graph], "cuda").fused == fused


def test_a_call_with_dropout_is_left_to_the_library():
    graph = captured(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), [r(2, 3, 9, 16)])
    assert write([graph], "cuda").fused == []
