"""The operators of torch that a plan may call, by their schemas: functional, deterministic, of fixed shapes.

`aten::addmm.default` is the name of an operator, with its overload. What only allocates or views has steps of
its own. What writes into its arguments, draws random numbers or decides a shape by values is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from passagent.plan.computing import only_arranges
from passagent.tasks.reader import LibraryRule

CONVOLUTION = "aten::convolution.default"
_DRAWS = torch.Tag.nondeterministic_seeded
_SHAPES_BY_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def is_allowed(name: str, rule: LibraryRule) -> bool:
    """Tell whether a pass may call the operator by a rule."""
    return rule == "all" or name == CONVOLUTION


@functools.cache
def operator_of(name: str) -> Any:
    """The torch._ops.OpOverload of a name; None if this torch has none."""
    qualified, _, overload = name.partition(".")
    namespace, _, base = qualified.partition("::")
    packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
    return getattr(packet, overload, None) if isinstance(packet, torch._ops.OpOverloadPacket) else None


def name_of(operator: Any) -> str:
    """The name by which a plan calls an operator (torch._ops.OpOverload)."""
    return f"{operator.namespace}::{operator._opname}.{operator._overloadname}"


def readable(name: str) -> str:
    """The name as people write it: `aten.addmm`."""
    return name.replace("::", ".").removesuffix(".default")


def refusal(operator: Any, argument: Callable[[int, str], Any]) -> str | None:
    """Say why no plan calls an operator (any callable); None if one may.

    `argument` gives the number at a position or of a name, None where the call leaves it out.
    """
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
        return f"{operator} is no operator of torch; call what torch.nn.functional has, or write a kernel"
    schema, name = operator._schema, f"aten.{operator._opname}"
    if _DRAWS in operator.tags and not _drops_nothing(schema, argument):
        return f"{name} draws random numbers; leave it in the graph"
    if schema.is_mutable:
        return f"{name} writes into a tensor that exists; call the form that returns a new one"
    if only_arranges(operator):
        return f"{name} computes nothing; allocate, view or copy"
    returns = [str(entry.type) for entry in schema.returns]
    if "Tensor" not in returns or any(entry.alias_info for entry in schema.returns):
        return f"{name} returns no new tensor; write a kernel"
    if not any("Tensor" in str(entry.type) for entry in schema.arguments):
        return f"{name} computes from no tensor; make the values in a kernel"
    if _SHAPES_BY_VALUES & set(operator.tags):
        return f"{name} has a result whose size depends on values; write a kernel"
    return None


def _drops_nothing(schema: Any, argument: Callable[[int, str], Any]) -> bool:
    """Tell whether the probability by which an attention drops elements is 0."""
    for position, entry in enumerate(schema.arguments):
        if entry.name == "dropout_p":
            number = argument(position, entry.name)
            return bool((entry.default_value if number is None else number) == 0)
    return False
