"""How the dtypes of a region's tensors are named in its kernel."""

from __future__ import annotations

import torch
from torch import fx

from passagent.expert.graph import arguments, example, op_name
from passagent.expert.lower import Region, Types
from passagent.expert.lowering import HALF
from passagent.expert.split import holds_for_one_dtype


def has_any(region: Region, dtypes: set[torch.dtype]) -> bool:
    """Whether a tensor of the region has one of these dtypes."""
    return any(
        example(n).dtype in dtypes
        for n in [*region.inputs, *region.nodes]
        if isinstance(example(n), torch.Tensor)
    )


def _dtype(node: fx.Node) -> torch.dtype | None:
    value = example(node)
    if isinstance(value, tuple | list) and value:
        value = value[0]
    return value.dtype if isinstance(value, torch.Tensor) else None


def named_types(region: Region, half: Region | None) -> list[Types]:
    """How each input's and node's dtype is named; float32 regions follow a 16-bit one where there is one."""
    nodes = [*region.inputs, *region.nodes]
    if any(holds_for_one_dtype(node) for node in region.nodes):
        return [Types(frozenset())] * len(nodes)
    kinds = {d for n in region.inputs if (d := _dtype(n)) in HALF}
    if kinds:
        # Of two 16-bit types among the inputs one is called by its name.
        return [Types(frozenset(sorted(kinds, key=str)[:1]))] * len(nodes)
    if has_any(region, HALF):
        return [Types(frozenset())] * len(nodes)
    single, none = Types(frozenset({torch.float32})), Types(frozenset())
    if half is not None and any(_dtype(h) in HALF for h in half.inputs):
        return [single if _dtype(h) in HALF else none for h in [*half.inputs, *half.nodes]]
    converts = any(
        op_name(n) in {"to", "float", "half", "type_as", "type", "double", "bfloat16"}
        or any(isinstance(v, torch.dtype) for _, v in arguments(n))
        for n in region.nodes
    )
    named = any(_dtype(n) is torch.float32 for n in region.inputs)  # else nothing says which type it is
    return [single if named and not converts else none] * len(nodes)
