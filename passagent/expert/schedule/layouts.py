"""How a region's tensors lie in memory in the example, and how its results are best stored.

A kernel reads an input that is a permutation of a contiguous tensor where it lies: its elements are loaded by
indices in memory's order. The launcher checks at every call that it lies so, and copies it if it does not.

Where a kernel would do work twice, two kernels are better, or one loop for several reductions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from passagent.expert.graph import CONVOLUTIONS, example, op_name
from passagent.expert.lower import Region
from passagent.expert.lower.expressions import Axis, Trace, Value, parts
from passagent.expert.schedule import Schedule
from passagent.expert.schedule.stages import Address, Group
from passagent.kernels.layout import LONGEST, Order

DEVICE_DECIDES = {"group_norm", "instance_norm", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"}
"""Operators whose results lie otherwise on CUDA than on the CPU if their input is not row-major."""


def output_orders(regions: Sequence[Region]) -> list[Order]:
    """For each output the order in which eager's lies, on every device."""
    for node in regions[0].nodes:
        lies = op_name(node) in CONVOLUTIONS and all(example(a).is_contiguous() for a in node.all_input_nodes)
        if op_name(node) in {*DEVICE_DECIDES, *CONVOLUTIONS} and not lies:
            return [()] * len(regions[0].outputs)
    outputs = zip(*(region.outputs for region in regions), strict=True)
    return [memory_order(list(map(example, nodes))) for nodes in outputs]


def memory_order(tensors: Sequence[torch.Tensor]) -> Order:
    """The order, outermost dimension first, in which all are contiguous; empty: row-major, or none."""
    if all(t.is_contiguous() for t in tensors):
        return ()
    first = next(t for t in tensors if not t.is_contiguous())
    sizes, steps = first.shape, first.stride()
    # By strides; a dimension of one element, whose stride says nothing, keeps its place.
    walked = iter(sorted((d for d, n in enumerate(sizes) if n != 1), key=lambda d: -steps[d]))
    order = tuple(d if n == 1 else next(walked) for d, n in enumerate(sizes))
    fits = all(t.dim() == len(order) and t.permute(order).is_contiguous() for t in tensors)
    return order if fits and len(order) <= LONGEST else ()


def stored(
    trace: Trace, outputs: list[Value], orders: list[Order], target: str
) -> tuple[Schedule, list[Order]]:
    """The schedule that stores the outputs row-major, or in eager's `orders` where fewer reads cross it."""
    schedule = Schedule(trace, outputs, target)
    if all(orders):
        pairs = zip(outputs, orders, strict=True)
        turned = [Value([value.dims[d] for d in order], value.expr) for value, order in pairs]
        other = Schedule(trace, turned, target)
        if _crossing(other) < _crossing(schedule):
            return other, orders
    return schedule, [()] * len(outputs)


def _crossing(schedule: Schedule) -> int:
    """Elements that are read along another axis than any result is stored along."""
    stores = {id(store) for store in schedule.stores}
    along = {_run(address) for key, address in schedule.addresses.items() if key in stores}
    reads = [address for key, address in schedule.addresses.items() if key not in stores]
    return sum(schedule.volume(a.terms) for a in reads if a.terms and _run(a) not in along)


def _run(address: Address) -> object:
    """The axis along which an access goes through memory element by element."""
    return next((axis for axis, step in address.terms.items() if step == (1, ())), None)


MOVES = frozenset({"pad", "roll", "flip", "repeat", "tile", "index_select", "gather", "unfold"})
"""Operators that only move elements: what is reduced before them is best stored before them, too."""
FREQUENT = 8
"""Reads of an element by one group from which it is of windows that are written out."""
MOST_HELD = 8192
"""Elements of a row, each of a window, that a program holds to reduce them."""


def reduces_again(schedule: Schedule) -> bool:
    """Tell whether a group reduces, by computed indices, what another group reduces as it lies in memory."""

    def reduced(group: Group, computed: bool) -> set[int]:
        """Inputs under the reductions of a group that are read by computed indices, or those that are not."""
        loads = {e for e in parts(*group.reductions) if e.kind == "load"}
        rests = {load: [e for e, _ in schedule.addresses[load].rest if e is not None] for load in loads}
        return {load.data for load, rest in rests.items() if bool(rest) == computed}

    groups = schedule.groups
    return any(reduced(a, True) & reduced(b, False) for a in groups for b in groups if a is not b)


def windows_again(schedule: Schedule) -> bool:
    """Tell whether a group reduces another's windows, too, or more of them than registers hold."""
    holding = []
    for group in schedule.groups:
        reads = Counter(e.data for e in group.loads if schedule.addresses[e].rest)
        if any(times >= FREQUENT for times in reads.values()):
            held = max(schedule.volume(stage.loops) for stage in group.stages)
            holding.append(held if group.reductions else 0)
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
