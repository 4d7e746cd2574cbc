"""Operators without a template: split as TorchInductor splits them, in a kernel that is the pass's own."""

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_as_exact_as_eager
from expert_cases import captured, check, held, r, rewritten, write
from interpreting import interpreted

from passagent.expert.lower.call import OPS

A, B = r(4, 60), r(4, 60, seed=1)
SPLIT = {
    "cosine_similarity": (lambda a, b: F.cosine_similarity(a, b, dim=1) * 2.0, [A, B]),
    "pairwise_distance": (F.pairwise_distance, [A, B]),
    "outer": (lambda a, b: torch.outer(a, b) + 1.0, [r(5), r(7)]),
    "isclose": (lambda a, b: torch.isclose(a, b, rtol=0.5) * a, [A, B]),
    "diff": (lambda a: torch.diff(a) * 2.0, [A]),
    "huber_loss": (lambda a, b: F.huber_loss(a, b, reduction="none"), [A, B]),
    "rot90": (lambda a: torch.rot90(a) * 2.0, [A]),
    "logaddexp": (torch.logaddexp, [A, B]),
    "heaviside": (torch.heaviside, [A, B]),
    "xlogy": (lambda a, b: torch.xlogy(a, b.abs()), [A, B]),
    "sinc": (torch.sinc, [A]),
    "aminmax": (lambda a: torch.aminmax(a, dim=1)[0] * 2.0, [A]),
    "lp_pool2d": (lambda a: F.lp_pool2d(a, 2, 2), [r(2, 3, 6, 6)]),
}
"""Functions with an operator for which the expert has no template, and their inputs."""


@pytest.mark.parametrize(("place", "name"), enumerate(SPLIT))
def test_kernels_equal_eager(place, name):
    function, inputs = SPLIT[name]
    assert name not in OPS
    given = [x.to((torch.float16, torch.float32)[place % 2]) for x in inputs]
    graph = captured(function, given)
    authored = write([graph])
    assert name not in authored.refused
    result = check(authored, graph, given)
    assert len(result.applied) == 1
    left = [node for node in result.graph_module.graph.nodes if node.op.startswith("call")]
    assert [str(node.target) for node in left if "fused" not in str(node.target)] == []


@pytest.mark.long
def test_kernels_equal_eager_in_the_interpreter():
    interpreted("""
        import torch
        from expert_cases import held
        from test_expert_split import SPLIT
        for place, (name, (function, inputs)) in enumerate(SPLIT.items()):
            given = [x.to((torch.float32, torch.bfloat16)[place % 2]) for x in inputs]
            authored = held(function, given, "cuda")
            assert name not in authored.refused, name
    """)


def test_parts_may_be_poolings():
    inputs = [r(2, 5, 6, 6)]
    graph = captured(lambda a: F.local_response_norm(a, 3), inputs)  # not of 16 bits: eager's pooling is not
    authored = write([graph])
    assert not authored.refused
    check(authored, graph, inputs)


def test_the_pass_holds_its_kernel_and_takes_other_sizes():
    function, inputs = SPLIT["cosine_similarity"]
    graph = captured(function, inputs)
    for target in ("cpu", "cuda"):
        authored = write([graph], target)
        text = "".join(authored.files.values())
        assert "inductor" not in text
        assert "cosine_similarity(" not in text.split("def replacement_args")[1].replace("fused_cosine", "")
    module = rewritten(write([graph]), graph).graph_module
    a, b = r(9, 33), r(9, 33, seed=3)
    assert_as_exact_as_eager(module(a, b)[0], function, [a, b])
    with pytest.raises(RuntimeError, match="does not take tensors of shapes"):
        module(r(9, 1), r(9, 1))  # the decomposition looked at that: another one may be meant then


def test_a_limit_of_a_dtype_holds_for_that_dtype_only():
    function = lambda x: torch.nan_to_num(x) * 0.5  # noqa: E731
    given = [r(4, 60).to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)]
    text = "".join(write([captured(function, [x]) for x in given], "cuda").files.values())
    for x in given:
        assert str(torch.finfo(x.dtype).max) in text
        assert f"{x.dtype}" in text


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (F.gumbel_softmax, "consists of rand, among others, which has no lowering"),
        (lambda a: torch.remainder(a, 0.3), "consists of remainder"),
    ],
)
def test_what_cannot_be_split_says_why(function, reason):
    refused = write([captured(function, [A])]).refused
    assert any(reason in told for told in refused.values()), refused


def test_an_operator_that_returns_a_tensor_and_none_stays_with_eager():
    weights = r(96, 32), r(96), r(32, 32), r(32)

    def block(x, first, bias, second, last):
        heads = F.multi_head_attention_forward(
            x, x, x, 32, 4, first, bias, None, None, False, 0.0, second, last, need_weights=False
        )
        return F.gelu(x + heads[0]) * 2.0

    inputs = [r(5, 2, 32), *weights]
    authored = held(block, inputs)
    assert "multi_head_attention_forward" in authored.refused


def test_operators_under_vmap_stay_with_eager():
    def block(x):
        return torch.vmap(lambda row: F.gelu(row * 2) + row)(x) * torch.sigmoid(x) + 1

    authored = held(block, [A])
    assert "vmap" in authored.refused["gelu"]
