"""Work that would be done twice: two kernels are better, or one loop for several reductions."""

from __future__ import annotations

import math
from collections import Counter

from torch import fx

from passagent.expert.lower.expressions import Axis, Trace, Value, parts
from passagent.expert.read.graph import CONVOLUTIONS, POOLS, example, op_name
from passagent.expert.schedule.parts import Group, Store
from passagent.expert.schedule.schedule import Schedule

MOVES = frozenset({"pad", "roll", "flip", "repeat", "tile", "index_select", "gather", "unfold"})
"""Operators that only move elements: what is reduced before them is best stored before them, too."""

MOST_RECOMPUTED = 9
"""Elements of a window up to which what it reads is computed in the same kernel, once for each."""
MOST_NESTED = 16
"""Elements of windows of windows that are computed in one kernel."""
MOST_HELD = 8192
"""Elements of a row, each of a window, that a program holds to reduce them."""
LARGE_IMAGE = 1 << 22
"""Elements from which an image that is enlarged is computed before, and not for each neighbour."""


def reads_often(node: fx.Node, source: fx.Node) -> bool:
    """Tell whether an operator reads each element of `source` so often that it is best stored before."""
    if op_name(node) in CONVOLUTIONS:
        return True
    if op_name(node) in {"interpolate", "upsample"}:
        mode = node.args[3] if len(node.args) > 3 else node.kwargs.get("mode")
        is_one = math.prod(example(source).shape[2:]) == 1
        return mode == "bilinear" and not is_one and example(node).numel() >= LARGE_IMAGE
    reads = _window(node)
    return reads > MOST_RECOMPUTED or (reads > 1 and reads * _window(source) > MOST_NESTED)


def _window(node: fx.Node) -> int:
    """Elements of the windows of a pooling; 1 of any other operator."""
    if op_name(node) not in POOLS:
        return 1
    size = node.args[1] if len(node.args) > 1 else node.kwargs.get("kernel_size")
    sides = size if isinstance(size, tuple | list) else [size] * int(op_name(node)[-2])
    return math.prod(n for n in sides if isinstance(n, int))


def reduces_again(schedule: Schedule) -> bool:
    """Tell whether a group reduces, by computed indices, what another group reduces as it lies in memory."""

    def reduced(group: Group, computed: bool) -> set[int]:
        """Inputs under the reductions of a group that are read by computed indices, or those that are not."""
        items = [item for stage in group.stages for item in stage.items if not isinstance(item, Store)]
        loads = {e for e in parts(*items) if e.kind == "load"}
        rests = {load: [e for e, _ in schedule.addresses[load].rest if e is not None] for load in loads}
        return {load.data for load, rest in rests.items() if bool(rest) == computed}

    groups = schedule.groups
    return any(reduced(a, True) & reduced(b, False) for a in groups for b in groups if a is not b)


def windows_again(schedule: Schedule) -> bool:
    """Tell whether a group reduces another's windows, too, or more of them than registers hold."""
    holding = []
    for group in schedule.groups:
        items = [item for stage in group.stages for item in stage.items]
        exprs = [
            e for item in items for e in ([item.expr, *item.index] if isinstance(item, Store) else [item])
        ]
        reads = Counter(e.data for e in parts(*exprs) if e.kind == "load" and schedule.addresses[e].rest)
        if any(times >= MOST_RECOMPUTED - 1 for times in reads.values()):
            reduces = any(not isinstance(item, Store) for item in items)
            holding.append(max(schedule.volume(stage.loops) for stage in group.stages) if reduces else 0)
    return max(holding, default=0) > (0 if len(holding) > 1 else MOST_HELD)


def join_reductions(trace: Trace, outputs: list[Value]) -> bool:
    """Let reductions over different axes of one length run along one axis; whether any do now.

    That their lengths are equal becomes a guard.
    """
    bound = [
        axes[0]
        for expr in parts(*(trace.resolve(output.expr) for output in outputs))
        if expr.kind == "reduce" and len(axes := trace.axes_of(expr.data[1])) == 1
    ]
    of_length: dict[int, Axis] = {}
    any_joined = False
    for axis in dict.fromkeys(bound):
        first = of_length.setdefault(axis.size.hint, axis)
        if first is not axis and trace.join(first, axis):
            any_joined = True
    return any_joined
