"""Replay a plan: one call of a C function (replay.c) for a call of the replacement that was recorded.

What can be done once is done before (table.py): code is loaded, scratch memory is allocated, its addresses
are written into the table of steps. A call only puts in the addresses of its inputs and outputs. Outputs are
fresh at every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from passagent.kernels import driver
from passagent.plan.arguments import TupleArg
from passagent.plan.check import PlanError, device_of
from passagent.plan.compile import Built
from passagent.plan.constants import Constants
from passagent.plan.convert import parts, rebuilt
from passagent.plan.model import Choice, Plan
from passagent.plan.table import Mode, Table


class Replay:
    """A plan that is ready to run on `device`; `call(*inputs)` runs it on torch's current stream.

    `built`: its kernels (compile_plan). `call` takes what the recorded replacement took and returns what it
    returned. It raises TypeError for arguments that the plan is not for, and RuntimeError with CUDA's words
    if a launch fails. A replay runs in one thread at a time. A CUDA graph may capture it.

    Raises PlanError for a plan that cannot run here.
    """

    call: Callable[..., Any]

    def __init__(
        self,
        plan: Plan,
        built: Mapping[str, Built],
        device: str | torch.device = "cpu",
        mode: Mode = Mode(),
    ) -> None:
        self.plan, self.device = plan, torch.device(device)
        if self.device.type == "cuda":
            self.device = driver.device()
        if device_of(plan) == "cpu" and self.device.type != "cpu":
            raise PlanError(f"a plan for the CPU cannot run on {self.device}")
        self._constants = Constants(plan, self.device)
        table = Table(plan, built, self._constants, self.device, mode)
        self.arena = table.arena
        """Scratch memory of all calls, bytes."""
        function = table.function()
        nested = any(isinstance(argument, TupleArg) for argument in plan.inputs)
        result = plan.result
        is_plain = not isinstance(result, TupleArg) or not (
            result.fields or any(isinstance(item, TupleArg) for item in result.items)
        )
        shape = None if is_plain else result
        self.call = function
        if nested or shape is not None:
            self.call = functools.partial(_arranged, function, nested, shape)

    def is_intact(self) -> bool:
        """Tell whether all constants still have their bytes."""
        return self._constants.are_intact()


def choices_of(plan: Plan) -> list[int]:
    """How many alternatives each Choice has, in order; of nested ones the outer."""
    return [len(step.of) for step in plan.steps if isinstance(step, Choice)]


def _arranged(function: Callable[..., Any], nested: bool, shape: Any, *args: Any) -> Any:
    """A call with tuples among its arguments or results; `shape`: of results that are not as they come."""
    flat = [part for argument in args for part in parts(argument)] if nested else args
    results = function(*flat)
    return results if shape is None else rebuilt(shape, iter(results))
