"""The operators of torch that a plan may call, by their schemas: functional, deterministic, of fixed shapes.

`aten::addmm.default` is the name of an operator, with its overload. What only allocates or views has steps of
its own. What writes into its arguments, draws random numbers or decides a shape by values is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from passagent.tasks.reader import LibraryRule

EMPTY = {"empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided"}
FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
FULL = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}
"""Operators that allocate, by what they fill with: nothing, a number, the argument at a position."""
_ALLOCATING = {*EMPTY, *FILLED, *FULL, "zero_", "fill_", "zero", "lift_fresh", "_efficientzerotensor"}
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


CONVOLUTION = "aten::convolution.default"
_DRAWS = torch.Tag.nondeterministic_seeded
_SHAPES_BY_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def is_allowed(name: str, rule: LibraryRule) -> bool:
    """Tell whether a pass may call the operator by a rule."""
    return rule == "all" or name == CONVOLUTION


@functools.cache
def operator_of(name: str) -> Any:
    """The torch._ops.OpOverload of a name; None if this torch has none."""
    qualified, _, overload = name.partition(".")
    namespace, _, base = qualified.partition("::")
    packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
    return getattr(packet, overload, None) if isinstance(packet, torch._ops.OpOverloadPacket) else None


def name_of(operator: Any) -> str:
    """The name by which a plan calls an operator (torch._ops.OpOverload)."""
    return f"{operator.namespace}::{operator._opname}.{operator._overloadname}"


def readable(name: str) -> str:
    """The name as people write it: `aten.addmm`."""
    return name.replace("::", ".").removesuffix(".default")


def refusal(operator: Any, argument: Callable[[int, str], Any]) -> str | None:
    """Say why no plan calls an operator (any callable); None if one may.

    `argument` gives the number at a position or of a name, None where the call leaves it out.
    """
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
        return f"{operator} is no operator of torch; call what torch.nn.functional has, or write a kernel"
    schema, name = operator._schema, f"aten.{operator._opname}"
    if _DRAWS in operator.tags and not _drops_nothing(schema, argument):
        return f"{name} draws random numbers; leave it in the graph"
    if schema.is_mutable:
        return f"{name} writes into a tensor that exists; call the form that returns a new one"
    if only_arranges(operator):
        return f"{name} computes nothing; allocate, view or copy"
    returns = [str(entry.type) for entry in schema.returns]
    if "Tensor" not in returns or any(entry.alias_info for entry in schema.returns):
        return f"{name} returns no new tensor; write a kernel"
    if not any("Tensor" in str(entry.type) for entry in schema.arguments):
        return f"{name} computes from no tensor; make the values in a kernel"
    if _SHAPES_BY_VALUES & set(operator.tags):
        return f"{name} has a result whose size depends on values; write a kernel"
    return None


def _drops_nothing(schema: Any, argument: Callable[[int, str], Any]) -> bool:
    """Tell whether the probability by which an attention drops elements is 0."""
    for position, entry in enumerate(schema.arguments):
        if entry.name == "dropout_p":
            number = argument(position, entry.name)
            return bool((entry.default_value if number is None else number) == 0)
    return False
