"""The inputs of a subgraph, rebuilt from its metadata.

Variant 0 is GraphNet's formula. Its floats have a fifth of the recorded spread and a std of 0 makes them
constant, so that many wrong kernels pass; variants 1, 2, ... are draws of passagent's own.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from passagent.tasks.meta import LIMIT, TensorMeta, flat
from passagent.tasks.module import full_device
from passagent.tasks.reader import Subgraph

GRAPHNET_SHRINK = 0.2
DEFAULT_STD = 0.1
"""Where the std was not recorded."""
LARGE = 300.0
RARE = 5
"""The variant in which activations are ordinary but for FEW, or 1 in RARELY, of size LARGE and more: a kernel
that looks at some values to tell what all are like does not see those. One is FAR_MOST times as large, and
makes most of a sum of squares, so that no half of a row stands for all of it. The others are Pareto
distributed, of index 1, and at most a quarter as large."""
FEW, RARELY = 4, 1 << 16
BEYOND = 6
"""The variant in which floats go beyond every recorded range: without its limits, on both sides of 0, around
another mean."""
OUTSIDE = 16
"""Neighbouring elements of which one is below the recorded minimum and one above the maximum, for sure."""
SPREADS = (1.0, 0.5, 2.0, LARGE, 1.0)
"""Variant v >= 1 draws floats with SPREADS[(v - 1) % 5] times the recorded std. Large activations are of all
sizes from the recorded one to LARGE at least: a model whose weights were never trained records logits near 0,
and what a kernel takes for granted, such as a range or a sample that stands for all, holds for one size."""
FULL = 0.25
"""The part of large activations that are of size LARGE: a few dozen elements hold some, for sure."""
FAR, FAR_GAIN, FAR_MOST = 2.6, 2.0, 16.0
"""Large activations beyond FAR standard deviations, 1 in 100, are FAR_GAIN times as large, and so many times
more as makes them Pareto distributed with the index 2, FAR_MOST at most: however long a row is, the few
largest make a good part of its sum of squares, so that no sample of the row stands for it."""
RELATIVE_SPREAD = 0.1
"""Share of abs(mean) (or of 1 for small means): the std given to what was recorded as constant."""
PART = 1 << 22
"""Elements that one generator draws: parts of a larger tensor are drawn at once, one on each core."""


def make_inputs(subgraph: Subgraph, device: str, seed: int, variant: int = 0) -> list[Any]:
    """Tensors (and Python numbers) in the order of forward's parameters, contiguous, without grad.

    Deterministic in (seed, variant) and equal on every device: drawn on the CPU, then moved. An input that
    was recorded on the CPU among others on a GPU stays on the CPU.
    """
    target = full_device(device)
    inputs: list[Any] = []
    for meta in subgraph.inputs:
        value = draw_one(meta, seed, variant)
        stays = meta.is_python_scalar or (subgraph.home == "cuda" and meta.device.startswith("cpu"))
        inputs.append(value if stays else value.to(target))
    return inputs


def draw_one(meta: TensorMeta, seed: int, variant: int) -> Any:
    """A tensor on the CPU, or a Python number."""
    if meta.is_python_scalar:
        return (int if meta.dtype == "int" else float)(flat(meta.data)[0])
    return _draw(meta, seed, variant)


def is_endless(meta: TensorMeta) -> bool:
    """More values of this input can be drawn than it holds: it is no recorded tensor, nor a single mask."""
    return meta.data is None and not (_is_by_rows(meta) and len(meta.shape) < 2)


def more_values(meta: TensorMeta, count: int, seed: int, variant: int) -> torch.Tensor:
    """`count` more elements of an endless input, flat, on the CPU; whole rows of a mask."""
    by_rows = _is_by_rows(meta) and count
    shape = (count // meta.shape[-1], meta.shape[-1]) if by_rows else (count,)
    return _draw(replace(meta, shape=shape), seed, variant).reshape(-1)


def _draw(meta: TensorMeta, seed: int, variant: int) -> torch.Tensor:
    generator = generator_of(seed, variant, meta.name)
    if meta.levels is not None:
        return _levelled(meta, generator)
    return _varied(meta, generator, variant) if variant else _recorded(meta, generator)


def generator_of(seed: int, variant: int | str, name: str) -> torch.Generator:
    """Return the generator that an input is drawn by in a set."""
    digest = hashlib.sha256(f"{seed}:{variant}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def shift_unit(meta: TensorMeta) -> int:
    """How many neighbouring elements must move together when the values of an input move along; 0: none may.

    What is drawn element by element may move by any number; a mask by whole rows, so that each keeps a 1;
    recorded integers as `_shuffled` may shuffle them.
    """
    floats = meta.is_floating or meta.dtype.startswith("complex")
    if meta.is_python_scalar or meta.numel < (1 if floats and meta.data is None else 2):
        return 0
    if _is_by_rows(meta):
        return meta.shape[-1] if len(meta.shape) > 1 else 1
    if floats or meta.data is None:
        return 1
    values = flat(meta.data)
    if len(meta.shape) == 1 and all(a < b for a, b in itertools.pairwise(values)):
        return 0
    return meta.shape[-1] if len(meta.shape) > 2 else 1


def _recorded(meta: TensorMeta, generator: torch.Generator) -> torch.Tensor:
    """GraphNet's formula."""
    dtype = getattr(torch, meta.dtype)
    if meta.data is not None:
        return torch.tensor(flat(meta.data)).to(dtype).reshape(meta.shape)
    if dtype == torch.bool:
        return torch.randn(meta.shape, generator=generator) > 0.5
    if not (meta.is_floating or dtype.is_complex):
        return _integers(meta, generator).to(dtype)
    std = DEFAULT_STD if meta.std is None else meta.std
    return _from_noise(
        meta, generator, lambda noise: _clamp(noise * std * GRAPHNET_SHRINK + (meta.mean or 0.0), meta)
    )


def _varied(meta: TensorMeta, generator: torch.Generator, variant: int) -> torch.Tensor:
    """A draw of variant >= 1."""
    dtype = getattr(torch, meta.dtype)
    if meta.is_floating or dtype.is_complex:
        if variant == BEYOND and not (meta.is_variance or meta.role == "recorded"):
            shift = 0.5 + float(torch.rand((), generator=generator)) / 2
            shift *= 0 if meta.is_parameter else 1 - 2 * int(torch.randint(2, (), generator=generator))
            return _from_noise(meta, generator, lambda noise: _beyond(meta, noise, shift))
        scale = SPREADS[(variant - 1) % len(SPREADS)]
        drawn = _from_noise(meta, generator, lambda noise: _varied_floats(meta, noise, scale))
        return _with_few_far(drawn, meta, generator) if variant == RARE else drawn
    if _is_bits(meta):
        return _mask(meta, generator).to(dtype)
    if meta.data is not None:
        return _shuffled(torch.tensor(flat(meta.data)).to(dtype).reshape(meta.shape), generator)
    return _integers(meta, generator).to(dtype)


def _varied_floats(meta: TensorMeta, noise: torch.Tensor, scale: float) -> torch.Tensor:
    if meta.data is not None:
        base = torch.tensor(flat(meta.data), dtype=torch.float32).reshape(meta.shape)
        spread = RELATIVE_SPREAD * torch.where(base == 0, torch.ones_like(base), base.abs())
        positive = bool((base > 0).all())
        drawn = base + noise * spread * scale
        return torch.where(drawn > 0, drawn, base) if positive else drawn
    mean = meta.mean or 0.0
    std = meta.std or (DEFAULT_STD if meta.std is None else RELATIVE_SPREAD * max(abs(mean), 1.0))
    if scale == LARGE and meta.is_floating and not meta.is_parameter:
        sizes = ((noise * 4096).frac().abs() / (1 - FULL)).clamp(max=1.0)  # as good as another draw
        noise = _few_far(noise) * max(1.0, 1.0 / std) ** sizes * LARGE ** (sizes - 1)
    drawn = noise * std * scale + mean
    if meta.is_variance:
        drawn = drawn.abs().clamp(min=max(0.05 * abs(mean), 1e-3))
    return _clamp(drawn, meta)


def _beyond(meta: TensorMeta, noise: torch.Tensor, shift: float) -> torch.Tensor:
    """Draw values as BEYOND says; `shift`: of the mean, in spreads."""
    if meta.data is not None:
        base = torch.tensor(flat(meta.data), dtype=noise.dtype).reshape(meta.shape)
    else:
        base = torch.tensor(meta.mean or 0.0)
    spread = base.abs().clamp(min=DEFAULT_STD if meta.std is None else meta.std)
    spread = torch.where(spread == 0, 1.0, spread)
    return torch.where(spread < LIMIT, _outside(meta, base + (noise + shift) * spread, spread), base)


def _outside(meta: TensorMeta, values: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """One of every OUTSIDE elements, in turn, lies below the recorded minimum and one above the maximum.

    Of few elements chance alone may take none there.
    """
    if values.is_complex() or not values.numel():
        return values
    limits = (
        [meta.min_val, meta.max_val] if meta.data is None else [min(flat(meta.data)), max(flat(meta.data))]
    )
    turns = torch.arange(values.numel()).reshape(values.shape) % min(OUTSIDE, values.numel())
    for turn, (limit, side) in enumerate(zip(limits, (-1.0, 1.0), strict=True)):
        if limit is not None and abs(limit) < LIMIT:
            further = limit + side * ((values - limit).abs() + 0.1 * spread)
            values = torch.where(turns == turn, further, values)
    return values


def _with_few_far(drawn: torch.Tensor, meta: TensorMeta, generator: torch.Generator) -> torch.Tensor:
    """Put far values in, as RARE says; in a tensor of few elements fewer, as most are to be ordinary."""
    count = min(max(FEW, meta.numel // RARELY), meta.numel // 8)
    if count and meta.is_floating and meta.data is None and not (meta.is_parameter or meta.is_variance):
        places = torch.randint(meta.numel, (count,), generator=generator)
        # both signs are among the fewest: a kernel may be right on one side of 0 alone
        signs = 1.0 - 2.0 * ((torch.arange(count) + torch.randint(2, (), generator=generator)) % 2)
        sizes = (1 / torch.rand(count, generator=generator)).clamp(max=FAR_MOST / 4)
        sizes[0] = FAR_MOST
        far = signs * sizes * LARGE * max(meta.std or DEFAULT_STD, 1.0) + (meta.mean or 0.0)
        drawn.view(-1)[places] = _clamp(far, meta).to(drawn.dtype)
    return drawn


def _few_far(noise: torch.Tensor) -> torch.Tensor:
    """Standard normal noise with those values far that are rare in it; see FAR."""
    is_far = noise.abs() > FAR
    far = noise[is_far]
    rarity = math.erfc(FAR / math.sqrt(2)) / torch.special.erfc(far.abs() / math.sqrt(2))
    return noise.masked_scatter(is_far, far * FAR_GAIN * rarity.sqrt().clamp(max=FAR_MOST))


def _from_noise(
    meta: TensorMeta, generator: torch.Generator, values: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """`values` of standard normal noise, which it takes element by element; in the input's dtype."""
    kind = torch.complex64 if meta.dtype.startswith("complex") else torch.float32
    dtype = getattr(torch, meta.dtype)
    if meta.numel <= PART or meta.data is not None:
        return values(torch.randn(meta.shape, generator=generator, dtype=kind)).to(dtype)
    whole = torch.empty(meta.shape, dtype=dtype)
    parts = whole.view(-1).split(PART)
    seeds = torch.randint(1 << 62, (len(parts),), generator=generator).tolist()

    def draw(part: torch.Tensor, seed: int) -> None:
        part_generator = torch.Generator().manual_seed(seed)
        part.copy_(values(torch.randn(part.shape, generator=part_generator, dtype=kind)))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(draw, parts, seeds))
    return whole


def _clamp(values: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    if meta.min_val is None and meta.max_val is None:
        return values
    return values.clamp(min=meta.min_val, max=meta.max_val)


def _integers(meta: TensorMeta, generator: torch.Generator) -> torch.Tensor:
    """Within the recorded range, or a wider one that the graph allows."""
    low, high = recorded_range(meta)
    drawn = torch.randint(low, high + 1, meta.shape, generator=generator)
    return drawn.sort(-1).values if meta.role == "rising" else drawn


def recorded_range(meta: TensorMeta) -> tuple[int, int]:
    """The smallest and the largest integer of an input; 0 and 1 where nothing was recorded."""
    if meta.data is not None:
        return int(min(flat(meta.data))), int(max(flat(meta.data)))
    low = 0 if meta.min_val is None else int(meta.min_val)
    return low, max(low, 1) if meta.max_val is None else int(meta.max_val)


def _is_bits(meta: TensorMeta) -> bool:
    """Return whether an input is of bools, or a mask."""
    return meta.dtype == "bool" or (meta.is_integer and is_mask(meta))


def is_mask(meta: TensorMeta) -> bool:
    """An integer input that is a mask, by its use or its name, and holds nothing but 0 and 1."""
    if meta.numel < 2 or meta.role == "index":
        return False
    low, high = recorded_range(meta)
    return (meta.role == "mask" or "mask" in meta.original_name.lower()) and low >= 0 and high <= 1


def _is_by_rows(meta: TensorMeta) -> bool:
    """Its rows belong together: those of a mask, and indices that rise."""
    return _is_bits(meta) or meta.role == "rising" or meta.levels is not None


def _levelled(meta: TensorMeta, generator: torch.Generator) -> torch.Tensor:
    """One of the levels for each element; no row without the largest, as no row of a mask is all masked."""
    levels = torch.tensor(meta.levels, dtype=getattr(torch, meta.dtype))
    drawn = levels[torch.randint(len(levels), meta.shape, generator=generator)]
    if drawn.dim():
        drawn[..., :1] = levels.max()
    return drawn


def _mask(meta: TensorMeta, generator: torch.Generator) -> torch.Tensor:
    """Both values, and no row without a 1: a row that is all masked has no defined softmax or mean."""
    mask = torch.rand(meta.shape, generator=generator) < 0.7
    if mask.dim():
        mask[..., :1] = True
    return mask


def _shuffled(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The recorded integers in another order: still indices in range.

    Kept as they are: a single value (a size) and a rising vector (offsets). With three or more dimensions
    only rows change places, as the values of one row (the corners of a box) belong together.
    """
    if values.numel() < 2 or (values.dim() == 1 and bool((values.diff() > 0).all())):
        return values
    rows = values.reshape(-1, values.shape[-1]) if values.dim() > 2 else values.reshape(-1)
    return rows[torch.randperm(len(rows), generator=generator)].reshape(values.shape)
