"""The host side of a pass for CUDA: a plan for each kernel, and the function that calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from passagent.models.expert.plan import Plan
from passagent.models.expert.wrapper import (
    Route,
    Variant,
    ViewRoute,
    dtype_test,
    joined,
    tuple_text,
    view_lines,
)
from passagent.models.expert.writer import Part, TritonKernel

LinesOf = Callable[[Route, Variant, str], list[str]]
"""The text of a variant's kernel, as a function of that name that allocates its outputs."""

FUNCTIONS = ("_run", "_rows", "_sweep", "_square", "_column")
"""What plans call to lay out a part."""

SMS = 132
"""Programs that a GPU runs side by side, at least."""


def helpers(texts: str, block: int, warps: int) -> list[str]:
    """The functions that plans share, as far as `texts` call them."""
    count = "max(1, min({most}, {lanes} // 256))" if not warps else str(warps)
    lines = []
    if "_run(" in texts:
        lines += [
            "",
            "",
            "def _run(n):",
            '    """Lanes of a program and its warps, for one run of n elements."""',
            f"    block = {block}",
            f"    while block > 128 and n < {SMS} * block:",
            "        block //= 2",
            f"    return block, {count.format(most=8, lanes='block')}",
        ]
    if "_rows(" in texts:
        lines += [
            "",
            "",
            "def _rows(rows, lanes, tiled=False):",
            '    """(rows, lanes and rows of a program, warps) for `rows` rows of `lanes` elements.',
            "",
            "    A row is one program's, or split into tiles, which then count as rows.",
            '    """',
            "    if rows * lanes >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            "    block = triton.next_power_of_2(lanes)",
            "    if tiled:",
            f"        block = min(block, {block})",
            "        rows *= triton.cdiv(lanes, block)",
            f"    together = max(1, {block} // block)",
            f"    while together > 1 and rows < {SMS} * together:",
            "        together //= 2",
            f"    return rows, block, together, {count.format(most=16, lanes='block * together')}",
        ]
    if "_sweep(" in texts:
        lines += [
            "",
            "",
            "def _sweep(rows, lanes):",
            '    """(rows, lanes and rows of a program, warps) where a program sweeps one long row."""',
            "    if rows * lanes >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            f"    block = min(triton.next_power_of_2(lanes), {4 * block})",
            f"    return rows, block, 1, {count.format(most=8, lanes='block')}",
        ]
    if "_square(" in texts:
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
            f"    return programs, block, together, {count.format(most=8, lanes='block * together')}",
        ]
    if "_column(" in texts:
        lines += [
            "",
            "",
            "def _column(rows, lanes, height, tiled=False, swept=False):",
            '    """(programs, lanes and height of a block, warps): a program reduces along the height."""',
            "    if rows * lanes * height >= 2**31:",
            '        raise RuntimeError("more than 2**31 elements do not fit 32-bit indices")',
            "    block, together = triton.next_power_of_2(lanes), triton.next_power_of_2(height)",
            "    if swept:",
            f"        together = min(together, max(1, {8 * block} // min(block, 32)))",
            "    if tiled:",
            f"        block = min(block, 64, max(16, {8 * block} // together))",
            f"        while block > 16 and rows * lanes < {SMS} * block:",
            "            block //= 2",
            "        rows *= triton.cdiv(lanes, block)",
            f"    return rows, block, together, {count.format(most=16, lanes='block * together')}",
        ]
    return lines


def kernel_lines(route: Route, v: Variant, name: str) -> list[str]:
    """The plan `_plan<name>` and the kernel `name` of a variant."""
    kernel = v.kernel
    assert isinstance(kernel, TritonKernel)
    text = kernel.source.replace(f"def {kernel.name}(", f"def {name}(")
    text = text.replace(f"{kernel.name}_part", f"{name}_part")
    *before, last = text.split("\n\n\n")
    lines = [line for helper in before for line in ["", "", *helper.splitlines()]]
    lines += _plan(route, v, f"_plan{name}")
    return [*lines, "", "", f"@triton_kernel(_plan{name}, enable_fp_fusion=False)", *last.splitlines()]


def arguments(route: Route, v: Variant) -> list[str]:
    """What a variant's kernel is called with."""
    return [*(route.inputs[k] for k in v.kernel.inputs), *v.kernel.params]


def taken(route: Route) -> list[str]:
    """What a route's function is called with."""
    one = route.variants[0] if len(route.variants) == 1 else None
    return arguments(route, one) if one else [*route.inputs, *route.parameters]


def module(
    routes: Sequence[Route | ViewRoute], plan: Plan, entry: str, lines_of: LinesOf = kernel_lines
) -> list[str]:
    """All kernels, and `entry`: the region's function; where there are several, a name chooses."""
    kernels: dict[str, list[str]] = {}
    lines: list[str] = []
    for route in routes:
        names = [
            f"_{route.name}_kernel{k + 1 if len(route.variants) > 1 else ''}"
            for k in range(len(route.variants))
        ]
        for name, v in zip(names, route.variants, strict=True):
            lines += lines_of(route, v, name)  # type: ignore[arg-type]
        kernels[route.name] = names
    lines = [*helpers("\n".join(lines), plan.block, plan.warps), *lines]
    if len(routes) == 1:
        return [*lines, *_function(routes[0], kernels[entry], entry, public=True)]
    direct: dict[str, str] = {}
    for route in routes:
        if len(kernels[route.name]) == 1:
            direct[route.name] = kernels[route.name][0]
        else:
            direct[route.name] = f"_{route.name}"
            lines += _function(route, kernels[route.name], f"_{route.name}", public=False)
    lines += [
        "",
        "",
        "@torch.fx.wrap",
        f"def {entry}(route, *args):",
        '    """The region that `route` names."""',
    ]
    for name, function in list(direct.items())[:-1]:
        lines += [f'    if route == "{name}":', f"        return {function}(*args)"]
    return [*lines, f"    return {list(direct.values())[-1]}(*args)"]


def _function(route: Route | ViewRoute, kernels: list[str], entry: str, public: bool) -> list[str]:
    if isinstance(route, ViewRoute):
        return view_lines(route, entry, public)
    return entry_lines(route, kernels, entry, public)


def entry_lines(route: Route, kernels: list[str], entry: str, public: bool) -> list[str]:
    """`def <entry>`: calls the kernel, or the first variant of it that takes the shapes and dtypes."""
    calls = [f"{k}({', '.join(arguments(route, v))})" for k, v in zip(kernels, route.variants, strict=True)]
    lines = []
    if len(kernels) > 1:
        shapes = [f"s{k}" for k in range(len(route.inputs))]
        types = [f"d{k}" for k in range(len(route.inputs))]
        used = [*shapes, *types, *route.parameters]
        lines += ["", "", "@functools.lru_cache(maxsize=None)", f"def _variant{entry}({', '.join(used)}):"]
        lines.append(f'    """Which kernel takes these shapes and dtypes of {", ".join(route.inputs)}."""')
        for k, v in enumerate(route.variants):
            conditions = [c for j in range(len(route.inputs)) if (c := dtype_test(v, j))]
            lines += [
                f"    if {joined([*conditions, *guards(v, range(len(route.inputs)))])}:",
                f"        return {k}",
            ]
        lines.append(f"    raise RuntimeError({complaint(entry, shapes)})")
    head = ["", "", *(["@torch.fx.wrap"] if public else []), f"def {entry}({', '.join(taken(route))}):"]
    body = []
    if len(kernels) > 1:
        given = [f"{name}.shape" for name in route.inputs] + [f"{name}.dtype" for name in route.inputs]
        body.append(f"    variant = _variant{entry}({', '.join([*given, *route.parameters])})")
        for k, call in enumerate(calls[:-1]):
            body += [f"    if variant == {k}:", f"        return {call}"]
    return [*lines, *head, *body, f"    return {calls[-1]}"]


def guards(v: Variant, inputs: range | list[int]) -> list[str]:
    """Ranks first, so that the others index safely."""
    return [*(f"len(s{k}) == {v.ranks[k]}" for k in inputs), *v.guards]


def complaint(entry: str, shapes: list[str]) -> str:
    return f'f"{entry.strip("_")} does not take tensors of shapes {", ".join(f"{{{s}}}" for s in shapes)}"'


def _plan(route: Route, v: Variant, name: str) -> list[str]:
    kernel = v.kernel
    assert isinstance(kernel, TritonKernel)
    inputs = [route.inputs[k] for k in kernel.inputs]
    lines = ["", "", f"def {name}({', '.join(arguments(route, v))}):"]
    lines.append('    """Grid, outputs and sizes for these shapes; called once for each."""')
    shapes = [f"s{k}" for k in kernel.inputs]
    lines.append(f"    {', '.join(shapes)} = {', '.join(f'{x}.shape' for x in inputs)}")
    if len(route.variants) == 1:
        fits = joined(guards(v, kernel.inputs))
        lines += [f"    if not ({fits}):" if not fits.startswith("(") else f"    if not {fits}:"]
        lines.append(f"        raise RuntimeError({complaint(route.name, shapes)})")
    numbers = {f"n{k}": text for k, text in enumerate(kernel.sizes)}
    grids, warps = [], []
    for k, part in enumerate(kernel.parts):
        suffix = "" if len(kernel.parts) == 1 else str(k + 1)
        lines += _part_lines(part, suffix)
        numbers |= _part_numbers(part, suffix)
        grids.append(_grid(part, suffix))
        warps.append(f"warps{suffix}")
    if len(grids) > 1:
        numbers |= {f"programs{k + 1}": grid for k, grid in enumerate(grids[:-1])}
    outputs = ", ".join(f'"{name}": {made(route, v, k)}' for k, name in enumerate(output_names(v)))
    numbers["num_warps"] = warps[0] if len(warps) == 1 else f"max({', '.join(warps)})"
    lines.append("    sizes = {")
    lines += [f'        "{key}": {text},' for key, text in numbers.items()]
    lines.append("    }")
    lines.append(f"    return {' + '.join(grids)}, {{{outputs}}}, sizes")
    return lines


def _grid(part: Part, suffix: str) -> str:
    """How many programs a part has."""
    if part.kind == "flat":
        return f"triton.cdiv({part.lanes}, block{suffix})"
    if part.kind == "rows":
        return f"triton.cdiv(rows{suffix}, together{suffix})"
    return f"rows{suffix}"


def function_of(part: Part) -> str:
    """Of FUNCTIONS, the one that lays out a part."""
    known = {"flat": "_run", "rows": "_rows", "long": "_sweep", "square": "_square"}
    return known.get(part.kind, "_column")


def options_of(part: Part) -> tuple[str, ...]:
    """What else the function is told of the part."""
    tiled = part.tiled and part.kind in {"rows", "column", "tall"}
    return (*(["tiled"] if tiled else []), *(["swept"] if part.kind == "tall" else []))


def _part_lines(part: Part, suffix: str) -> list[str]:
    if part.kind == "flat":
        return [f"    block{suffix}, warps{suffix} = _run({part.lanes})"]
    given = [" * ".join(part.rows) or "1", part.lanes, *([part.height] if part.height else [])]
    given += [f"{name}=True" for name in options_of(part)]
    results = ", ".join(f"{name}{suffix}" for name in ("rows", "block", "together", "warps"))
    return [f"    {results} = {function_of(part)}({', '.join(given)})"]


def _part_numbers(part: Part, suffix: str) -> dict[str, str]:
    values = {"rows": "rows", "BLOCK": "block", "ROWS": "together"}
    names = (n.partition(":")[0] for n in part.numbers(""))
    return {f"{name}{suffix}": f"{values[name]}{suffix}" for name in names}


def output_names(v: Variant) -> list[str]:
    """As the kernel calls them."""
    return ["out"] if len(v.like) == 1 else [f"out{k}" for k in range(len(v.like))]


def made(route: Route, v: Variant, k: int) -> str:
    like = v.like[k]
    if like is not None:
        return route.inputs[like]
    generic = route.inputs[v.generic] if v.generic is not None else ""
    dtype = f"{generic}.dtype" if v.dtypes[k] == "half" else f"torch.{v.dtypes[k]}"
    return f"({tuple_text(v.shapes[k])}, {dtype})"
