"""Torch's operators that compute, and those that only allocate, view, copy or read metadata."""

from __future__ import annotations

from typing import Any

import torch

_ALLOCATING = {
    "empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided", "zeros",
    "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full",
    "scalar_tensor", "zero_", "fill_", "zero", "lift_fresh", "_efficientzerotensor",
}  # fmt: skip
_METADATA = {
    "is_same_size", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "size", "stride", "numel",
    "dim", "is_contiguous", "is_pinned", "storage_offset", "_unsafe_view", "_reshape_copy", "device",
    "record_stream", "is_complex", "is_floating_point", "is_signed", "_has_compatible_shallow_copy_type",
    "broadcast_tensors", "result_type", "can_cast", "promote_types", "clone", "contiguous", "detach_",
    "get_device", "is_set_to", "is_conj", "is_neg", "is_inference", "is_leaf", "is_distributed", "output_nr",
    "retains_grad", "_version", "dense_dim", "sparse_dim", "is_coalesced", "qscheme", "sym_is_contiguous",
    "_has_same_storage_numel", "_is_zerotensor", "_debug_has_internal_overlap",
}  # fmt: skip
"""Beside metadata the copies that change nothing."""
_NO_VIEW = {"_conj", "_neg_view", "conj", "resolve_conj", "resolve_neg", "set_", "view_dtype"}
"""Views by their schema that stand for arithmetic, or for other memory."""


def computes(operator: Any, args: Any, kwargs: Any) -> str | None:
    """The operator in words if it is more than an allocation, a view, metadata or a plain copy; else None."""
    if not isinstance(operator, torch._ops.OpOverload):
        return str(operator)
    if only_arranges(operator):
        return None
    name = operator.overloadpacket.__name__
    if name == "_to_copy":
        source, dtype = args[0], kwargs.get("dtype")
        if dtype is None or dtype == source.dtype:
            return None
        return f"aten._to_copy (a cast from {source.dtype} to {dtype})"
    if name == "copy_":
        target, source = args[0], args[1]
        nbytes = target.numel() * target.itemsize
        whole = _is_dense(target) and nbytes == target.untyped_storage().nbytes()
        if target.dtype == source.dtype and target.shape == source.shape and whole:
            return None
        return "aten.copy_ (into a part of a tensor, or with a cast)"
    return f"aten.{name}"


def only_arranges(operator: Any) -> bool:
    """Tell whether an operator, whatever its arguments, allocates, takes a view or reads metadata."""
    name = operator.overloadpacket.__name__
    if name in _METADATA:
        return True
    if name in _ALLOCATING:
        return operator._overloadname != "Tensor"  # fill_(tensor) reads a value
    returns = operator._schema.returns
    return (
        name not in _NO_VIEW
        and bool(returns)
        and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Its elements fill a range of memory, each once, in whatever order."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != step:
            return False
        step *= size
    return True
