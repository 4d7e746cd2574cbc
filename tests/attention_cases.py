"""Attention as models write it, on small tensors: functions and their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from closeness import assert_as_near
from expert_cases import captured, fresh, r, rewritten, write

Tensor = torch.Tensor


def _heads(x: Tensor) -> Tensor:
    return x.view(2, -1, 3, 24).transpose(1, 2)


def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(q.shape[0], -1, 72)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


def grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def bert(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (_heads(x) for x in (q, k, v))
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(24) + mask[:, None, None, :]
    weights = F.dropout(F.softmax(scores, dim=-1), 0.1, False)
    return torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous().view(2, -1, 72)


def t5(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(3, 2))
    scores += bias
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    weights = F.dropout(weights, p=0.1, training=False)
    return torch.matmul(weights, v).transpose(1, 2).contiguous().view(2, -1, 72)


def swin(x: Tensor, bias: Tensor, shifted: Tensor) -> Tensor:
    q, k, v = x.reshape(8, 9, 3, 3, 16).permute(2, 0, 3, 1, 4).unbind(0)
    scores = (q * 0.25) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    scores = scores.view(2, 4, 3, 9, 9) + shifted.unsqueeze(1).unsqueeze(0)
    weights = F.softmax(scores.view(-1, 3, 9, 9), dim=-1)
    return (weights @ v).transpose(1, 2).reshape(8, 9, 48)


def swin_call(x: Tensor, bias: Tensor, shifted: Tensor) -> Tensor:
    q, k, v = x.reshape(8, 9, 3, 3, 16).permute(2, 0, 3, 1, 4).unbind(0)
    shifted = shifted.view(1, 4, 1, 9, 9).expand(2, -1, 3, -1, -1).reshape(-1, 3, 9, 9)
    result = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0) + shifted)
    return result.transpose(1, 2).reshape(8, 9, 48)


def repeated(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (x[:, :, None, :, :].expand(2, 2, 3, 20, 24).reshape(2, 6, 20, 24) for x in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.2 + mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def repeated_with_bmm(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(3, 0) for x in (k, v))
    scores = torch.bmm(q * 0.2, k.transpose(1, 2)).masked_fill(keep, -1e4)
    return torch.bmm(scores.softmax(-1), v)


def self_attention(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.transpose(-1, -2) * 0.3, -1) @ x


def exactness(function: Callable[..., Any], inputs: list[Tensor], dtype: torch.dtype, told: str) -> None:
    """Hold what the expert writes against eager and float64. Raises AssertionError."""
    given = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    graph = captured(function, given)
    authored = write([graph], target="cuda")
    assert len(authored.fused) == 1 and not authored.refused, (told, authored.fused, authored.refused)
    result = rewritten(authored, graph)
    assert result.applied, told
    (eager,) = graph.graph_module(*fresh(graph, given))
    (ours,) = result.graph_module(*fresh(graph, given))
    assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape), told
    exact = function(*(x.double() if x.is_floating_point() else x for x in given))
    assert_as_near(ours, eager, exact)
    assert torch.equal(ours.isnan(), eager.isnan()), told
    error, theirs = (((x.double() - exact) ** 2).nanmean().sqrt() for x in (ours, eager))
    unit = exact.abs().nan_to_num().max() * torch.finfo(dtype).eps
    assert error <= 2 * theirs + unit / 8, (told, dtype, error, theirs, unit)


def _several(count: int, *shape: int) -> list[Tensor]:
    return [r(*shape, seed=seed) for seed in range(count)]


ATTENTIONS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "call": (call, [r(2, 3, 20, 24), *_several(2, 2, 3, 37, 24), r(2, 1, 1, 37)]),
    "call_bool": (call, [r(2, 3, 20, 24), *_several(2, 2, 3, 37, 24), r(2, 1, 20, 37) > 0]),
    "call_masked": (call, [r(2, 3, 4, 24), *_several(2, 2, 3, 5, 24), torch.zeros(4, 5, dtype=torch.bool)]),
    "long": (call, [r(1, 3, 33, 24), *_several(2, 1, 3, 300, 24), r(3, 33, 300)]),
    "causal": (causal, _several(3, 2, 3, 40, 24)),
    "grouped": (grouped, [r(2, 6, 20, 24), *_several(2, 2, 2, 37, 24), r(6, 20, 37)]),
    "bert": (bert, [*_several(3, 2, 20, 72), r(2, 20)]),
    "long_bert": (bert, [*_several(3, 2, 140, 72), r(2, 140)]),
    "t5": (t5, [*_several(3, 2, 3, 20, 24), r(1, 3, 20, 20)]),
    "swin": (swin, [r(8, 9, 144), r(3, 9, 9), r(4, 9, 9)]),
    "swin_call": (swin_call, [r(8, 9, 144), r(3, 9, 9), r(4, 9, 9)]),
    "repeated": (repeated, [r(2, 6, 20, 24), *_several(2, 2, 2, 20, 24), r(2, 1, 20, 20)]),
    "bmm": (repeated_with_bmm, [r(6, 9, 16), *_several(2, 2, 11, 16), r(9, 11) > 1]),
    "self": (self_attention, [r(5, 12, 40)]),
}
