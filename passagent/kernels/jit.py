"""`triton_kernel`: a Triton kernel, planned once for each shape and launched as cheaply as CUDA allows.

Triton's own launch looks up and checks everything at every call, which costs more than the work of a small
kernel. Here Triton compiles; allocation and launch happen in launch.c.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from passagent.kernels import driver, launch, layout
from passagent.kernels.launch import OUTPUT, Parameter, Sizes
from passagent.kernels.layout import Like, Order, strides

OPTIONS = ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion", "maxnreg")
"""Options of Triton's compiler that a plan may set."""

_TYPES = {
    "i1": "int8_t",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "u1": "uint8_t",
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "fp32": "float",
    "f32": "float",
    "fp64": "double",
}
"""Triton's words for the types of parameters, as C types."""
_SCRATCH = [Parameter("void*")] * 2
"""Null pointers after the arguments: Triton's scratch memory, global and for profiles."""
_MOST_SHARED = 227 * 1024


Plan = Callable[..., tuple[Any, dict[str, Any], dict[str, Any]]]


def triton_kernel(
    plan: Plan, order: Mapping[str, Iterable[int]] | None = None, **options: Any
) -> Callable[[Any], Callable[..., Any]]:
    """Make a `@triton.jit` kernel a function that makes its outputs and launches it on the current stream.

        def _plan(x, y):
            n = x.numel()
            return triton.cdiv(n, 1024), {"out": x}, {"n": n, "BLOCK": 1024, "num_warps": 4}

        @triton_kernel(_plan)
        @triton.jit
        def add(x, y, out, n, BLOCK: tl.constexpr): ...

        out = add(x, y)

    A call gives the kernel's first parameters by position. The plan is called with what it may know of them:
    shape and dtype of a tensor, a number as it is; once for each combination of those. It returns the grid
    (an int or a tuple of up to three), the outputs by name (shaped, typed and laid out like an input, or as
    (shape, dtype)), and the other parameters and OPTIONS by name; `options` hold for every plan. A call
    returns the outputs in the plan's order: a tensor, or a tuple where there are several.

    The kernel sees contiguous memory: of a tensor that is not contiguous it is given a copy. `order` says of
    which parameters the dimensions lie in another order: `order={"x": (0, 2, 1)}` for an x that is the
    transpose of a contiguous tensor. The kernel is given what lies so as it is, and all else as a copy that
    does. An output as (shape, dtype, order) lies in that order, unless something had to be copied: then all
    are contiguous.

    Raises TypeError for a kernel, plan or argument of another form; what Triton raises where it does not
    compile; RuntimeError with CUDA's words if a launch fails; PassagentError without a CUDA device.
    """

    def decorate(kernel: Any) -> Callable[..., Any]:
        return _TritonKernel(kernel, plan, order, options).function

    return decorate


class _Planned(NamedTuple):
    """One call's plan."""

    grid: tuple[int, int, int]
    arguments: dict[str, Any]
    outputs: dict[str, Like]
    constants: dict[str, Any]


class _TritonKernel:
    """A kernel and the variants of it that are loaded."""

    def __init__(
        self, kernel: Any, plan: Plan, order: Mapping[str, Iterable[int]] | None, options: dict[str, Any]
    ) -> None:
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        if not isinstance(kernel, (JITFunction, InterpretedFunction)):
            raise TypeError(f"triton_kernel stands above @triton.jit, not above a {type(kernel).__name__}")
        self.kernel, self.plan, self.options = kernel, plan, options
        self.name, self.parameters = kernel.fn.__name__, list(inspect.signature(kernel.fn).parameters)
        self._orders: list[Order] = layout.orders(self.name, order, self.parameters)
        self._functions: dict[tuple[int, str], int] = {}
        self.function: Callable[..., Any] = self._interpret
        if isinstance(kernel, JITFunction):
            self._launch = launch.Launch(self.name, self._other, planned=True, orders=self._orders)
            self.function = self._launch.function

    def _planned(self, args: tuple[Any, ...]) -> _Planned:
        named_args = dict(zip(self.parameters, args, strict=False))
        grid, outputs, constants = self.plan(*map(layout.seen, args, self._orders))
        outputs = {name: Like(*like) for name, like in outputs.items()}
        constants = {**self.options, **constants}
        free = set(self.parameters) - set(named_args)
        wrong = [*(set(outputs) - free), *(set(constants) - (free - set(outputs)) - set(OPTIONS))]
        wrong += [name for name, value in constants.items() if isinstance(value, torch.Tensor)]
        if wrong or len(named_args) != len(args):
            what = f"its plan names {', '.join(sorted(wrong))}" if wrong else f"given {len(args)} arguments"
            accepted = f"{', '.join(self.parameters)}; options are {', '.join(OPTIONS)}"
            raise TypeError(f"{self.name}: {what}; its parameters are {accepted}")
        return _Planned(launch.three(self.name, grid), named_args, outputs, constants)

    def _interpret(self, *args: Any) -> Any:
        """In Triton's interpreter."""
        copied = tuple(map(layout.laid, args, self._orders))
        device = next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu"))
        outputs = self._launched(self._planned(copied), device)
        return outputs if all(map(operator.is_, args, copied)) else layout.row_major(outputs)

    def _launched(self, planned: _Planned, device: torch.device) -> Any:
        """The call as Triton launches it."""
        tensors = [
            torch.empty_strided(like.shape, strides(like.shape, like.order), dtype=like.dtype, device=device)
            for like in planned.outputs.values()
        ]
        named = dict(zip(planned.outputs, tensors, strict=True))
        if 0 not in planned.grid:
            self.kernel[planned.grid](**planned.arguments, **named, **planned.constants)
        return tensors[0] if len(tensors) == 1 else tuple(tensors) if tensors else None

    def _other(self, *args: Any) -> Any:
        """Make the variant for such arguments (True), or do the call where a variant is not enough."""
        launch.check_arguments(self.name, args)
        copied = list(map(layout.laid, args, self._orders))
        if not all(map(operator.is_, args, copied)):
            return layout.row_major(self.function(*copied))
        planned = self._planned(args)
        parameters, function, block, shared = [], 0, (1, 1, 1), 0
        if 0 not in planned.grid:
            tensors = {name: driver.empty(like.shape, like.dtype) for name, like in planned.outputs.items()}
            named = {**planned.arguments, **tensors, **planned.constants}
            asserts = {"debug": True, "sanitize_overflow": False}  # keep tl.device_assert, add none
            compiled = self.kernel.run(grid=planned.grid, warmup=True, **asserts, **named)
            parameters = [] if _needs_more(self.kernel, compiled) else _parameters(compiled, planned)
            function = self._load(compiled, parameters) if parameters else 0
            if not function:
                return self._launched(planned, driver.device())
            block, shared = (32 * compiled.metadata.num_warps, 1, 1), compiled.metadata.shared
        made_of = list(planned.outputs.values())
        return self._launch.add(args, function, Sizes(planned.grid, block, shared), parameters, made_of)

    def _load(self, compiled: Any, parameters: list[Parameter]) -> int:
        """The CUfunction of a compiled kernel, loaded once; 0 if it takes other parameters than these."""
        key = (driver.current_device(), compiled.hash)
        if key not in self._functions:
            function = driver.load(compiled.asm["cubin"], compiled.metadata.name)
            driver.allow_shared(self.name, function, compiled.metadata.shared)
            self._functions[key] = function
        sizes = driver.parameter_sizes(self._functions[key])
        return self._functions[key] if sizes in (None, [launch.size(p) for p in parameters]) else 0


def _needs_more(kernel: Any, compiled: Any) -> bool:
    """Tell whether a launch is more than a grid of blocks: clusters, cooperation, scratch memory, hooks."""
    from triton import knobs

    metadata = compiled.metadata
    extras = ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size")
    hooks = (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
    return (
        metadata.num_ctas != 1
        or metadata.shared > _MOST_SHARED
        or any(getattr(metadata, name, False) for name in extras)
        or any(getattr(hook, "calls", hook) for hook in hooks)
        or bool(kernel.pre_run_hooks)
    )


def _parameters(compiled: Any, planned: _Planned) -> list[Parameter]:
    """The compiled kernel's parameters, in order; empty for a type that only Triton can pass."""
    arguments, outputs = list(planned.arguments), list(planned.outputs)
    parameters = []
    for name, kind in compiled.src.signature.items():
        if kind == "constexpr":
            continue
        ctype = "void*" if str(kind).startswith("*") else _TYPES.get(kind)
        if ctype is None:
            return []
        if name in arguments:
            parameters.append(Parameter(ctype, arguments.index(name)))
        elif name in outputs:
            parameters.append(Parameter(ctype, OUTPUT - outputs.index(name)))
        elif name in planned.constants:
            parameters.append(Parameter(ctype, constant=planned.constants[name]))
        else:
            return []
    return parameters + _SCRATCH
