"""Estimate what a kernel saves on eager: whether it beats operators one by one, and what is best stored."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from passagent.expert.graph import (
    CONVOLUTIONS,
    FREE_VIEWS,
    IDENTITIES,
    POOLS,
    argument,
    example,
    is_free,
    mutates,
    op_name,
)
from passagent.expert.lower.region import Region
from passagent.expert.lower.windows import is_computed


@dataclass(frozen=True)
class Costs:
    """The cost of operators on a target: microseconds, and bytes a microsecond."""

    operator: float
    """One of eager's that computes."""
    view: float
    launch: float
    """One kernel of ours, with its outputs."""
    bandwidth: float


COSTS = {"cpu": Costs(2.0, 1.0, 1.5, 1e4), "cuda": Costs(7.0, 1.5, 5.1, 4e6)}
"""Operator and launch as `benchmarks/launch_cost.py` measured them on an H200; the rest is estimated."""

MOST_RECOMPUTED = 9
"""Elements of a window up to which what it reads is computed in the same kernel, once for each."""
MOST_NESTED = 16
"""Elements of windows of windows that are computed in one kernel."""
LARGE_IMAGE = 1 << 22
"""Elements from which an image that is enlarged is computed before, and not for each neighbour."""
LARGE_COPY = 1 << 20
"""Bytes from which a copy alone is left to eager."""


def moved_bytes(node: fx.Node) -> int:
    """Bytes that eager reads and writes for an operator; 0 for free views."""
    return 0 if is_free(node) else _bytes([node, *node.all_input_nodes])


def _bytes(nodes: Iterable[fx.Node]) -> int:
    values = map(example, nodes)
    tensors = [t for v in values for t in (v if isinstance(v, tuple | list) else [v])]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


def gain(region: Region, target: str) -> float:
    """Rough saving on eager, microseconds: what each operator costs to start, and memory not walked again."""
    costs = COSTS[target]
    starts = sum(costs.view if is_free(n) else costs.operator for n in region.nodes)
    inside = sum(moved_bytes(n) for n in region.nodes)
    border = _bytes([*region.inputs, *region.outputs])
    return starts - costs.launch + (inside - border) / costs.bandwidth


def worth(region: Region, target: str) -> bool:
    """Tell whether one kernel can beat the operators one by one."""
    computing = [n for n in region.nodes if not is_free(n)]
    if not any(map(is_computed, computing)):
        return False
    if len(computing) == 1:
        lone = computing[0]
        copies = op_name(lone) in FREE_VIEWS | IDENTITIES
        if target == "cuda":
            return gain(region, target) > 0 and not (copies and moved_bytes(lone) > LARGE_COPY)
        # Alone, an operator that writes in place needs no memory of its own, and a copy is eager's work.
        return gain(region, target) > 0 and mutates(lone) is None and not copies
    return len(computing) >= 2


def reads_often(node: fx.Node, source: fx.Node) -> bool:
    """Tell whether an operator reads each element of `source` so often that it is best stored before."""
    if op_name(node) in CONVOLUTIONS:
        return True
    if op_name(node) in {"interpolate", "upsample"}:
        mode = argument(node, 3, "mode")
        is_one = math.prod(example(source).shape[2:]) == 1
        return mode == "bilinear" and not is_one and example(node).numel() >= LARGE_IMAGE
    reads = _window(node)
    return reads > MOST_RECOMPUTED or (reads > 1 and reads * _window(source) > MOST_NESTED)


def _window(node: fx.Node) -> int:
    """Elements of the windows of a pooling; 1 of any other operator."""
    if op_name(node) not in POOLS:
        return 1
    size = argument(node, 1, "kernel_size")
    sides = size if isinstance(size, tuple | list) else [size] * int(op_name(node)[-2])
    return math.prod(n for n in sides if isinstance(n, int))
