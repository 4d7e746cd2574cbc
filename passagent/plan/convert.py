"""Between the arguments and results of a plan and Python's objects."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch

from passagent.evaluator.matching.unify import same_literal
from passagent.plan import memory
from passagent.plan.arguments import (
    Argument,
    BoolArg,
    ComplexArg,
    EllipsisArg,
    FloatArg,
    IntArg,
    NoneArg,
    ParameterArg,
    SliceArg,
    StrArg,
    TorchArg,
    TupleArg,
    ValueArg,
    python_number,
)
from passagent.plan.check import PlanError
from passagent.plan.model import Plan
from passagent.plan.values import InputValue


def python_value(argument: Argument) -> Any:
    """The object that a constant stands for. Raises PlanError for what stands for none."""
    if isinstance(argument, TupleArg):
        return named(argument, [python_value(item) for item in argument.items])
    if isinstance(argument, SliceArg):
        return slice(*map(python_value, argument.items))
    if isinstance(argument, (IntArg, FloatArg, BoolArg, ComplexArg)):
        return python_number(argument)
    if isinstance(argument, TorchArg):
        if argument.type == "device":
            return torch.device(argument.name)
        value = getattr(torch, argument.name, None)
        if not isinstance(value, getattr(torch, argument.type)):
            raise PlanError(f"there is no torch.{argument.name}")
        return value
    if isinstance(argument, (NoneArg, EllipsisArg)):
        return None if isinstance(argument, NoneArg) else ...
    if isinstance(argument, StrArg):
        return argument.value
    raise PlanError(f"a {argument.kind} stands for no object")


def bound_argument(argument: Argument, bindings: dict[str, Any]) -> Any:
    """An argument of a call: what a parameter of the pattern matched (`x`, `x[1]`), or a constant."""
    if isinstance(argument, ParameterArg):
        name, *places = argument.name.replace("]", "").split("[")
        value = bindings[name]
        for place in places:
            value = value[int(place)]
        return value
    if isinstance(argument, TupleArg):
        return tuple(bound_argument(item, bindings) for item in argument.items)
    return python_value(argument)


def named(argument: TupleArg, items: list[Any]) -> tuple[Any, ...]:
    """A tuple, with the names of a named tuple where the plan has them."""
    if not argument.fields:
        return tuple(items)
    return collections.namedtuple("Fields", argument.fields)(*items)  # type: ignore[misc]


def flattened(all_arguments: Iterable[Argument]) -> Iterator[Argument]:
    """Arguments, of tuples their parts."""
    for argument in all_arguments:
        if isinstance(argument, TupleArg):
            yield from flattened(argument.items)
        else:
            yield argument


def parts(value: Any) -> Iterator[Any]:
    """Objects, of tuples and lists their parts."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from parts(item)
    else:
        yield value


def rebuilt(shape: Argument, flat: Iterator[Any]) -> Any:
    """Flat results arranged as a plan returns them."""
    if isinstance(shape, TupleArg):
        return named(shape, [rebuilt(item, flat) for item in shape.items])
    return next(flat)


def explain(plan: Plan, device: torch.device) -> Callable[..., NoReturn]:
    """A function of flat arguments that are not what a plan is for. It raises TypeError, which says why."""
    inputs = [*flattened(plan.inputs)]

    def say(*args: Any, **names: Any) -> NoReturn:
        if names:
            raise TypeError("give arguments of a plan by position")
        if len(args) != len(inputs):
            raise TypeError(f"the plan is for {len(inputs)} arguments, not {len(args)}")
        for position, (argument, expected) in enumerate(zip(args, inputs, strict=True)):
            reason = _unlike(plan, expected, argument, device)
            if reason is not None:
                raise TypeError(f"argument {position} {reason}; record a plan for it")
        raise TypeError("two arguments that were one tensor when the plan was recorded are not, now")

    return say


def home(value: InputValue, device: torch.device) -> torch.device:
    """Where an input must be when the plan runs on `device`; one for a GPU may take tensors of the host."""
    return torch.device("cpu") if value.device == "cpu" else device


def _unlike(plan: Plan, expected: Argument, have: Any, device: torch.device) -> str | None:
    """In which way an argument is not what the plan is for, or None."""
    if not isinstance(expected, ValueArg):
        constant = python_value(expected)
        return None if same_literal(have, constant) else f"is {have!r:.60}, not {constant!r:.60}"
    value = plan.values[expected.value]
    if not isinstance(have, torch.Tensor):
        return f"is a {type(have).__name__}, not a tensor"
    assert isinstance(value, InputValue)
    comparisons = [
        ("on", have.device, home(value, device)),
        ("of", have.dtype, memory.dtype_of(value)),
        ("of shape", tuple(have.shape), value.shape),
    ]
    for word, is_now, was in comparisons:
        if is_now != was:
            return f"is {word} {is_now}, not {was}"
    if memory.steps(have.shape, have.stride()) != memory.steps(value.shape, value.stride):
        return f"has the strides {tuple(have.stride())}, not {value.stride}"
    if have.numel() and have.data_ptr() % value.alignment:
        return f"does not start at a multiple of {value.alignment} bytes"
    return None
