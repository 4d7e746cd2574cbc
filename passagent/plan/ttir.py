"""Triton's own IR of a launch, made without a GPU, and what the kernel is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from triton._C.libtriton import ir
from triton.compiler import ASTSource
from triton.runtime.jit import MockTensor
from triton.tools.tensor_descriptor import TensorDescriptor

from passagent.plan.model import Attribute, Parameter
from passagent.plan.recording_session import Session


class Made(NamedTuple):
    """A kernel as IR."""

    ttir: str
    signature: tuple[Parameter, ...]
    constants: dict[tuple[int, ...], Any]
    """Values that are compiled in, by the paths of their parameters."""
    specialisation: tuple[Attribute, ...]


class _Pointer(MockTensor):
    """A tensor as Triton asks about it: its dtype, and whether its address is a multiple of 16."""

    def __init__(self, session: Session, tensor: torch.Tensor) -> None:
        super().__init__(tensor.dtype, list(tensor.shape))
        self.data_ptr = lambda: session.recorder.address(tensor)  # type: ignore[method-assign]


def make(kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any], session: Session) -> Made:
    """The IR of a jitted function for these arguments, by parameter. Raises what Triton raises."""
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
    return Made(
        text,
        tuple(_parameter(name, kind) for name, kind in signature.items()),
        {path if isinstance(path, tuple) else (path,): value for path, value in constants.items()},
        tuple(
            Attribute(path=path if isinstance(path, tuple) else (path,), name=name, value=int(value))
            for path, pairs in attributes.items()
            for name, value in pairs
        ),
    )


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
