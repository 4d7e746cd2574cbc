"""The operators of packages as torch's own: `torch.ops.passagent.p_...`, each once in a process.

An operator is named by what it computes and by its plans, so that packages with equal names live together and
what two packages share is one operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.library import Library

from passagent.deploy import direct_calls
from passagent.deploy.planned_operator import PlannedOperator

NAMESPACE = "passagent"
_library: list[Library] = []
_registered: dict[str, PlannedOperator] = {}


def operator(name: str) -> PlannedOperator | None:
    """The operator of that name, if it is registered."""
    return _registered.get(name)


def overload(name: str) -> torch._ops.OpOverload:
    """The operator as a graph calls it."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default  # type: ignore[no-any-return]


def register(name: str, made: PlannedOperator, outputs: int) -> PlannedOperator:
    """Register an operator with so many outputs, unless it is registered. The one that is.

    On the device of its plans it replays them; anywhere else, for gradients, under autocast and for shapes
    alone it is its pattern.
    """
    if name in _registered:
        return _registered[name]
    if not _library:
        _library.append(Library(NAMESPACE, "FRAGMENT"))
    library = _library[0]
    given = ", ".join(f"Tensor a{number}" for number in range(made.count))
    result = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    library.define(f"{name}({given}) -> {result}", tags=tags)
    library.impl(name, made, made.device.upper())
    library.impl(name, made.by_pattern, "CompositeExplicitAutograd")
    for device in ("CPU", "CUDA"):
        library.impl(name, made.by_pattern, f"Autocast{device}")
    qualified = f"{NAMESPACE}::{name}"
    torch.library.register_fake(qualified, made.by_pattern, lib=library)
    torch.library.register_autograd(qualified, _backward(made), setup_context=_keep, lib=library)
    _registered[name] = made
    setattr(direct_calls, name, made)
    return made


def _keep(ctx: Any, inputs: tuple[torch.Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(made: PlannedOperator) -> Any:
    """The pattern's gradients: it is computed again. A pass for them could take this place."""

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        wanted = [number for number, needs in enumerate(ctx.needs_input_grad) if needs]

        def pattern(*some: torch.Tensor) -> Any:
            given = list(inputs)
            for number, value in zip(wanted, some, strict=True):
                given[number] = value
            found = made.pattern(*given)
            return found if len(found) > 1 else found[0]

        pulled = torch.func.vjp(pattern, *(inputs[number] for number in wanted))[1]
        found = dict(zip(wanted, pulled(grads if len(grads) > 1 else grads[0]), strict=True))
        return tuple(found.get(number) for number in range(len(inputs)))

    return backward
