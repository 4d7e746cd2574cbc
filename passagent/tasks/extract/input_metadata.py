"""What is kept of an input: what its values are like, how it lies in memory, whether it takes gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from passagent.tasks.meta import TensorMeta

LITERAL = 64
"""Elements up to which an input that is no weight is kept as values."""
BUFFER = 4096
"""Elements up to which a buffer is: position ids, rope tables, masks."""
LEVELS = 4
"""So few different values of a larger float input are kept as such: 0 and -inf of a mask."""


def input_metas(names: Sequence[str], values: Sequence[Any]) -> list[TensorMeta]:
    """The metadata of in_0, in_1, ...; `names`: of each in the model."""
    metas: list[TensorMeta] = []
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        if not isinstance(value, torch.Tensor):
            dtype = "float" if isinstance(value, float) else "int"
            metas.append(TensorMeta(f"in_{number}", name, (), dtype, "cpu", data=value))
            continue
        metas.append(_meta(f"in_{number}", name, value.detach(), values[:number], value.requires_grad))
    return metas


def _meta(
    name: str, original: str, value: torch.Tensor, before: Sequence[Any], requires_grad: bool
) -> TensorMeta:
    is_weight = "_parameters_" in original
    facts: dict[str, Any] = {}
    most = (
        0 if is_weight else BUFFER if "_buffers_" in original or original.startswith("constant_") else LITERAL
    )
    if value.layout == torch.strided and not value.is_contiguous():
        facts["stride"] = tuple(value.stride())
    if shared := _shared(value, before):
        facts["shares"], facts["storage_offset"] = shared
    if 0 < value.numel() <= most and not value.is_complex():
        facts["data"] = value.cpu().reshape(-1).tolist()
    elif value.numel():
        facts |= _statistics(value, is_weight)
    return TensorMeta(
        name=name,
        original_name=original,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        device=str(value.device),
        requires_grad=requires_grad,
        **facts,
    )


def _statistics(value: torch.Tensor, is_weight: bool) -> dict[str, Any]:
    if value.dtype == torch.bool or value.is_complex():
        return {}
    if not value.is_floating_point():
        return {"min_val": int(value.min()), "max_val": int(value.max())}
    wide = value.float() if value.dtype != torch.float64 else value
    distinct = wide.reshape(-1)[: 64 * LEVELS].unique()
    if not is_weight and 1 < len(distinct) <= LEVELS:
        distinct = wide.unique()
        if len(distinct) <= LEVELS:
            return {"levels": tuple(distinct.tolist())}
    # Taking elements out needs 8 bytes of each for each of its indices: a large tensor has no room for it.
    finite = wide if all(math.isfinite(end) for end in wide.aminmax()) else wide[wide.isfinite()]
    if not finite.numel():
        return {"levels": tuple(wide.unique().tolist()[:LEVELS])}
    low, high = float(finite.min()), float(finite.max())
    std = float(finite.std()) if finite.numel() > 1 else 0.0
    found = {"mean": float(finite.mean()), "std": std if math.isfinite(std) else 0.0}
    if low >= 0 and low != high and not is_weight:
        found["min_val"] = low  # what is never negative stays so, and a probability below 1
        if high <= 1:
            found["max_val"] = high
    return found


def _shared(value: torch.Tensor, before: Sequence[Any]) -> tuple[str, int] | None:
    """The first input before it whose memory holds all of `value`, and where in it."""
    if value.layout != torch.strided or not value.numel():
        return None
    for number, other in enumerate(before):
        if not isinstance(other, torch.Tensor) or other.layout != torch.strided or other.dtype != value.dtype:
            continue
        offset = int(value.storage_offset()) - int(other.storage_offset())
        is_inside = offset >= 0 and offset + _extent(value) <= _extent(other)
        if other.untyped_storage()._cdata == value.untyped_storage()._cdata and is_inside:
            return f"in_{number}", offset
    return None


def _extent(value: torch.Tensor) -> int:
    """Elements from the first to the last one."""
    return 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))


def laid_out(metas: Sequence[TensorMeta], values: Sequence[Any]) -> list[Any]:
    """Rebuilt inputs (tasks/inputs.py) with recorded strides, shared memory and requires_grad."""
    made: dict[str, Any] = {}
    for meta, value in zip(metas, values, strict=True):
        if not isinstance(value, torch.Tensor):
            made[meta.name] = value
            continue
        if meta.shares:
            base = made[meta.shares].detach()
            stride = meta.stride or torch.empty(meta.shape, device="meta").stride()
            own = base.as_strided(meta.shape, stride, base.storage_offset() + meta.storage_offset)
        else:
            own = value if meta.stride is None else _strided(value, meta.stride)
        made[meta.name] = own.requires_grad_(meta.requires_grad)
    return list(made.values())


def _strided(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The values with these strides; along a dimension of stride 0 all elements are one."""
    single = value
    for dim, step in enumerate(stride):
        if step == 0 and value.shape[dim] > 1:
            single = single.narrow(dim, 0, 1)
    own = torch.empty_strided(single.shape, stride, dtype=value.dtype, device=value.device).copy_(single)
    return own.as_strided(value.shape, stride)
