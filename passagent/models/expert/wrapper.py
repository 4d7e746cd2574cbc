"""The host side of a pass: plans keyed by shapes, allocation, the call of the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

from passagent.models.expert.writer import Kernel


@dataclass
class Variant:
    """A kernel for one way that shapes fit together (guards), and what the host computes for it."""

    kernel: Kernel
    guards: list[str]
    shapes: list[list[str]]
    """Host expressions for the sizes of each output."""
    dtypes: list[str]
    """Of each output: `half` (that of `generic`), or a torch dtype's name."""
    like: list[int | None]
    """The input that an output is shaped and typed like, if there is one."""
    generic: int | None
    """An input whose dtype is the generic one."""
    input_dtypes: tuple[str, ...]
    generic_dtypes: tuple[str, ...]
    """torch dtypes that the generic one stands for."""
    ranks: tuple[int, ...]


@dataclass
class Route:
    """One pattern's way through the wrapper."""

    name: str
    inputs: list[str]
    parameters: list[str]
    variants: list[Variant]


@dataclass
class ViewRoute:
    """A pattern of views, which the wrapper takes itself."""

    name: str
    inputs: list[str]
    parameters: list[str]
    body: list[str]
    variants: tuple[Variant, ...] = ()


def write_route(route: Route | ViewRoute, kernels: dict[str, str], entry: str, public: bool) -> list[str]:
    """`def <entry>` and its plan; `kernels` names the kernel object of each kernel source."""
    if isinstance(route, ViewRoute):
        head = ["", "", *(["@torch.fx.wrap"] if public else [])]
        return [*head, f"def {entry}({', '.join([*route.inputs, *route.parameters])}):", *route.body]
    several = len(route.variants) > 1
    dtypes_matter = len({v.input_dtypes for v in route.variants}) > 1
    used = _used_shapes(route, several)
    plan_arguments = [f"s{k}" for k in used] + used_parameters(route)
    if dtypes_matter:
        plan_arguments += [f"d{k}" for k in range(len(route.inputs))]
    planned = any(v.guards or v.kernel.sizes or None in v.like for v in route.variants)
    lines = []
    if planned:
        lines += _plan(route, entry, plan_arguments, dtypes_matter)
    lines += ["", ""]
    if public:
        lines.append("@torch.fx.wrap")
    lines.append(f"def {entry}({', '.join([*route.inputs, *route.parameters])}):")
    calls = [f"{route.inputs[k]}.shape" for k in used] + used_parameters(route)
    if dtypes_matter:
        calls += [f"{name}.dtype" for name in route.inputs]
    if planned:
        lines.append(f"    plan = _plan_{entry.lstrip('_')}({', '.join(calls)})")
    for k, variant in enumerate(route.variants):
        body = _body(route, variant, kernels[variant.kernel.source], several)
        if several and k < len(route.variants) - 1:
            lines += [f"    if plan[0] == {k}:", *[f"    {line}" for line in body]]
        else:
            lines += body
    return lines


def _used_shapes(route: Route, several: bool) -> list[int]:
    texts = " ".join(
        [t for v in route.variants for t in [*v.guards, *v.kernel.sizes]]
        + [t for v in route.variants for k, s in enumerate(v.shapes) if v.like[k] is None for t in s]
    )
    return [k for k in range(len(route.inputs)) if re.search(rf"\bs{k}\b", texts)]


def used_parameters(route: Route) -> list[str]:
    texts = " ".join(
        [t for v in route.variants for t in [*v.guards, *v.kernel.sizes]]
        + [t for v in route.variants for s in v.shapes for t in s]
    )
    return [p for p in route.parameters if re.search(rf"\b{p}\b", texts)]


def _plan(route: Route, entry: str, arguments: list[str], dtypes_matter: bool) -> list[str]:
    lines = [
        "",
        "",
        "@functools.lru_cache(maxsize=None)",
        f"def _plan_{entry.lstrip('_')}({', '.join(arguments)}):",
    ]
    described = ", ".join(f"s{k} of {name}" for k, name in enumerate(route.inputs) if f"s{k}" in arguments)
    lines.append(
        f'    """What the call needs to know of its shapes ({described}), computed once for each."""'
    )
    several = len(route.variants) > 1
    for k, v in enumerate(route.variants):
        conditions = [f"({_ranks(v, arguments)})"] if _ranks(v, arguments) else []
        conditions += [f"{g}" for g in v.guards]
        if dtypes_matter:
            kinds = [dtype_test(v, j) for j in range(len(route.inputs))]
            conditions = [c for c in kinds if c] + conditions
        result = _result(v, k if several else None)
        if conditions:
            lines.append(f"    if {joined(conditions)}:")
            lines.append(f"        return {result}")
        else:
            lines.append(f"    return {result}")
            return lines
    known = ", ".join(f"{{{a}}}" for a in arguments if a.startswith("s"))
    lines.append(f'    raise RuntimeError(f"{entry.lstrip("_")} does not take tensors of shapes {known}")')
    return lines


def _ranks(v: Variant, arguments: list[str]) -> str:
    """Ranks are checked first, so that guards index safely."""
    tests = []
    for k, rank in enumerate(v.ranks):
        if f"s{k}" in arguments:
            tests.append(f"len(s{k}) == {rank}")
    return " and ".join(tests)


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


def tuple_text(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _result(v: Variant, number: int | None) -> str:
    parts = [] if number is None else [str(number)]
    parts += [tuple_text(shape) for k, shape in enumerate(v.shapes) if v.like[k] is None]
    parts += v.kernel.sizes
    return tuple_text(parts)


def _body(route: Route, v: Variant, kernel: str, several: bool) -> list[str]:
    lines = []
    shapes = [f"shape{k}" for k in range(len(v.shapes)) if v.like[k] is None]
    sizes = [f"n{k}" for k in range(len(v.kernel.sizes))]
    names = [*(["_"] if several else []), *shapes, *sizes]
    if shapes or sizes:
        lines.append(f"    {', '.join(names)}{',' if len(names) == 1 else ''} = plan")
    for k in v.kernel.inputs:
        lines.append(f"    {route.inputs[k]} = {route.inputs[k]}.contiguous()")
    outputs = []
    for k, like in enumerate(v.like):
        name = "out" if len(v.like) == 1 else f"out{k}"
        outputs.append(name)
        if like is not None:
            lines.append(f"    {name} = torch.empty_like({route.inputs[like]})")
        else:
            source = route.inputs[
                v.generic if v.generic is not None else v.kernel.inputs[0] if v.kernel.inputs else 0
            ]
            dtype = f"{source}.dtype" if v.dtypes[k] == "half" else f"torch.{v.dtypes[k]}"
            lines.append(f"    {name} = torch.empty(shape{k}, dtype={dtype}, device={source}.device)")
    arguments = [*[route.inputs[k] for k in v.kernel.inputs], *outputs, *sizes, *v.kernel.params]
    lines.append(f"    {kernel}({', '.join(arguments)})")
    lines.append(f"    return {', '.join(outputs)}")
    return lines
