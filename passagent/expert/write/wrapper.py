"""The host side of a pass: plans keyed by shapes, allocation, the call of the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from passagent.expert.write.writer import Kernel
from passagent.kernels.layout import Order


@dataclass
class Variant:
    """A kernel for one way that shapes fit together (guards), and what the host computes for it."""

    kernel: Kernel
    guards: list[str]
    shapes: list[list[str]]
    """Host expressions for the sizes of each output."""
    dtypes: list[str]
    """The dtype of each output: `half` (that of `generic`), or a torch dtype's name."""
    like: list[int | None]
    """The input that an output is shaped and typed like, if there is one."""
    generic: int | None
    """An input whose dtype is the generic one."""
    input_dtypes: tuple[str, ...]
    generic_dtypes: tuple[str, ...]
    """torch dtypes that the generic one stands for."""
    ranks: tuple[int, ...]
    orders: list[Order]
    """How the outputs lie in memory."""
    returned: list[str]
    """The input that each of the region's results is, written in place; empty: an output."""
    before: list[Variant] = field(default_factory=list)
    """Variants that run first: their outputs are inputs of the next ones, and of this
    (long_reductions.py)."""
    buffers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The outputs' names as inputs of the next kernels, and their shapes in the example."""
    library: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Inputs that the library computes first, and their shapes in the example."""
    limit: str = ""
    """A host condition under which kernels before pay."""


@dataclass
class Route:
    """One pattern's way through the wrapper."""

    name: str
    inputs: list[str]
    parameters: list[str]
    variants: list[Variant]
    orders: list[Order]
    """How the inputs lie in memory."""
    moves: list[str] = field(default_factory=list)
    """Lines that do the region by eager's views and copies, where nothing is computed."""
    library: dict[str, str] = field(default_factory=dict)
    """The last inputs, which the library computes first: the expression of each."""
    named: list[dict[str, Any]] = field(default_factory=list)
    """The region's arguments in each of the task's graphs: shapes of inputs, values of parameters."""


@dataclass
class ViewRoute:
    """A pattern of views, which the wrapper takes itself."""

    name: str
    inputs: list[str]
    parameters: list[str]
    body: list[str]
    variants: tuple[Variant, ...] = ()


def distinct(variants: list[Variant]) -> list[Variant]:
    """The variants that differ in more than the 16-bit type that they are given."""
    by_key: dict[Any, Variant] = {}
    for v in variants:
        first = by_key.setdefault(_key(v), v)
        for a, b in zip([*first.before, first], [*v.before, v], strict=True):
            a.generic_dtypes = tuple(sorted({*a.generic_dtypes, *b.generic_dtypes}))
    return list(by_key.values())


def _key(v: Variant) -> Any:
    description = str([v.guards, v.shapes, v.dtypes, v.input_dtypes, v.orders, v.limit])
    return (v.kernel.source, description, *map(_key, v.before))


def view_lines(route: ViewRoute, entry: str, public: bool) -> list[str]:
    """`def <entry>` of a pattern of views."""
    head = ["", "", *(["@torch.fx.wrap"] if public else [])]
    return [*head, f"def {entry}({', '.join([*route.inputs, *route.parameters])}):", *route.body]


def used_parameters(route: Route) -> list[str]:
    variants = [w for v in route.variants for w in [*v.before, v]]
    texts = " ".join(
        [t for v in variants for t in [*v.guards, *v.kernel.sizes, v.limit]]
        + [t for v in variants for s in v.shapes for t in s]
    )
    return [p for p in route.parameters if re.search(rf"\b{p}\b", texts)]


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
