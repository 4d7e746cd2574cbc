"""`cpp_kernel`, `cuda_kernel` and `triton_kernel` as a candidate finds them while it is recorded."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from passagent import kernels
from passagent.kernels import cpp, cuda, layout, plain
from passagent.kernels.launch import sizes, three
from passagent.kernels.layout import Like, Order, strides
from passagent.kernels.plain import argument_types
from passagent.plan.model import Launch, NativeKernel, Parameter
from passagent.plan.recording_session import Recorder, Session

Orders = Mapping[str, Iterable[int]] | None


def install(recorder: Recorder) -> None:
    """Let the kernels of passagent become steps, in this process, for good."""

    def cpp_kernel(source: str, name: str, plan: Any = None, order: Orders = None) -> Callable[..., Any]:
        if plan is None:
            return lambda *args: _launch(recorder.current(), "cpp", source, name, args)
        parameters = list(inspect.signature(plan).parameters) if order else []

        def launch(session: Session, planned: _Planned) -> None:
            args = (*planned.inputs, *planned.outputs.values(), *planned.numbers.values())
            _launch(session, "cpp", source, name, args)

        return _planned(recorder, plan, layout.orders(name, order, parameters), launch, 0)

    def cuda_kernel(source: str, name: str) -> _CudaKernel:
        return _CudaKernel(recorder, source, name)

    def triton_kernel(plan: Any, order: Orders = None, **options: Any) -> Callable[[Any], Callable[..., Any]]:
        def decorate(kernel: Any) -> Callable[..., Any]:
            name, parameters = kernel.fn.__name__, list(inspect.signature(kernel.fn).parameters)

            def launch(session: Session, planned: _Planned) -> None:
                from passagent.plan import launches

                named = (
                    dict(zip(parameters, planned.inputs, strict=False))
                    | planned.outputs
                    | options
                    | planned.numbers
                )
                launches.launch(session, kernel, (), three(name, planned.grid), named)

            return _planned(recorder, plan, layout.orders(name, order, parameters), launch, 1)

        return decorate

    for name, function in (("cpp", cpp_kernel), ("cuda", cuda_kernel), ("triton", triton_kernel)):
        home = {"cpp": cpp, "cuda": cuda, "triton": plain}[name]
        setattr(home, f"{name}_kernel", function)
        setattr(kernels, f"{name}_kernel", function)


class _Planned(NamedTuple):
    """A call of a kernel with a plan function: inputs, grid, outputs and numbers."""

    inputs: tuple[Any, ...]
    grid: Any
    outputs: dict[str, torch.Tensor]
    numbers: dict[str, Any]


def _planned(
    recorder: Recorder,
    plan: Callable[..., Any],
    orders: Sequence[Order],
    launch: Callable[[Session, _Planned], None],
    grids: int,
) -> Callable[..., Any]:
    """A kernel that makes its outputs; its plan function returns `grids` grids before outputs and numbers."""

    def call(*args: Any) -> Any:
        session = recorder.current()
        all_orders = (*orders, *[()] * len(args))[: len(args)]
        laid_out = tuple(map(layout.laid, args, all_orders))
        device = next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device(recorder.device))
        *grid, outputs, numbers = plan(*map(layout.seen, laid_out, all_orders))
        tensors = {}
        for name, like in ((name, Like(*like)) for name, like in outputs.items()):
            step = strides(like.shape, like.order)
            tensors[name] = torch.empty_strided(like.shape, step, dtype=like.dtype, device=device)
        launch(session, _Planned(laid_out, grid[0] if grids else 1, tensors, numbers))
        results = tuple(tensors.values())
        result = results[0] if len(results) == 1 else results or None
        return result if all(map(operator.is_, args, laid_out)) else layout.row_major(result)

    return call


class _CudaKernel:
    """In place of passagent.kernels.cuda.CudaKernel."""

    def __init__(self, recorder: Recorder, source: str, name: str) -> None:
        self.source, self.name, self._recorder = source, name, recorder

    def __getitem__(self, shape: Any) -> Callable[..., None]:
        grid, block, shared = sizes(self.name, shape)
        how = {"grid": grid, "block": block, "shared": shared}
        return lambda *args: _launch(self._recorder.current(), "cuda", self.source, self.name, args, **how)


def _launch(
    session: Session, kind: Literal["cpp", "cuda"], source: str, name: str, args: Sequence[Any], **how: Any
) -> None:
    """A launch of C++ or CUDA C++, for arguments of these types."""
    device = {"cpp": "cpu", "cuda": "cuda"}[kind]
    where = f"a {kind} kernel takes {device} tensors: record with --device {device}"
    types = argument_types(name, args, lambda tensor: tensor.device.type == device, where)
    if 0 in how.get("grid", ()):
        return
    signature = tuple(Parameter(type=ctype) for ctype in types)
    kernel = NativeKernel(kind=kind, text=source, entry=name, signature=signature)
    session.kernels[kernel.digest()] = kernel
    arguments = tuple(
        session.use(a)
        if isinstance(a, torch.Tensor)
        else session.whole(a)
        if type(a) is int
        else session.constant(a)
        for a in args
    )
    session.steps.append(Launch(kernel=kernel.digest(), args=arguments, **how))
