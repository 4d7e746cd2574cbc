"""How programs share out a kernel's elements: blocks, the functions that plans call, what launches cost.

A group of loops is a program's block of (ROWS, BLOCK) elements: a form says which axes these are. The cost
is rough: how much memory a kernel's programs keep under way, and what is idle. It orders plans before any is
measured, and tells which of them come to the same launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from passagent.expert.choices import Plan
from passagent.expert.lower.expressions import Axis
from passagent.expert.lower.symbolic_sizes import Unsupported, product
from passagent.expert.schedule import Schedule
from passagent.expert.schedule.stages import HELD, NARROW, Group, Mono, Store
from passagent.expert.write import Part

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

    kind: `flat` (one long run of lanes, over one axis or over all of them), `rows` (several rows of lanes, a
    row being one index of each of the rows' axes), `long` (rows whose lanes are swept in a loop), `square` (a
    tile of two axes, for transposes), `column` (the second axis of the block is reduced in the program),
    `tall` (it is swept in a loop).
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
    ends: bool = False
    """Lanes end within the last program's block, which alone has a mask."""

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
            odd = tile.size.hint % EVEN > 0 and tile.size.hint > BLOCKS
            return Form("flat", rows, tile, limit=f"({tile.size}) % {EVEN}" if odd else "", ends=odd)
        across = _across(schedule, stores, rows, tile)
        if all(loops == [tile] for loops in looped):
            if across is not None:
                return Form("square", [a for a in rows if a is not across], tile, across)
            joined, least = [*rows, tile], SMS * BLOCKS
            large = f"{product(str(a.size) for a in joined)} >= {least}"
            limit = "" if _strided(schedule, group, tile) else large
            if not limit or schedule.volume(joined) >= least:
                return Form("flat", [], tile, joined=joined, limit=limit)
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


def _strided(schedule: Schedule, group: Group, tile: Axis) -> bool:
    """Tell whether a load does not walk the lanes one by one: of two axes Triton may take the other first."""
    for address in (schedule.addresses[load] for load in group.loads):
        computed = any(e is not None and tile in schedule.axes(e.axes) for e, _ in address.rest)
        if computed or address.terms.get(tile, (1, ())) != (1, ()):
            return True
    return False


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


MOST_LOADS = 16
"""The number of an element's inputs from which a thread handles two elements at a time and not eight."""

SMS = 132
"""Programs that a GPU runs side by side, at least."""

ROOM = 4096
"""Elements for which it has as many threads as two of them need, of each of those programs."""


FUNCTIONS = {
    "_run": """
def _run(n{ends}{option}):
    \"""Lanes of a program and its warps, for one run of n elements.

    A thread loads at once as many as divide n: among others a mask may end{but}.
    \"""
    if n >= 2**31:
        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")
    block, each = {block[1]}, {each}
    if {odd}:
        each = min(each, 32 * (n & -n))
        block = min(block, 8 * each)
    while block > 128 and n < {SMS} * block:
        block //= 2
    return block, max(1, min(8, block // each))
""",
    "_rows": """
def _rows(rows, lanes, tiled=False{option}):
    \"""(rows, lanes and rows of a program, warps) for `rows` rows of `lanes` elements.

    A row is one program's, or split into tiles, which then count as rows. A short row of
    which a thread loads one element at a time has one warp.
    \"""
    if rows * lanes >= 2**31:
        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")
    block = triton.next_power_of_2(lanes)
    alike = 0 if tiled else 32 * (lanes & -lanes)
    if tiled:
        block = min(block, {block[1]})
        rows *= triton.cdiv(lanes, block)
    short = {block[1]} if tiled else {block[2]}
    together = max(1, (short if block <= 64 else {block[1]}) // block)
    while together > 1 and rows < {SMS} * together:
        together //= 2
    each = {each}
    if {not_window}0 < alike < block <= 64:
        each, together = 512, min(together, 512 // block)
    return rows, block, together, max(1, min(16, block * together // each))
""",
    "_sweep": """
def _sweep(rows, lanes):
    \"""(rows, lanes and rows of a program, warps) where a program sweeps one long row.\"""
    if rows * lanes >= 2**31:
        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")
    block = min(triton.next_power_of_2(lanes), {block[4]})
    return rows, block, 1, max(1, min(8, block // 256))
""",
    "_square": """
def _square(rows, lanes, height):
    \"""(programs, lanes and height of a tile, warps); both its sides are runs of memory.\"""
    if rows * lanes * height >= 2**31:
        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")
    block, together = (min(triton.next_power_of_2(n), 64) for n in (lanes, height))
    while block * together > {block[1]} or (
        block * together > 256 and rows * lanes * height < {SMS} * block * together
    ):
        if block > together:
            block //= 2
        else:
            together //= 2
    programs = rows * triton.cdiv(lanes, block) * triton.cdiv(height, together)
    return programs, block, together, max(1, min(8, block * together // 256))
""",
    "_column": """
def _column(rows, lanes, height, tiled=False, swept=False):
    \"""(programs, lanes and height of a block, warps): a program reduces along the height.

    16 lanes fill a sector of memory; fewer are read where most processors would be idle.
    \"""
    if rows * lanes * height >= 2**31:
        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")
    block, together = triton.next_power_of_2(lanes), triton.next_power_of_2(height)
    if swept:
        together = min(together, max(1, {block[8]} // min(block, 32)))
    each = 256
    if tiled:
        block = min(block, 64, max({block[8]} // together, min(16, {HELD} // together)))
        while block > (16 if swept else 1) and rows * lanes < {SMS} * block:
            block //= 2
        rows *= triton.cdiv(lanes, block)
        if block < 16 and rows * block * together < {THREADED}:
            each = 64
    return rows, block, together, max(1, min(16, block * together // each))
""",
    "_attention": """
def _attention(heads, keys, queries, depth=64, each=2):
    \"""(programs, keys and queries of a program's block, warps).\"""
    if heads * max(keys, queries) * depth >= 2**31:
        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")
    block = max(16, triton.next_power_of_2(keys))
    scores = {block[8]} // max(1, depth * each // 256)
    if block > 128 or block * 16 > scores:
        block = max(16, min(64 if depth * each <= 256 else 32, scores // 16))
    together = max(16, min(128, scores // block, triton.next_power_of_2(queries)))
    while together > 16 and heads * triton.cdiv(queries, together) < {SMS}:
        together //= 2
    warps = {warps}
    return heads * triton.cdiv(queries, together), block, together, warps
""",
}
"""Functions that plans call to lay out a part; `{block[k]}` is k times a plan's block."""


def helpers(texts: str, block: int, warps: int) -> list[str]:
    """The functions that plans share, as far as `texts` call them."""
    called = set(re.findall(r"(?<!\w)(_\w+)\(", texts))  # and no function whose name ends so
    windows, ends = "window=True" in texts, "ends=True" in texts
    values = {
        "block": {k: k * block for k in (1, 2, 4, 8)},
        "warps": warps or "8 if together >= 128 else 4",
        "each": "64 if window else 256" if windows else "256",
        "option": ", window=False" * windows,
        "not_window": "not window and " * windows,
        "ends": ", ends=False" * ends,
        "odd": "n % 8 and not ends" if ends else "n % 8",
        "but": "; not where the last one has its own" * ends,
        "SMS": SMS,
        "HELD": HELD,
        "THREADED": SMS * ROOM,
    }
    lines = []
    for name, function in (("_larger", "maximum"), ("_smaller", "minimum")):
        if f", {name}," in texts:
            arguments = "a, b, propagate_nan=tl.PropagateNan.ALL"
            lines += ["", "", "@triton.jit", f"def {name}(a, b):", f"    return tl.{function}({arguments})"]
    for name, template in FUNCTIONS.items():
        if name in called:
            text = template.format(**values)
            if warps:
                text = re.sub(r"max\(1, min\(\d+, [\w* ]+ // \w+\)\)", str(warps), text)
            lines += ["", *text.rstrip().splitlines()]
    return lines


def grid(part: Part, suffix: str) -> str:
    """How many programs a part has."""
    if part.kind == "flat":
        return f"triton.cdiv({part.lanes}, block{suffix})"
    if part.kind == "rows":
        return f"triton.cdiv(rows{suffix}, together{suffix})"
    return f"rows{suffix}"


def function_of(part: Part) -> str:
    """The one of FUNCTIONS that lays out a part."""
    functions = {"flat": "_run", "long": "_sweep", "tall": "_column"}
    return functions.get(part.kind, f"_{part.kind}")


def options_of(part: Part) -> tuple[str, ...]:
    """The function's further arguments for the part."""
    tiled = part.tiled and part.kind in {"rows", "column", "tall"}
    window = part.loads > MOST_LOADS and part.kind in {"flat", "rows"}  # fewer elements a thread
    chosen = {"tiled": tiled, "swept": part.kind == "tall", "ends": part.ends, "window": window}
    return tuple(name for name, holds in chosen.items() if holds)


def part_lines(part: Part, suffix: str) -> list[str]:
    options = [f"{name}=True" for name in options_of(part)]
    if part.kind == "flat":
        return [f"    block{suffix}, warps{suffix} = _run({', '.join([part.lanes, *options])})"]
    arguments = [product(part.rows), part.lanes, *([part.height] if part.height else []), *options]
    arguments += [f"depth={part.padded['DEPTH']}", f"each={part.each}"] if part.padded else []
    results = ", ".join(f"{name}{suffix}" for name in ("rows", "block", "together", "warps"))
    return [f"    {results} = {function_of(part)}({', '.join(arguments)})"]


def part_numbers(part: Part, suffix: str) -> dict[str, str]:
    values = {"rows": "rows", "BLOCK": "block", "ROWS": "together"}
    names = (n.partition(":")[0] for n in part.numbers(""))
    padded = {f"{name}{suffix}": f"max(16, triton.next_power_of_2({n}))" for name, n in part.padded.items()}
    return {f"{name}{suffix}": f"{values[name]}{suffix}" for name in names if name in values} | padded


BANDWIDTH = 4e6
"""Bytes a microsecond of an H200's memory, as large kernels reach it."""
LATENCY = 0.7
"""Microseconds from a load to its value under load."""
UNDER_WAY = BANDWIDTH * LATENCY
"""Bytes that must be under way to use the bandwidth (Little's law)."""
PROCESSORS, THREADS, PROGRAMS, REGISTERS = 132, 2048, 32, 65536
"""The processors of an H200, and what each holds."""
START = 2.0
"""Microseconds of the device for an empty kernel."""


@dataclass(frozen=True)
class Launch:
    """The launch that a plan makes of a part."""

    programs: int
    block: int
    together: int
    warps: int
    stages: int = 0
    """The stages of an attention's loop over its keys."""


def launches(parts: Iterable[Part], plan: Plan) -> tuple[Launch, ...]:
    """The launches of a plan for parts in the example, by the very functions that its pass will hold."""
    arithmetic = SimpleNamespace(cdiv=_cdiv, next_power_of_2=lambda n: 1 << max(n - 1, 0).bit_length())
    functions: dict[str, Any] = {"triton": arithmetic}
    texts = "".join(f"{name}(" for name in FUNCTIONS) + "window=True ends=True"
    exec("\n".join(helpers(texts, plan.block, plan.warps)), functions)
    result = list[Launch]()
    for part in parts:
        function, options = functions[function_of(part)], dict.fromkeys(options_of(part), True)
        rows, lanes, height, _ = part.hints
        if part.kind == "flat":
            block, warps = function(lanes, **options)
            result.append(Launch(_cdiv(lanes, block), block, 1, warps))
            continue
        rows, block, together, warps = function(rows, lanes, *([height] if height else []), **options)
        programs = _cdiv(rows, together) if part.kind == "rows" else rows
        stages = plan.stages if part.kind == "attention" and lanes > block else 0
        result.append(Launch(programs, block, together, warps, stages))
    return tuple(result)


def microseconds(parts: list[Part], plan: Plan) -> float:
    """The parts' time on the device, one after the other."""
    return sum(_time(part, launch) for part, launch in zip(parts, launches(parts, plan), strict=True))


def _time(part: Part, launch: Launch) -> float:
    """Bytes over the bandwidth that the bytes under way allow; idle lanes cost a little."""
    rows, lanes, height, moved = part.hints
    elements = max(1, rows) * lanes * max(1, height)
    held = launch.block * launch.together
    threads = 32 * launch.warps
    registers = max(32, 2 * held // threads) * threads
    resident = min(PROGRAMS, THREADS // threads, max(1, REGISTERS // registers)) * PROCESSORS
    # A thread keeps a handful of 16-byte loads under way, not more.
    each = min(moved / launch.programs, threads * 64)
    under_way = min(launch.programs, resident) * each
    turns = _cdiv(launch.programs, resident)
    idle = held * launch.programs / max(elements, 1)
    slowed = max(1.0, UNDER_WAY / under_way, 0.5 * idle)
    return START + LATENCY + 0.1 * turns + moved / BANDWIDTH * slowed


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
