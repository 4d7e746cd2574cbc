"""How programs share out a kernel's elements: the functions that plans call, and the lines that call them."""

from __future__ import annotations

import re

from passagent.expert.schedule.parts import HELD
from passagent.expert.write.wording import product
from passagent.expert.write.writer import Part

FUNCTIONS = ("_run", "_rows", "_sweep", "_square", "_column", "_split", "_attention")
"""Functions that plans call to lay out a part."""

MOST_LOADS = 16
"""The number of an element's inputs from which a thread handles two elements at a time and not eight."""

SMS = 132
"""Programs that a GPU runs side by side, at least."""

ROOM = 4096
"""Elements for which it has as many threads as two of them need, of each of those programs."""


def helpers(texts: str, block: int, warps: int) -> list[str]:
    """The functions that plans share, as far as `texts` call them."""
    called = set(re.findall(r"(?<!\w)(_\w+)\(", texts))  # and no function whose name ends so
    windows = "window=True" in texts
    each, option = ("64 if window else 256", ", window=False") if windows else ("256", "")
    ends, odd = (", ends=False", "n % 8 and not ends") if "ends=True" in texts else ("", "n % 8")
    count = "max(1, min({most}, {lanes} // {each}))" if not warps else str(warps)
    lines = []
    for name, function in (("_larger", "maximum"), ("_smaller", "minimum")):
        if f", {name}," in texts:
            arguments = "a, b, propagate_nan=tl.PropagateNan.ALL"
            lines += ["", "", "@triton.jit", f"def {name}(a, b):", f"    return tl.{function}({arguments})"]
    if "_run" in called:
        lines += [
            "",
            "",
            f"def _run(n{ends}{option}):",
            '    """Lanes of a program and its warps, for one run of n elements.',
            "",
            "    A thread loads at once as many as divide n: among others a mask may end"
            f"{'; not where the last one has its own' if ends else ''}.",
            '    """',
            "    if n >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            f"    block, each = {block}, {each}",
            f"    if {odd}:",
            "        each = min(each, 32 * (n & -n))",
            "        block = min(block, 8 * each)",
            f"    while block > 128 and n < {SMS} * block:",
            "        block //= 2",
            f"    return block, {count.format(most=8, lanes='block', each='each')}",
        ]
    if "_rows" in called:
        lines += [
            "",
            "",
            f"def _rows(rows, lanes, tiled=False{option}):",
            '    """(rows, lanes and rows of a program, warps) for `rows` rows of `lanes` elements.',
            "",
            "    A row is one program's, or split into tiles, which then count as rows. A short row of",
            "    which a thread loads one element at a time has one warp.",
            '    """',
            "    if rows * lanes >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            "    block = triton.next_power_of_2(lanes)",
            "    alike = 0 if tiled else 32 * (lanes & -lanes)",
            "    if tiled:",
            f"        block = min(block, {block})",
            "        rows *= triton.cdiv(lanes, block)",
            f"    short = {block} if tiled else {2 * block}",
            f"    together = max(1, (short if block <= 64 else {block}) // block)",
            f"    while together > 1 and rows < {SMS} * together:",
            "        together //= 2",
            f"    each = {'64 if window else ' * windows}256",
            f"    if {'not window and ' * windows}0 < alike < block <= 64:",
            "        each, together = 512, min(together, 512 // block)",
            "    return rows, block, together, "
            f"{count.format(most=16, lanes='block * together', each='each')}",
        ]
    if "_sweep" in called:
        lines += [
            "",
            "",
            "def _sweep(rows, lanes):",
            '    """(rows, lanes and rows of a program, warps) where a program sweeps one long row."""',
            "    if rows * lanes >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            f"    block = min(triton.next_power_of_2(lanes), {4 * block})",
            f"    return rows, block, 1, {count.format(most=8, lanes='block', each=256)}",
        ]
    if "_square" in called:
        lines += [
            "",
            "",
            "def _square(rows, lanes, height):",
            '    """(programs, lanes and height of a tile, warps); both its sides are runs of memory."""',
            "    if rows * lanes * height >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            "    block, together = (min(triton.next_power_of_2(n), 64) for n in (lanes, height))",
            f"    while block * together > {block} or (",
            f"        block * together > 256 and rows * lanes * height < {SMS} * block * together",
            "    ):",
            "        if block > together:",
            "            block //= 2",
            "        else:",
            "            together //= 2",
            "    programs = rows * triton.cdiv(lanes, block) * triton.cdiv(height, together)",
            "    return programs, block, together, "
            f"{count.format(most=8, lanes='block * together', each=256)}",
        ]
    if "_column" in called:
        lines += [
            "",
            "",
            "def _column(rows, lanes, height, tiled=False, swept=False):",
            '    """(programs, lanes and height of a block, warps): a program reduces along the height.',
            "",
            "    16 lanes fill a sector of memory; fewer are read where most processors would be idle.",
            '    """',
            "    if rows * lanes * height >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            "    block, together = triton.next_power_of_2(lanes), triton.next_power_of_2(height)",
            "    if swept:",
            f"        together = min(together, max(1, {8 * block} // min(block, 32)))",
            "    each = 256",
            "    if tiled:",
            f"        block = min(block, 64, max({8 * block} // together, min(16, {HELD} // together)))",
            f"        while block > (16 if swept else 1) and rows * lanes < {SMS} * block:",
            "            block //= 2",
            "        rows *= triton.cdiv(lanes, block)",
            f"        if block < 16 and rows * block * together < {SMS * ROOM}:",
            "            each = 64",
            "    return rows, block, together, "
            f"{count.format(most=16, lanes='block * together', each='each')}",
        ]
    if "_split" in called:
        lines += [
            "",
            "",
            "def _split(rows, lanes, height=0):",
            '    """(programs, lanes and height of a block, warps): programs share what is reduced.',
            "",
            "    It lies along the height, or along the lanes where there is none.",
            '    """',
            "    if rows * lanes * max(1, height) >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            f"    most = {16 * block} if height else {8 * block}",
            f"    while most > 256 and rows * lanes * max(1, height) < {2 * SMS} * most:",
            "        most //= 2",
            "    block = min(triton.next_power_of_2(lanes), 64) if height else most",
            "    together = most // block",
            "    programs = rows * triton.cdiv(lanes, block) * triton.cdiv(max(1, height), together)",
            f"    return programs, block, together, {count.format(most=16, lanes='most', each='512')}",
        ]
    if "_attention" in called:
        lines += [
            "",
            "",
            "def _attention(heads, keys, queries, depth=64, each=2):",
            '    """(programs, keys and queries of a program\'s block, warps)."""',
            "    if heads * max(keys, queries) * depth >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            "    block = max(16, triton.next_power_of_2(keys))",
            f"    scores = {8 * block} // max(1, depth * each // 256)",
            "    if block > 128 or block * 16 > scores:",
            "        block = max(16, min(64 if depth * each <= 256 else 32, scores // 16))",
            "    together = max(16, min(128, scores // block, triton.next_power_of_2(queries)))",
            f"    while together > 16 and heads * triton.cdiv(queries, together) < {SMS}:",
            "        together //= 2",
            f"    warps = {warps or '8 if together >= 128 else 4'}",
            "    return heads * triton.cdiv(queries, together), block, together, warps",
        ]
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
    functions = {"flat": "_run", "rows": "_rows", "long": "_sweep", "square": "_square"}
    functions |= {"attention": "_attention", "split": "_split", "levels": "_split"}
    return functions.get(part.kind, "_column")


def options_of(part: Part) -> tuple[str, ...]:
    """The function's further arguments for the part."""
    tiled = part.tiled and part.kind in {"rows", "column", "tall"}
    window = part.loads > MOST_LOADS and part.kind in {"flat", "rows"}  # fewer elements a thread
    ends = part.kind == "flat" and bool(part.limit)  # where what is odd ends, a program has its own mask
    chosen = {"tiled": tiled, "swept": part.kind == "tall", "ends": ends, "window": window}
    return tuple(name for name, holds in chosen.items() if holds)


def part_lines(part: Part, suffix: str) -> list[str]:
    if part.kind == "flat":
        arguments = [part.lanes, *(f"{name}=True" for name in options_of(part))]
        return [f"    block{suffix}, warps{suffix} = _run({', '.join(arguments)})"]
    arguments = [product(part.rows), part.lanes, *([part.height] if part.height else [])]
    arguments += [f"{name}=True" for name in options_of(part)]
    arguments += [f"depth={part.padded['DEPTH']}", f"each={part.each}"] if part.padded else []
    results = ", ".join(f"{name}{suffix}" for name in ("rows", "block", "together", "warps"))
    return [f"    {results} = {function_of(part)}({', '.join(arguments)})"]


def part_numbers(part: Part, suffix: str) -> dict[str, str]:
    values = {"rows": "rows", "BLOCK": "block", "ROWS": "together"}
    names = (n.partition(":")[0] for n in part.numbers(""))
    padded = {f"{name}{suffix}": f"max(16, triton.next_power_of_2({n}))" for name, n in part.padded.items()}
    return {f"{name}{suffix}": f"{values[name]}{suffix}" for name in names if name in values} | padded
