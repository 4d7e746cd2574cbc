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
    copy = host_memory(value).copy_(value.detach())
    return copy.requires_grad_(value.requires_grad)


def host_memory(value: torch.Tensor) -> torch.Tensor:
    """Room for a copy of it."""
    return torch.empty_like(value, device="cpu", requires_grad=False)


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Compare like torch.equal; one of large tensors may wait in host memory."""
    return all(torch.equal(a, b) for a, b in slices(first, second))


def close(first: torch.Tensor, second: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Compare like torch.allclose, where NaN equals NaN; one of large tensors may wait in host memory."""
    return all(
        torch.equal(a, b) or torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        for a, b in slices(first, second)
    )


def slices(first: torch.Tensor, second: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both, slice by slice where they are large, on the GPU if one is there."""
    if not (_is_large(first) or _is_large(second)):
        yield first, second
        return
    first, second = first.detach(), second.detach()
    device = second.device if first.device.type == "cpu" else first.device
    if first.shape != second.shape or first.layout != torch.strided or second.layout != torch.strided:
        yield first.to(device), second.to(device)
        return
    if first.is_contiguous() and second.is_contiguous():
        first, second = first.view(-1), second.view(-1)
    dim = max(range(first.dim()), key=first.size)
    rows = max(1, SLICE * first.size(dim) // first.numel())
    for a, b in zip(first.split(rows, dim), second.split(rows, dim), strict=True):
        yield a.to(device), b.to(device)


def _is_large(value: torch.Tensor) -> bool:
    return value.numel() * value.itemsize >= LARGE
