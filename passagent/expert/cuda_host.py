"""The host side of a pass for CUDA: a plan for each kernel, and the function that calls it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from passagent.expert.choices import Plan
from passagent.expert.text_parts import Part, TritonKernel
from passagent.expert.wording import product
from passagent.expert.wrapper import (
    Route,
    Variant,
    ViewRoute,
    dtype_test,
    joined,
    order_text,
    tuple_text,
    view_lines,
)

LinesOf = Callable[[Route, Any, str], list[str]]
"""The text of a variant's kernel, as a function of that name that allocates its outputs."""

FUNCTIONS = ("_run", "_rows", "_sweep", "_square", "_column")
"""What plans call to lay out a part."""

SMS = 132
"""Programs that a GPU runs side by side, at least."""


def helpers(texts: str, block: int, warps: int) -> list[str]:
    """The functions that plans share, as far as `texts` call them."""
    called = set(re.findall(r"(?<!\w)(_\w+)\(", texts))  # and no function whose name ends so
    count = "max(1, min({most}, {lanes} // 256))" if not warps else str(warps)
    lines = []
    if "_run" in called:
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
    if "_rows" in called:
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
    if "_sweep" in called:
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
            f"    return programs, block, together, {count.format(most=8, lanes='block * together')}",
        ]
    if "_column" in called:
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


def kernel_lines(route: Route, name: str) -> list[str]:
    """The plan `_plan<name>` and the kernel `name`; where there are variants, the plan chooses one."""
    several = len(route.variants) > 1
    lines: list[str] = []
    heads = []
    for k, v in enumerate(route.variants):
        own = f"{name}{k + 1}" if several else name
        kernel = v.kernel
        text = kernel.source.replace(f"def {kernel.name}(", f"def {own}(")
        functions = text.replace(f"{kernel.name}_part", f"{own}_part").split("\n\n\n")
        if not several:
            last = functions.pop().splitlines()
        else:
            heads.append((own, _parameters(functions[-1])))
        lines += [line for function in functions for line in ["", "", *function.splitlines()]]
    constants: dict[str, bool] = {}
    if several:
        last, constants = _choosing(route, name, heads)
    plan = _plan(route, f"_plan{name}", list(constants))
    order = order_text(route, taken(route))
    options = ", ".join([f"_plan{name}", *([order] if order else []), "enable_fp_fusion=False"])
    return [*lines, *plan, "", "", f"@triton_kernel({options})", *last]


def _parameters(function: str) -> dict[str, bool]:
    """Of a kernel's text: each parameter, and whether it is a constant."""
    inside = function[function.index("(") + 1 : function.index("):")]
    return {p.partition(":")[0]: ":" in p for p in inside.split(", ")}


def _choosing(
    route: Route, name: str, heads: list[tuple[str, dict[str, bool]]]
) -> tuple[list[str], dict[str, bool]]:
    """The kernel that is one of the variants by its constant VARIANT, and its numbers."""
    given = [*taken(route), *output_names(route.variants[0])]
    numbers: dict[str, bool] = {}
    for _, parameters in heads:
        for parameter, constant in parameters.items():
            if parameter not in given:
                numbers[parameter] = numbers.get(parameter, False) or constant
    texts = [f"{n}: tl.constexpr" for n in ["VARIANT", *(n for n, constant in numbers.items() if constant)]]
    texts = [*given, *(n for n, constant in numbers.items() if not constant), *texts]
    lines = ["@triton.jit", f"def {name}({', '.join(texts)}):"]
    for k, (own, parameters) in enumerate(heads):
        test = "else:" if k == len(heads) - 1 else f"{'if' if k == 0 else 'elif'} VARIANT == {k}:"
        lines += [f"    {test}", f"        {own}({', '.join(f'{p}={p}' for p in parameters)})"]
    return lines, numbers


def arguments(route: Route, v: Variant) -> list[str]:
    """What a variant's kernel is called with."""
    return [*(route.inputs[k] for k in v.kernel.inputs), *v.kernel.params]


def accepted(route: Route) -> list[str]:
    """What a route's function is called with."""
    return [*route.inputs, *route.parameters] if route.moves else taken(route)


def taken(route: Route) -> list[str]:
    """What a route's kernel is called with."""
    if len(route.variants) == 1:
        return arguments(route, route.variants[0])
    if not isinstance(route.variants[0].kernel, TritonKernel):
        return [*route.inputs, *route.parameters]
    used = {name for v in route.variants for name in arguments(route, v)}
    return [name for name in [*route.inputs, *route.parameters] if name in used]


def module(
    routes: Sequence[Route | ViewRoute], plan: Plan, entry: str, lines_of: LinesOf | None = None
) -> list[str]:
    """All kernels, and `entry`: the region's function; where there are several, a name chooses.

    `lines_of` writes the kernel of a variant for another target than CUDA.
    """
    kernels: dict[str, list[str]] = {}
    lines: list[str] = []
    for route in routes:
        one = len(route.variants) == 1 or lines_of is None
        name = f"_{route.name}_kernel"
        names = [name] if one else [f"{name}{k + 1}" for k in range(len(route.variants))]
        if isinstance(route, ViewRoute):
            names = []
        elif lines_of is None:
            lines += kernel_lines(route, name)
        else:
            for own, v in zip(names, route.variants, strict=True):
                lines += lines_of(route, v, own)
        kernels[route.name] = names
    lines = [*helpers("\n".join(lines), plan.block, plan.warps), *lines]
    if len(routes) == 1:
        return [*lines, *_function(routes[0], kernels[entry], entry, public=True)]
    direct: dict[str, str] = {}
    for route in routes:
        if len(kernels[route.name]) == 1 and not (isinstance(route, Route) and route.moves):
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
    given = [taken(route)] if len(kernels) == 1 else [arguments(route, v) for v in route.variants]
    calls = [f"{k}({', '.join(names)})" for k, names in zip(kernels, given, strict=True)]
    lines = []
    if len(kernels) > 1:
        shapes = [f"s{k}" for k in range(len(route.inputs))]
        types = [f"d{k}" for k in range(len(route.inputs))]
        used = [*shapes, *types, *route.parameters]
        lines += ["", "", "@functools.cache", f"def _variant{entry}({', '.join(used)}):"]
        lines.append(f'    """Which kernel takes these shapes and dtypes of {", ".join(route.inputs)}."""')
        for k, v in enumerate(route.variants):
            conditions = [c for j in range(len(route.inputs)) if (c := dtype_test(v, j))]
            lines += [
                f"    if {joined([*conditions, *guards(v, range(len(route.inputs)))])}:",
                f"        return {k}",
            ]
        lines.append(f"    raise RuntimeError({complaint(entry, shapes)})")
    head = ["", "", *(["@torch.fx.wrap"] if public else []), f"def {entry}({', '.join(accepted(route))}):"]
    body = []
    if route.moves:
        body += [
            f"    if not {route.inputs[0]}.is_contiguous():",
            "        # It may lie as the result is to lie: then eager's views move nothing.",
            *(f"    {line}" for line in route.moves),
        ]
    if len(kernels) > 1:
        seen = [f"{name}.shape" for name in route.inputs] + [f"{name}.dtype" for name in route.inputs]
        body.append(f"    variant = _variant{entry}({', '.join([*seen, *route.parameters])})")
        for k, call in enumerate(calls[:-1]):
            body += [f"    if variant == {k}:", f"        return {call}"]
    return [*lines, *head, *body, f"    return {calls[-1]}"]


def guards(v: Variant, inputs: range | list[int]) -> list[str]:
    """Ranks first, so that the others index safely."""
    ranks = [str(v.ranks[k]) for k in inputs]
    lengths = [f"len(s{k})" for k in inputs]
    if len(ranks) > 1:
        ranks, lengths = [tuple_text(ranks)], [tuple_text(lengths)]
    return [*(f"{a} == {b}" for a, b in zip(lengths, ranks, strict=True)), *v.guards]


def limits(v: Variant) -> list[str]:
    """Sizes for which a variant was written, where another serves as well."""
    return [p.limit for p in v.kernel.parts if p.limit] if isinstance(v.kernel, TritonKernel) else []


def complaint(entry: str, shapes: list[str]) -> str:
    return f'f"{entry.strip("_")} does not take tensors of shapes {", ".join(f"{{{s}}}" for s in shapes)}"'


def _plan(route: Route, name: str, numbers: list[str]) -> list[str]:
    """The plan function; `numbers` are those that every variant is to give."""
    used = sorted({k for v in route.variants for k in v.kernel.inputs})
    inputs = [route.inputs[k] for k in used]
    shapes = [f"s{k}" for k in used]
    lines = ["", "", f"def {name}({', '.join(taken(route))}):"]
    lines.append('    """Grid, outputs and sizes for these shapes; called once for each."""')
    lines.append(f"    {', '.join(shapes)} = {', '.join(f'{x}.shape' for x in inputs)}")
    complain = f"raise RuntimeError({complaint(route.name, shapes)})"
    if len(route.variants) == 1:
        fits = joined(guards(route.variants[0], used))
        lines += [f"    if not ({fits}):" if not fits.startswith("(") else f"    if not {fits}:"]
        return [*lines, f"        {complain}", *_layout(route, route.variants[0], {})]
    lines.append(f"    {', '.join(f'd{k}' for k in used)} = {', '.join(f'{x}.dtype' for x in inputs)}")
    for number, v in enumerate(route.variants):
        tests = [test for k in used if (test := dtype_test(v, k))]
        tests += limits(v)
        lines.append(f"    if {joined([*guards(v, used), *tests])}:")
        given = {"VARIANT": str(number), **dict.fromkeys(numbers, "1")}
        lines += [f"    {line}" for line in _layout(route, v, given)]
    return [*lines, f"    {complain}"]


def _layout(route: Route, v: Variant, numbers: dict[str, str]) -> list[str]:
    """The lines that lay out a variant's parts and return the plan."""
    kernel = v.kernel
    assert isinstance(kernel, TritonKernel)
    numbers = numbers | {f"n{k}": text for k, text in enumerate(kernel.sizes)}
    lines, grids, warps = [], [], []
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
    given = [product(part.rows), part.lanes, *([part.height] if part.height else [])]
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
    order = f", {v.orders[k]}" if v.orders[k] else ""
    return f"({tuple_text(v.shapes[k])}, {dtype}{order})"
