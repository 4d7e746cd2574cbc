"""Run the recorded text of a Triton kernel in Triton's interpreter: for tests on a machine without a GPU.

It runs a candidate's Python in this process, which nothing else of a replay does.
"""

from __future__ import annotations

import functools
import linecache
import os
import types
from typing import Any

import torch

from passagent.plan.arguments import (
    AddressArg,
    Argument,
    DescriptorArg,
    FunctionArg,
    TritonDtypeArg,
    TupleArg,
    ValueArg,
    leaves,
)
from passagent.plan.check import PlanError
from passagent.plan.convert import named, python_value
from passagent.plan.model import Launch, Plan, TritonKernel
from passagent.plan.table import Run


def is_interpreting() -> bool:
    """This process runs Triton kernels in the interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def interpret(plan: Plan, step: Launch, device: torch.device) -> tuple[Run, list[int]]:
    """A function that launches in the interpreter, and the values whose tensors it is given (for Replay).

    Raises PlanError if this process did not start with TRITON_INTERPRET=1, or the plan is for a GPU.
    """
    kernel = plan.kernels[step.kernel]
    if not is_interpreting() or device.type != "cpu":
        raise PlanError(f"{kernel.entry} is interpreted on the CPU with TRITON_INTERPRET=1 only")
    assert isinstance(kernel, TritonKernel)
    all_leaves = (leaf for argument in step.args for leaf in leaves(argument))
    numbers = [
        *dict.fromkeys(
            leaf.value for leaf in all_leaves if isinstance(leaf, (ValueArg, AddressArg, DescriptorArg))
        )
    ]
    module = _module(step.kernel, kernel.text)
    names = [parameter.name for parameter in kernel.signature]

    def run(*tensors: torch.Tensor) -> None:
        by_number = dict(zip(numbers, tensors, strict=True))
        args = [_object(argument, by_number, module) for argument in step.args]
        getattr(module, kernel.entry)[step.grid](**dict(zip(names, args, strict=True)))

    return run, numbers


@functools.cache
def _module(digest: str, text: str) -> types.ModuleType:
    """The text as a module; Triton finds its lines in linecache."""
    file = f"<kernel {digest}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType(f"kernel_{digest}")
    module.__file__ = file
    exec(compile(text, file, "exec"), vars(module))
    _name_by_module(vars(module))
    return module


def _name_by_module(names: dict[str, Any]) -> None:
    """Functions of triton.language by whatever name: the interpreter puts its own into the module alone."""
    import triton.language as tl

    def by_module(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(tl, function.__name__)(*args, **kwargs)

        return call

    builtins = {name: value for name, value in names.items() if callable(value) and tl.core.is_builtin(value)}
    names |= {name: by_module(value) for name, value in builtins.items()}
    names.setdefault("_language", tl)  # it looks for the module among the kernel's names


def _object(argument: Argument, by_number: dict[int, torch.Tensor], module: types.ModuleType) -> Any:
    """The kernel's value for an argument."""
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    if isinstance(argument, ValueArg):
        return by_number[argument.value]
    if isinstance(argument, AddressArg):
        return by_number[argument.value].data_ptr() + argument.offset
    if isinstance(argument, DescriptorArg):
        shape, stride, block = map(list, (argument.shape, argument.stride, argument.block))
        return TensorDescriptor(by_number[argument.value], shape, stride, block, argument.padding)
    if isinstance(argument, TritonDtypeArg):
        return tl.dtype(argument.name)
    if isinstance(argument, FunctionArg):
        return getattr(module, argument.name)
    if isinstance(argument, TupleArg):
        return named(argument, [_object(item, by_number, module) for item in argument.items])
    return python_value(argument)
