"""Attention drawn at random: forms, sizes, layouts, biases and masks, each held against float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from attention_cases import exactness
from expert_cases import r

from passagent.expert.lower.attention import ONE_BLOCK

Tensor = torch.Tensor
SIZES = (1, 2, 7, 16, 33)


def drawn(seed: int) -> tuple[Callable[..., Any], list[Tensor], str]:
    """A function, its inputs, and what was drawn."""
    draw = random.Random(seed)
    batch, heads, group = draw.choice((1, 2)), draw.choice((1, 2)), draw.choice((1, 3))
    depth, width = draw.choice((16, 20, 40)), draw.choice((16, 24))
    queries, keys = draw.choice(SIZES), draw.choice((*SIZES, 130))
    called, causal, scale = draw.random() < 0.5, draw.random() < 0.2, draw.choice((None, 0.25))
    apart = [draw.random() < 0.5 for _ in range(3)]
    inputs = []
    for k, (n, length, size) in enumerate(
        ((heads * group, queries, depth), (heads, keys, depth), (heads, keys, width))
    ):
        lying = (batch, length, n, size) if apart[k] else (batch, n, length, size)
        inputs.append(r(*lying, seed=seed + k))
    mask = draw.choice(("none", "bool", "float", "two"))
    mask = "none" if causal else mask
    called = called and (mask != "none" or keys <= ONE_BLOCK)  # longer ones are the library's
    full = (batch, heads * group, queries, keys)
    shape = tuple(n if draw.random() < 0.6 else 1 for n in full)[draw.choice((0, 0, 1, 2)) :]
    if mask != "none":
        inputs.append(r(*shape, seed=seed + 3))
        inputs[-1] = inputs[-1] > -0.5 if mask == "bool" else inputs[-1]
    if mask == "two":
        inputs.append(r(full[1], 1, keys, seed=seed + 4))

    def function(q: Tensor, k: Tensor, v: Tensor, *masks: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) if way else x for x, way in zip((q, k, v), apart, strict=True))
        bias = masks[0] if len(masks) == 1 else masks[0] + masks[1] if masks else None
        if called:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, is_causal=causal, scale=scale, enable_gqa=group > 1
            )
        if group > 1:
            k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scores = (q if scale is None else q * scale) @ k.transpose(2, 3)
        for one in masks:
            scores = scores.masked_fill(~one, -1e4) if one.dtype == torch.bool else scores + one
        return (F.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)

    return (
        function,
        inputs,
        f"{seed}: {called=} {full=} {depth=} {width=} {apart=} {mask=} {shape=} {causal=}",
    )


def check_draws(seeds: range) -> None:
    """Raises AssertionError for a draw that is not one kernel, or less exact than eager."""
    for seed in seeds:
        function, inputs, told = drawn(seed)
        dtype = (torch.float32, torch.float16, torch.bfloat16)[seed % 3]
        exactness(function, inputs, dtype, told)
