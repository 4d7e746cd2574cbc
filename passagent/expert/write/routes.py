"""The host side of a pass: what its routes and variants are, and for CUDA a plan for each kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from passagent.expert.lower.symbolic_sizes import before_divisions, conditions
from passagent.expert.write import Function, Kernel, Part, TritonKernel, mentioned
from passagent.expert.write.cuda_grid import grid, part_lines, part_numbers
from passagent.kernels.layout import Order


@dataclass
class Variant:
    """A kernel for one way that shapes fit together (guards), and what the host computes for it."""

    kernel: Kernel
    shapes: list[list[str]]
    """Host expressions for the sizes of each output."""
    dtypes: list[str]
    """The dtype of each output: `half` (that of `generic`), or a torch dtype's name."""
    orders: list[Order]
    """How the outputs lie in memory."""
    returned: list[str]
    """The input that each of the region's results is, written in place; empty: an output."""
    guards: list[str] = field(default_factory=list)
    like: list[int | None] = field(default_factory=list)
    """The input that an output is shaped and typed like, if there is one."""
    generic: int | None = None
    """An input whose dtype is the generic one."""
    input_dtypes: tuple[str, ...] = ()
    generic_dtypes: tuple[str, ...] = ()
    """torch dtypes that the generic one stands for."""
    ranks: tuple[int, ...] = ()
    library: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Inputs that the library computes first, and their shapes in the example."""

    @property
    def parts(self) -> list[Part]:
        """The parts of a kernel for CUDA."""
        return self.kernel.parts if isinstance(self.kernel, TritonKernel) else []


@dataclass
class Route:
    """One pattern's way through the wrapper; without variants it is a way of views."""

    name: str
    inputs: list[str]
    parameters: list[str]
    variants: list[Variant]
    orders: list[Order] = field(default_factory=list)
    """How the inputs lie in memory."""
    moves: list[str] = field(default_factory=list)
    """Lines that do the region by eager's views and copies, where nothing is computed."""
    library: dict[str, str] = field(default_factory=dict)
    """The last inputs, which the library computes first: the expression of each."""
    named: list[dict[str, Any]] = field(default_factory=list)
    """The region's arguments in each of the task's graphs: shapes of inputs, values of parameters."""


def distinct(variants: list[Variant]) -> list[Variant]:
    """The variants that differ in more than the 16-bit type that they are given."""
    by_key: dict[Any, Variant] = {}
    for v in variants:
        first = by_key.setdefault(_key(v), v)
        first.generic_dtypes = tuple(sorted({*first.generic_dtypes, *v.generic_dtypes}))
    return list(by_key.values())


def _key(v: Variant) -> Any:
    return v.kernel.source, str([v.guards, v.shapes, v.dtypes, v.input_dtypes, v.orders])


def order_text(route: Route, names: list[str]) -> str:
    """`order={...}` for a kernel of these inputs; empty where all are row-major."""
    lying = zip(route.inputs, route.orders, strict=True)
    orders = [f'"{name}": {order}' for name, order in lying if order and name in names]
    return f"order={{{', '.join(orders)}}}" if orders else ""


def dtype_test(v: Variant, k: int) -> str:
    name = v.input_dtypes[k]
    if name == "half" and k == v.generic:
        return f"d{k} in {tuple_text([f'torch.{d}' for d in v.generic_dtypes])}"
    if name == "half":
        return f"d{k} == d{v.generic}"
    return f"d{k} == torch.{name}"


def joined(conditions: list[str]) -> str:
    text = " and ".join(conditions)
    return text if len(text) < 88 else "(\n        " + "\n        and ".join(conditions) + "\n    )"


def enclosed(conditions: list[str]) -> str:
    """The conditions in parentheses, as `not` needs them."""
    text = joined(conditions)
    return text if "\n" in text else f"({text})"


def tuple_text(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


FLOATS = frozenset({"half", "float32"})
"""Types of inputs that a kernel for one of them takes as well."""
MOST_NAMED = 32
"""Combinations of shapes that a kernel is compiled for, at most; it takes any others as arguments."""


def kernel_lines(route: Route, name: str) -> list[str]:
    """The plan `_plan<name>` and the kernel `name`; where there are variants, the plan chooses one."""
    several = len(route.variants) > 1
    lines, heads, constants = list[str](), list[Function](), dict[str, bool]()
    for k, v in enumerate(route.variants):
        assert isinstance(v.kernel, TritonKernel)
        *functions, head = v.kernel.functions(f"{name}{k + 1}" if several else name)
        heads.append(head)
        last = head.text()
        if several:
            functions.append(replace(head, parameters=head.used))
        lines += [line for function in functions for line in ["", "", *function.text()]]
    if several:
        last, constants = _choosing(route, name, heads)
    plan = _plan(route, name, list(constants))
    order = order_text(route, taken(route))
    options = ", ".join([f"_plan{name}", *([order] if order else []), "enable_fp_fusion=False"])
    return [*lines, *plan, "", "", f"@triton_kernel({options})", *last]


def _choosing(route: Route, name: str, heads: list[Function]) -> tuple[list[str], dict[str, bool]]:
    """The kernel that is one of the variants by its constant VARIANT, and its numbers."""
    passed = [*taken(route), *output_names(route.variants[0])]
    numbers: dict[str, bool] = {}
    for parameter in [parameter for head in heads for parameter in head.parameters]:
        number, constant, _ = parameter.partition(":")
        if number not in passed:
            numbers[number] = numbers.get(number, False) or bool(constant)
    texts = [f"{n}: tl.constexpr" for n in ["VARIANT", *(n for n, constant in numbers.items() if constant)]]
    texts = [*passed, *(n for n, constant in numbers.items() if not constant), *texts]
    lines = ["@triton.jit", f"def {name}({', '.join(texts)}):"]
    for k, head in enumerate(heads):
        used = [parameter.partition(":")[0] for parameter in head.used]
        test = "else:" if k == len(heads) - 1 else f"{'if' if k == 0 else 'elif'} VARIANT == {k}:"
        lines += [f"    {test}", f"        {head.name}({', '.join(f'{p}={p}' for p in used)})"]
    return lines, numbers


def kernel_arguments(route: Route, v: Variant) -> list[str]:
    """The arguments of a variant's kernel."""
    return [*(route.inputs[k] for k in v.kernel.inputs), *v.kernel.params]


def accepted(route: Route) -> list[str]:
    """The arguments of a route's function."""
    used = [*route.inputs, *route.parameters] if route.moves else taken(route)
    if not route.library:
        return used
    used += re.findall(r"\w+", " ".join(route.library.values()))
    names = [*route.inputs, *route.parameters]
    return [name for name in names if name in used and name not in route.library]


def taken(route: Route) -> list[str]:
    """The arguments of a route's kernel, or of all its kernels."""
    if len(route.variants) == 1:
        return kernel_arguments(route, route.variants[0])
    if not isinstance(route.variants[0].kernel, TritonKernel):
        return [*route.inputs, *route.parameters]
    used = {name for v in route.variants for name in kernel_arguments(route, v)}
    return [name for name in [*route.inputs, *route.parameters] if name in used]


def guards(v: Variant, inputs: range | list[int]) -> list[str]:
    """Ranks first, so that the others index safely; nothing is divided by zero."""
    ranks = [str(v.ranks[k]) for k in inputs]
    lengths = [f"len(s{k})" for k in inputs]
    if len(ranks) > 1:
        ranks, lengths = [tuple_text(ranks)], [tuple_text(lengths)]
    # A program's block has elements: Triton has no empty one, and masks need sizes above zero.
    parts = [part for part in v.parts if part.kind != "flat"]
    blocks = conditions(f"{n} > 0" for p in parts for n in (p.lanes, p.height, *p.padded.values()) if n)
    others = before_divisions([*v.guards, *blocks])
    return [*(f"{a} == {b}" for a, b in zip(lengths, ranks, strict=True)), *others]


def limits(v: Variant) -> list[str]:
    """Sizes for which a variant was written, where another serves as well."""
    return [p.limit for p in v.parts if p.limit]


def complaint(entry: str, shapes: list[str], dtypes: Sequence[str] = ()) -> str:
    described = ", ".join(f"{{{s}}}" for s in shapes)
    described += f" and dtypes {', '.join(f'{{{d}}}' for d in dtypes)}" if dtypes else ""
    return f'f"{entry.strip("_")} does not take tensors of shapes {described}"'


def _shapes(route: Route) -> tuple[list[str], list[str]]:
    """The names in the plan of what a kernel's sizes depend on, and the values in the task's graphs."""
    used = [k for k, name in enumerate(route.inputs) if name in taken(route)]
    parts = [part for v in route.variants for part in v.parts]
    texts = [t for v in route.variants for t in v.kernel.sizes]
    texts += [t for p in parts for t in [*p.rows, p.lanes, p.height]]
    parameters = mentioned(route.parameters, texts)
    names = [*(route.inputs[k] for k in used), *parameters]
    matching = [shapes for shapes in route.named if set(names) <= set(shapes)]
    values = [tuple_text([repr(shapes[name]) for name in names]) for shapes in matching]
    return [*(f"s{k}" for k in used), *parameters], list(dict.fromkeys(values))[:MOST_NAMED]


def _plan(route: Route, kernel: str, numbers: list[str]) -> list[str]:
    """The plan function of a kernel; `numbers` are those that every variant is to give."""
    used = sorted({k for v in route.variants for k in v.kernel.inputs})
    inputs = [route.inputs[k] for k in used]
    shapes, dtypes = [f"s{k}" for k in used], [f"d{k}" for k in used]
    _, rows = _shapes(route)
    lines = ["", "", f"_shapes{kernel} = {{", *(f"    {values}," for values in rows), "}"] if rows else []
    lines += ["", "", f"def _plan{kernel}({', '.join(taken(route))}):"]
    lines.append('    """Grid, outputs and sizes for these shapes; called once for each."""')
    lines.append(f"    {', '.join(shapes)} = {', '.join(f'{x}.shape' for x in inputs)}")
    complain = f"raise RuntimeError({complaint(route.name, shapes, dtypes)})"
    lines.append(f"    {', '.join(dtypes)} = {', '.join(f'{x}.dtype' for x in inputs)}")
    if len(route.variants) == 1:
        v = route.variants[0]
        lines.append(f"    if not {enclosed([*guards(v, used), *alike(v, used)])}:")
        return [*lines, f"        {complain}", *_layout(route, v, kernel, {})]
    for number, v in enumerate(route.variants):
        others = any(w is not v and _key(w)[1] == _key(v)[1] for w in route.variants)
        tests = [*guards(v, used), *(dtype_test(v, k) for k in used), *(limits(v) if others else [])]
        lines.append(f"    if {joined(tests)}:")
        constants = {"VARIANT": str(number), **dict.fromkeys(numbers, "1")}
        lines += [f"    {line}" for line in _layout(route, v, kernel, constants)]
    return [*lines, f"    {complain}"]


def alike(v: Variant, inputs: list[int]) -> list[str]:
    """Tests of dtypes where there is one variant: floats that are all of one dtype may be of another one."""
    types = {v.input_dtypes[k] for k in inputs}
    if len(types) == 1 and types <= FLOATS:
        first, *others = inputs
        dtypes = "(torch.float32, torch.float16, torch.bfloat16)"
        return [f"d{first} in {dtypes}", *(f"d{k} == d{first}" for k in others)]
    return [dtype_test(v, k) for k in inputs]


def cpp_kernel_lines(route: Route, v: Variant, name: str) -> list[str]:
    """The plan `_plan<name>` and the kernel `name` of a variant."""
    inputs, arguments_ = [route.inputs[k] for k in v.kernel.inputs], kernel_arguments(route, v)
    lines = ["", "", f"def _plan{name}({', '.join(arguments_)}):"]
    lines.append('    """Outputs and sizes for these shapes; called once for each."""')
    shapes, dtypes = [f"s{k}" for k in v.kernel.inputs], [f"d{k}" for k in v.kernel.inputs]
    checks = []
    if len(route.variants) == 1 and shapes:
        tests = [*guards(v, v.kernel.inputs), *alike(v, v.kernel.inputs)]
        checks = [f"    if not {enclosed(tests)}:"]
        checks.append(f"        raise RuntimeError({complaint(route.name, shapes, dtypes)})")
    outputs = ", ".join(f'"{out}": {made(route, v, k)}' for k, out in enumerate(output_names(v)))
    sizes = ", ".join(f'"n{k}": {text}' for k, text in enumerate(v.kernel.sizes))
    body = [*checks, f"    return {{{outputs}}}, {{{sizes}}}"]
    spoken = set(re.findall(r"\b[sd]\d+\b", "\n".join(body)))
    for names, what in ((shapes, "shape"), (dtypes, "dtype")):
        used = {name: f"{x}.{what}" for name, x in zip(names, inputs, strict=True) if name in spoken}
        lines += [f"    {', '.join(used)} = {', '.join(used.values())}"] if used else []
    order, source = order_text(route, arguments_), v.kernel.source.rstrip().splitlines()
    head = ["", "", f"{name} = cpp_kernel(", '    r"""', *source, '""",']
    tail = [f'    "{v.kernel.name}",', f"    _plan{name},", *([f"    {order},"] if order else []), ")"]
    return [*lines, *body, *head, *tail]


def _layout(route: Route, v: Variant, name: str, numbers: dict[str, str]) -> list[str]:
    """The lines that lay out a variant's parts and return the plan of the kernel `name`."""
    parts = v.parts
    numbers = numbers | {f"n{k}": text for k, text in enumerate(v.kernel.sizes)}
    lines, grids, warps = [], [], []
    for k, part in enumerate(parts):
        suffix = "" if len(parts) == 1 else str(k + 1)
        lines += part_lines(part, suffix)
        numbers |= part_numbers(part, suffix)
        grids.append(grid(part, suffix))
        warps.append(f"warps{suffix}")
    if len(grids) > 1:
        numbers |= {f"programs{k + 1}": grid for k, grid in enumerate(grids[:-1])}
    outputs = ", ".join(f'"{name}": {made(route, v, k)}' for k, name in enumerate(output_names(v)))
    stages = [part.stages for part in parts if part.stages]
    numbers |= {"num_stages": str(max(stages))} if stages else {}
    numbers["num_warps"] = warps[0] if len(warps) == 1 else f"max({', '.join(warps)})"
    sizes = [f'"{key}": {text}' for key, text in numbers.items() if _is_size(key)]
    others = [f'"{key}": {text}' for key, text in numbers.items() if not _is_size(key)]
    result = f"{{{', '.join(others)}}}"
    if sizes:
        depends, matching = _shapes(route)
        lines += ["    sizes = {", *(f"        {size}," for size in sizes), "    }"]
        if matching:
            lines.append(f"    if {tuple_text(depends)} in _shapes{name}:")
            lines.append("        sizes = {name: tl.constexpr(size) for name, size in sizes.items()}")
        result = f"sizes | {result}"
    return [*lines, f"    return {' + '.join(grids)}, {{{outputs}}}, {result}"]


def _is_size(number: str) -> bool:
    """Tell whether the kernel may be given it as an argument."""
    return number.rstrip("0123456789") in {"n", "rows", "programs"}


def output_names(v: Variant) -> list[str]:
    """The outputs' names in the kernel."""
    return ["out"] if len(v.like) == 1 else [f"out{k}" for k in range(len(v.like))]


def made(route: Route, v: Variant, k: int) -> str:
    like = v.like[k]
    if like is not None:
        return route.inputs[like]
    generic = route.inputs[v.generic] if v.generic is not None else ""
    dtype = f"{generic}.dtype" if v.dtypes[k] == "half" else f"torch.{v.dtypes[k]}"
    order = f", {v.orders[k]}" if v.orders[k] else ""
    return f"({tuple_text(v.shapes[k])}, {dtype}{order})"
