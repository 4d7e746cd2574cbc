"""Triton's launches and its autotuner, as steps of the plan."""

from __future__ import annotations

import operator
import sys
import types
from contextlib import suppress
from typing import Any

import torch
import triton
from pydantic import ValidationError
from triton._C.libtriton import ir
from triton.compiler import ASTSource
from triton.language.core import constexpr, dtype
from triton.runtime import autotuner, jit
from triton.tools.tensor_descriptor import TensorDescriptor

from passagent.plan import kernel_text
from passagent.plan.arguments import Argument, DescriptorArg, FunctionArg, TritonDtypeArg, TupleArg, ValueArg
from passagent.plan.model import (
    Alternative,
    Choice,
    Launch,
    Options,
    Parameter,
    TritonKernel,
)
from passagent.plan.recording_session import Recorder, Session
from passagent.plan.refusal import Refused, running_place

with suppress(ImportError):  # Triton does it at the first launch of each process
    import triton.experimental.gluon.nvidia.hopper

_OPTIONS = tuple(Options.model_fields)


def install(recorder: Recorder) -> None:
    """Let every launch of Triton's become a step, in this process, for good."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> _Compiled:
        if not warmup:
            launch(recorder.current(), self, args, grid, kwargs)
        return _Compiled(recorder, self, kwargs)

    def tuned(self: Any, *args: Any, **kwargs: Any) -> None:
        _tune(recorder.current(), self, args, kwargs)

    jit.JITFunction.run = run  # type: ignore[method-assign]
    autotuner.Autotuner.run = tuned  # type: ignore[method-assign]
    triton.set_allocator = lambda allocator: None
    check = TensorDescriptor.__post_init__

    def described(self: TensorDescriptor) -> None:
        if recorder.session is not None:
            _check_descriptor(recorder.session, self)
        check(self)

    TensorDescriptor.__post_init__ = described


def launch(session: Session, kernel: Any, args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any]) -> None:
    """A launch of a jitted function. Refuses unknown options; a kernel that does not compile is noted."""
    names = [parameter.name for parameter in kernel.params]
    options = {key: value for key, value in kwargs.items() if key not in names}
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        session.refuse(f"gives the launch {', '.join(unknown)}; options are {', '.join(_OPTIONS)}")
    try:
        bound = kernel.signature.bind(*args, **{key: kwargs[key] for key in kwargs if key in names})
    except TypeError as error:
        raise TypeError(
            f"launches {kernel.fn.__name__} with other arguments than it takes: {error}"
        ) from error
    bound.apply_defaults()
    sizes = _three(grid(dict(bound.arguments)) if callable(grid) else grid)
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    if 0 in sizes:
        return
    arguments = [_argument(session, value) for value in bound.arguments.values()]
    recorded = _kernel(session, kernel, bound.arguments, options)
    if recorded is None:
        return
    session.kernels[recorded.digest()] = recorded
    session.steps.append(Launch(kernel=recorded.digest(), grid=sizes, args=tuple(arguments)))


def _three(grid: Any) -> tuple[int, int, int]:
    parts = grid if isinstance(grid, (tuple, list)) else (grid,)
    try:
        sizes = [operator.index(part) for part in parts]
    except TypeError:
        sizes = []
    if not 1 <= len(sizes) <= 3 or not all(0 <= size < 1 << 31 for size in sizes):
        raise TypeError(f"launches a grid of {grid!r:.80}; a grid is one to three ints from 0 to 2**31 - 1")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _kernel(
    session: Session, kernel: Any, arguments: dict[str, Any], options: dict[str, Any]
) -> TritonKernel | None:
    name, facts = kernel.fn.__name__, session.recorder.facts
    try:
        checked_options = Options(**options)
        text = kernel_text.text_of(kernel, arguments.values())
        ttir, signature = _ir(session, kernel, arguments, options)
    except Refused as error:
        session.refuse(error.message)
    except ValidationError as error:
        wrong = ", ".join(str(problem["loc"][0]) for problem in error.errors())
        session.refuse(f"launches {name} with {wrong} that Triton's compiler does not take")
    except Exception as error:  # Triton raises whatever the kernel's text leads it to
        reason = " ".join(str(getattr(error, "error_message", None) or error).split())[:300]
        file, line = running_place(session.recorder.root, sys._getframe(1))
        place = f" ({file}:{line})" if file else ""
        session.recorder.broken[f"{name} does not compile: {type(error).__name__}: {reason}{place}"] = None
        return None
    facts.asked |= {"device.capability": str(facts.capability), "triton": triton.__version__}
    return TritonKernel(
        text=text,
        entry=name,
        signature=tuple(_parameter(name, kind) for name, kind in signature.items()),
        ttir=ttir,
        options=checked_options,
        target=f"cuda:{facts.capability}",
    )


class _Pointer(jit.MockTensor):
    """A tensor as Triton asks about it: its dtype, and whether its address is a multiple of 16."""

    def __init__(self, session: Session, tensor: torch.Tensor) -> None:
        super().__init__(tensor.dtype, list(tensor.shape))
        self.data_ptr = lambda: session.recorder.address(tensor)  # type: ignore[method-assign]


def _ir(
    session: Session, kernel: Any, arguments: dict[str, Any], options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Triton's own IR of a launch, made without a GPU, and its signature. Raises what Triton raises."""
    _, _, target, backend, binder = kernel.create_binder()
    pointers = {name: _pointers(value, session) for name, value in arguments.items()}
    options = {**options, "debug": True, "sanitize_overflow": False}  # keeps tl.device_assert, adds none
    bound, specialisation, opts = binder(**pointers, **options)
    opts, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialisation, opts)
    source = ASTSource(kernel, signature, constants, attributes)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(opts), backend.get_module_map()
    module = source.make_ir(target, opts, functions, modules, context)
    text = module.str_nodebug() if hasattr(module, "str_nodebug") else str(module)
    return text, signature


def _pointers(value: Any, session: Session) -> Any:
    if isinstance(value, torch.Tensor):
        return _Pointer(session, value)
    if isinstance(value, TensorDescriptor):
        return value
    if isinstance(value, tuple):
        items = [_pointers(item, session) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _parameter(name: str, kind: Any) -> Parameter:
    if isinstance(kind, tuple):
        return Parameter(name=name, type="tuple", items=tuple(_parameter("", item) for item in kind))
    return Parameter(name=name, type=str(kind))


def _argument(session: Session, value: Any) -> Argument:
    if isinstance(value, torch.Tensor) and value.device.type != "cuda":
        raise TypeError(
            f"gives a Triton kernel a tensor on {value.device}; it takes CUDA tensors: --device cuda"
        )
    if isinstance(value, constexpr):
        return _argument(session, value.value)
    if isinstance(value, dtype):
        return TritonDtypeArg(name=value.name)
    if isinstance(value, jit.JITCallable):
        return FunctionArg(name=value.fn.__name__)
    if isinstance(value, TensorDescriptor):
        _check_descriptor(session, value)
        base = _argument(session, value.base)
        assert isinstance(base, ValueArg)
        return DescriptorArg(
            value=base.value,
            shape=tuple(map(int, value.shape)),
            stride=tuple(map(int, value.strides)),
            block=tuple(map(int, value.block_shape)),
            padding=value.padding,  # type: ignore[arg-type]
            tf32=getattr(value, "round_f32_to_tf32", False),  # Triton 3.6 has no such option
        )
    if isinstance(value, (tuple, list)):
        fields = tuple(getattr(value, "_fields", ()))
        return TupleArg(items=tuple(_argument(session, item) for item in value), fields=fields)
    return session.launched(value)


def _check_descriptor(session: Session, described: TensorDescriptor) -> None:
    """Refuse what TMA cannot address."""
    *steps, last = described.strides or (1,)
    odd = [step for step in steps if step * described.base.itemsize % 16]
    beside = session.recorder.address(described.base) % 16
    if last != 1:
        session.refuse(f"describes a tensor whose last stride is {last}; describe x.t() or x.contiguous()")
    if odd:
        what = f"describes a tensor with a stride of {odd[0]} elements, no multiple of 16 bytes"
        session.refuse(f"{what}; pad its rows, or load by pointers")
    if beside:
        what = f"describes a tensor {beside} bytes behind a multiple of 16"
        session.refuse(f"{what}; describe the whole tensor and add the offset in the kernel")


def _tune(session: Session, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """One alternative for each configuration that is left after pruning and compiles, if any does."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    before, alternatives, broken = session.steps, [], session.recorder.broken
    earlier = dict(broken)
    for config in tuner.prune_configs(kwargs):
        session.steps, count = [], len(broken)
        named = {**tuner.nargs, **kwargs, **config.all_kwargs()}
        for name in tuner.reset_to_zero or ():
            named[name].zero_()
        if config.pre_hook is not None:
            config.pre_hook(named)
        options = {key: value for key, value in config.all_kwargs().items() if value is not None}
        tuner.fn.run(*args, **kwargs, **options)
        if len(broken) > count:
            continue
        named_options = ", ".join(f"{key}: {value}" for key, value in options.items())
        label = "".join(c if " " <= c <= "~" else "?" for c in named_options)[:500]
        alternatives.append(Alternative(name=label, steps=tuple(session.steps)))
    session.steps = before
    tuner.nargs = None
    if not alternatives:
        return
    broken.clear()
    broken |= earlier
    if len(alternatives) == 1:
        session.steps += alternatives[0].steps
    else:
        session.steps.append(Choice(of=tuple(alternatives)))


class _Compiled:
    """The result of a launch and of `warmup`: it can be launched. Its resources are invented:
    docs/plans.md."""

    n_regs, n_spills = 32, 0

    def __init__(self, recorder: Recorder, kernel: Any, kwargs: dict[str, Any]) -> None:
        self._recorder, self._kernel, self._kwargs = recorder, kernel, kwargs
        warps = kwargs.get("num_warps", 4)
        ctas = kwargs.get("num_ctas") or 1
        self.metadata = types.SimpleNamespace(shared=1024, num_warps=warps, num_ctas=ctas)

    def _init_handles(self) -> None: ...

    def __getitem__(self, grid: Any) -> Any:
        def call(*args: Any) -> None:
            constants = set(self._kwargs)
            positional = [
                value
                for value, parameter in zip(args, self._kernel.params, strict=False)
                if parameter.name not in constants
            ]
            launch(self._recorder.current(), self._kernel, tuple(positional), grid, self._kwargs)

        return call
