"""Two methods of tensors for a build of torch without CUDA, which refuses them on fake CUDA tensors.

`contiguous` and indexing ask for the device's guard before any operator runs; their operators do not.
"""

from __future__ import annotations

from typing import Any

import torch


def install() -> None:
    """Replace them for CUDA tensors, in this process, for good."""
    contiguous, getitem = torch.Tensor.contiguous, torch.Tensor.__getitem__

    def contiguous_(self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
        if not self.is_cuda:
            return contiguous(self, memory_format=memory_format)
        is_so = self.is_contiguous(memory_format=memory_format)
        return self if is_so else torch.ops.aten.clone(self, memory_format=memory_format)

    def getitem_(self: torch.Tensor, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if not self.is_cuda or not all(_is_basic(part) for part in parts):
            return getitem(self, index)
        return _indexed(self, parts)

    torch.Tensor.contiguous = contiguous_  # type: ignore[assignment,method-assign]
    torch.Tensor.__getitem__ = getitem_  # type: ignore[assignment,method-assign]


def _is_basic(part: Any) -> bool:
    return part is None or part is ... or isinstance(part, slice) or type(part) is int


def _indexed(tensor: torch.Tensor, parts: tuple[Any, ...]) -> torch.Tensor:
    taken = sum(part is not None and part is not ... for part in parts)
    if taken > tensor.dim():
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()}")
    dim, result = 0, torch.ops.aten.alias(tensor)
    for part in parts:
        if part is ...:
            dim += tensor.dim() - taken
        elif part is None:
            result = torch.ops.aten.unsqueeze(result, dim)
            dim += 1
        elif isinstance(part, slice):
            step = 1 if part.step is None else part.step
            result = torch.ops.aten.slice(result, dim, part.start, part.stop, step)
            dim += 1
        else:
            result = torch.ops.aten.select(result, dim, part)
    return result
