"""Large tensors while a problem is checked: on a GPU few of them fit, so that some wait in host memory.

Comparisons go slice by slice: what they compute on the way takes little memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

LARGE = 256 << 20
"""Bytes from which on a tensor is large. Smaller ones stay where they are: moving them takes time."""
SLICE = 1 << 24
"""Elements that are compared at a time."""
CROWDED = ("cuda",)
"""Types of devices whose memory large tensors leave."""


def crowds(value: Any) -> bool:
    """Return whether a value is a large tensor on a GPU."""
    is_plain = type(value) is torch.Tensor and value.layout == torch.strided
    return is_plain and value.device.type in CROWDED and _is_large(value)


def set_aside(values: Sequence[Any]) -> list[Any]:
    """The values; in place of large tensors on a GPU, copies in host memory."""
    return [in_host_memory(value) if crowds(value) else value for value in values]


def in_host_memory(value: torch.Tensor) -> torch.Tensor:
    """A copy of it there."""
    made = host_memory(value).copy_(value.detach())
    return made.requires_grad_(value.requires_grad)


def host_memory(value: torch.Tensor) -> torch.Tensor:
    """Room for a copy of it."""
    return torch.empty_like(value, device="cpu", requires_grad=False)


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare like torch.equal; one of large tensors may wait in host memory."""
    return all(torch.equal(a, b) for a, b in slices(one, other))


def close(one: torch.Tensor, other: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Compare like torch.allclose, where NaN equals NaN; one of large tensors may wait in host memory."""
    return all(
        torch.equal(a, b) or torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        for a, b in slices(one, other)
    )


def slices(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both, slice by slice where they are large, on the GPU if one is there."""
    if not (_is_large(one) or _is_large(other)):
        yield one, other
        return
    one, other = one.detach(), other.detach()
    device = other.device if one.device.type == "cpu" else one.device
    if one.shape != other.shape or one.layout != torch.strided or other.layout != torch.strided:
        yield one.to(device), other.to(device)
        return
    if one.is_contiguous() and other.is_contiguous():
        one, other = one.view(-1), other.view(-1)
    dim = max(range(one.dim()), key=one.size)
    rows = max(1, SLICE * one.size(dim) // one.numel())
    for a, b in zip(one.split(rows, dim), other.split(rows, dim), strict=True):
        yield a.to(device), b.to(device)


def _is_large(value: torch.Tensor) -> bool:
    return value.numel() * value.itemsize >= LARGE
