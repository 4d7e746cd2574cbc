"""Attention for CUDA: what is found, what the kernel holds, and that it is as exact as eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from attention_cases import ATTENTIONS
from expert_cases import captured, r, write
from test_expert_cuda import interpreted


@pytest.mark.long
@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_attention_is_one_kernel_as_exact_as_eager(name):
    interpreted(f"""
        import torch
        from attention_cases import ATTENTIONS, exactness
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            exactness(*ATTENTIONS[{name!r}], dtype, {name!r})
    """)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_any_form_sizes_layout_and_mask(first):
    interpreted(f"""
        from attention_draws import check_draws
        check_draws(range({first}, {first} + 20))
    """)


def test_an_attention_leaves_no_operator_to_eager():
    for function, inputs in (ATTENTIONS[name] for name in ("bert", "swin_call")):
        authored = write([captured(function, [x.half() for x in inputs])], "cuda")
        assert (len(authored.fused), authored.refused) == (1, {})
        text = "".join(authored.files.values())
        assert text.count("tl.dot(") == 4 and text.count("@triton_kernel") == 1


def test_scores_that_something_else_reads_are_left_to_the_library():
    def function(q, k, v):
        weights = torch.softmax(q @ k.transpose(1, 2), -1)
        return weights @ v, weights

    graph = captured(function, [r(2, 9, 16, seed=seed) for seed in range(3)])
    assert write([graph], "cuda").refused["matmul"] == "is left to the vendor library"


def test_a_call_with_dropout_is_left_to_the_library():
    graph = captured(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), [r(2, 3, 9, 16)])
    assert write([graph], "cuda").fused == []
