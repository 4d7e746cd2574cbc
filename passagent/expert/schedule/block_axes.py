"""Choose the axes of a Triton program's block: (ROWS, BLOCK) elements of one group of loops."""

from __future__ import annotations

from dataclasses import dataclass, field

from passagent.expert.lower.expressions import Axis
from passagent.expert.lower.symbolic_sizes import Unsupported
from passagent.expert.schedule.parts import HELD, NARROW, Group, Mono, Store
from passagent.expert.schedule.schedule import Schedule

LONGEST = 32768
"""Lanes that a program holds at once, at most."""
TALL = 16
"""Elements of an outer axis from which it is part of the block, and no loop."""
EVEN, BLOCKS = 8, 1024
"""Elements that a thread loads at once. A mask that ends between them makes it load them one by one, so of
more elements than the second only the last program's block has one."""
ALONE = 1 << 22
"""Elements from which a reduction needs more than a handful of programs."""


@dataclass
class Form:
    """The form of a program's block.

    kind: `flat` (one long run of lanes), `rows` (several rows of lanes, a row being one index of each of the
    rows' axes), `long` (rows whose lanes are swept in a loop), `square` (a tile of two axes, for transposes),
    `column` (the second axis of the block is reduced in the program), `tall` (it is swept in a loop).
    """

    kind: str
    rows: list[Axis]
    vector: Axis | None
    """The lanes' axis: the innermost."""
    cross: Axis | None = None
    """The block's other axis, where it is not the rows."""
    joined: list[Axis] = field(default_factory=list)
    """Axes that the lanes run over together."""
    swept: Axis | None = None
    """The axis whose blocks a loop runs over."""
    limit: str = ""
    """A host condition under which this form was chosen, where another would serve as well."""

    def runs(self, schedule: Schedule, terms: dict[Axis, Mono]) -> bool:
        """Tell whether an address walks the joined axes as one."""
        if not all(a in terms for a in self.joined):
            return False
        pairs = zip(self.joined, self.joined[1:], strict=False)
        return all(terms[a] == schedule.times(terms[b], schedule.mono(b.size)) for a, b in pairs)


def block_form(schedule: Schedule, group: Group) -> Form:
    """The form for a group. Raises Unsupported where there is none, or one that leaves the device idle."""
    form = _form(schedule, group)
    rows = schedule.volume(form.rows)
    if group.tile is not None:
        rows *= -(-group.tile.size.hint // 64)
    work = rows * max((schedule.volume(s.loops) for s in group.stages), default=1)
    if group.reductions and rows < 8 and work > ALONE:
        raise Unsupported("schedule", "a few long sums keep few of the device's processors busy")
    return form


def _form(schedule: Schedule, group: Group) -> Form:
    tile, rows = group.tile, list(group.rows)
    looped = [s.loops for s in group.stages if s.loops]
    stores, only_stores = group.stores, not group.reductions
    if tile is not None and only_stores and all(tile in schedule.store_axes(s) for s in stores):
        if not rows:
            odd = tile.size.hint % EVEN and tile.size.hint > BLOCKS
            return Form("flat", rows, tile, limit=f"({tile.size}) % {EVEN}" if odd else "")
        across = _across(schedule, stores, rows, tile)
        if across is not None and all(loops == [tile] for loops in looped):
            return Form("square", [a for a in rows if a is not across], tile, across)
    if not looped:
        return Form("rows", rows, tile)
    every = schedule.sorted({a for loops in looped for a in loops})
    vector = tile or every[-1]
    whole = len(every) > 1 and all(loops == every for loops in looped)
    if tile is None and whole and schedule.volume(every) <= LONGEST:
        return Form("rows", rows, vector, joined=every, limit=_at_most(every, LONGEST))
    others = [a for a in every if a is not vector]
    is_split = any(loops[-1] is not vector for loops in looped)
    cross = max(others, key=lambda a: a.size.hint, default=None)
    if cross is not None and (is_split or cross.size.hint >= TALL):
        lanes = NARROW if tile is not None else vector.size.hint
        if cross.size.hint * lanes <= HELD:
            limit = _at_most([cross, vector], HELD) if tile is None else _at_most([cross], HELD // NARROW)
            return Form("column", rows, vector, cross, limit=limit)
        if not is_split and lanes <= HELD:
            return Form("tall", rows, vector, cross, swept=cross)
    if is_split:
        raise Unsupported("schedule", "stages of one row run along different axes")
    if tile is None and vector.size.hint > LONGEST:
        return Form("long", rows, vector, swept=vector)
    limits = [_at_most([vector], LONGEST)] if tile is None else []
    limits += [_at_most([cross], TALL - 1)] if cross is not None else []
    return Form("rows", rows, vector, limit=" and ".join(limits))


def _at_most(axes: list[Axis], most: int) -> str:
    return f"{' * '.join(str(a.size) for a in axes)} <= {most}"


def _across(schedule: Schedule, stores: list[Store], rows: list[Axis], tile: Axis) -> Axis | None:
    """The row axis that a large access runs along in memory, where the lanes' axis does not."""
    addresses = list(schedule.addresses.values())
    largest = max(schedule.volume(a.terms) for a in addresses)
    stored = [a for a in rows if a.size.hint >= 8 and all(a in schedule.store_axes(s) for s in stores)]
    for terms in (a.terms for a in addresses if 2 * schedule.volume(a.terms) >= largest):
        if terms.get(tile, (1, ())) != (1, ()):
            for axis in (a for a in stored if terms.get(a) == (1, ())):
                return axis
    return None
