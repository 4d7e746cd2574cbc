"""Work that would be done twice: two kernels are better, or one loop for several reductions."""

from __future__ import annotations

from passagent.expert.expressions import Axis, Trace, Value, parts
from passagent.expert.schedule import Schedule
from passagent.expert.schedule_parts import Group, Store

MOVES = frozenset({"pad", "roll", "flip", "repeat", "tile", "index_select", "gather", "unfold"})
"""Operators that only move elements: what is reduced before them is best stored before them, too."""


def reduces_again(schedule: Schedule) -> bool:
    """Whether a group reduces, by computed indices, what another group reduces as it lies in memory."""

    def reduced(group: Group, computed: bool) -> set[int]:
        """Inputs under the reductions of a group that are read by computed indices, or those that are not."""
        items = [item for stage in group.stages for item in stage.items if not isinstance(item, Store)]
        loads = {e for e in parts(*items) if e.kind == "load"}
        rests = {load: [e for e, _ in schedule.addresses[load].rest if e is not None] for load in loads}
        return {load.data for load, rest in rests.items() if bool(rest) == computed}

    groups = schedule.groups
    return any(reduced(a, True) & reduced(b, False) for a in groups for b in groups if a is not b)


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
