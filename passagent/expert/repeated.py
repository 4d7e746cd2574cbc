"""Work that a C++ kernel would do twice, so that two kernels are better."""

from __future__ import annotations

from passagent.expert.expressions import parts
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
