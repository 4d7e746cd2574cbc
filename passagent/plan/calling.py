"""Call operators of torch when a plan is replayed, and see that they return what the plan says."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from passagent.kernels.layout import strides
from passagent.plan import library, memory
from passagent.plan.arguments import Argument, TupleArg, ValueArg
from passagent.plan.check import PlanError
from passagent.plan.convert import flattened, parts, python_value, rebuilt
from passagent.plan.model import Alloc, Copy, OperatorCall, Pass, Plan
from passagent.plan.values import ConstantValue, Value, ViewValue

Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""Allocates a tensor of a size, strides and dtype."""


class Operator:
    """An operator of a plan; called with the tensors of the values `tensors`, it returns a tuple of tensors.

    A result with other strides than the plan's is copied: which ones an operator gives may depend on the
    device and on torch. With `empty` all results are copied, into memory that it allocates. Raises PlanError
    for an operator that this torch does not have, and when called for results of other shapes or dtypes.
    """

    def __init__(self, plan: Plan, step: OperatorCall, empty: Empty | None) -> None:
        self.tensors: list[int] = []
        self._name, self._operator, self._empty = step.operator, library.operator_of(step.operator), empty
        if self._operator is None:
            raise PlanError(f"calls {step.operator}, which this torch does not have")
        self._arguments = [self._finder(argument) for argument in step.arguments]
        self._keywords = {name: self._finder(argument) for name, argument in step.keywords.items()}
        self._expected = [None if number is None else plan.values[number] for number in step.values]

    def _finder(self, argument: Argument) -> Callable[[tuple[torch.Tensor, ...]], Any]:
        """A function that finds the argument of a call among its tensors."""
        if isinstance(argument, ValueArg):
            self.tensors.append(argument.value)
            return operator.itemgetter(len(self.tensors) - 1)
        if isinstance(argument, TupleArg):
            items = [self._finder(item) for item in argument.items]
            return lambda tensors: [item(tensors) for item in items]
        constant = python_value(argument)
        return lambda tensors: constant

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keywords = {name: find(tensors) for name, find in self._keywords.items()}
        returned = self._operator(*(find(tensors) for find in self._arguments), **keywords)
        results = returned if isinstance(returned, (tuple, list)) else (returned,)
        if len(results) != len(self._expected):
            raise PlanError(f"{self._name} returns {len(results)} results, not {len(self._expected)}")
        pairs = zip(results, self._expected, strict=True)
        return tuple(self._placed(result, value) for result, value in pairs if value is not None)

    def _placed(self, result: Any, value: Value) -> torch.Tensor:
        """The result as the plan has it."""
        shape, dtype = tuple(value.shape), memory.dtype_of(value)
        if not isinstance(result, torch.Tensor) or (tuple(result.shape), result.dtype) != (shape, dtype):
            raise PlanError(f"{self._name} returns another tensor than the plan has")
        if self._empty is not None:
            return self._empty(shape, value.stride, dtype).copy_(result)
        if memory.steps(result.shape, result.stride()) == memory.steps(shape, value.stride):
            return result
        return result.new_empty_strided(shape, value.stride).copy_(result)


def calls_operators_alone(recorded: Pass) -> bool:
    """Tell whether `compute` can run a pass's plans: operators, views, contiguous copies."""
    return all(map(_is_functional, recorded.plans))


def _is_functional(plan: Plan) -> bool:
    targets = Counter(step.value for step in plan.steps if isinstance(step, Copy))
    views = (value for value in plan.values if isinstance(value, ViewValue))
    return (
        all(isinstance(step, OperatorCall | Alloc | Copy) for step in plan.steps)
        and targets == Counter(step.value for step in plan.steps if isinstance(step, Alloc))
        and all(plan.values[n].stride == strides(plan.values[n].shape) for n in targets)
        and not any(isinstance(value, ConstantValue) for value in plan.values)
        and all(view.dtype == plan.values[view.of].dtype for view in views)
    )


def compute(plan: Plan, arguments: Sequence[Any]) -> Any:
    """Return the results of such a plan for the arguments of a call, which may be fake or traced."""
    pairs = zip(flattened(plan.inputs), parts(list(arguments)), strict=True)
    values = {argument.value: value for argument, value in pairs if isinstance(argument, ValueArg)}

    def tensor(number: int) -> torch.Tensor:
        value, (base, offset) = plan.values[number], memory.place(plan, number)
        view = (memory.dtype_of(value), value.shape, value.stride, offset)
        return values[base] if number == base else memory.look(values[base], view)

    for step in plan.steps:
        if isinstance(step, Copy):
            values[step.value] = tensor(step.source).clone(memory_format=torch.contiguous_format)
        elif isinstance(step, OperatorCall):
            called = Operator(plan, step, None)
            returned = called(*map(tensor, called.tensors))
            values |= zip((number for number in step.values if number is not None), returned, strict=True)
    results = flattened((plan.result,))
    flat = (tensor(leaf.value) if isinstance(leaf, ValueArg) else python_value(leaf) for leaf in results)
    return rebuilt(plan.result, flat)
