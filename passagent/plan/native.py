"""`cpp_kernel`, `cuda_kernel` and `triton_kernel` as a candidate finds them while it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from passagent.kernels import cpp, cuda, launch, plain
from passagent.plan.model import Launch, NativeKernel, Parameter
from passagent.plan.recording_session import Recorder, Session

Orders = Mapping[str, Iterable[int]] | None


def install(recorder: Recorder) -> None:
    """Let the kernels of passagent become steps, in this process, for good."""

    def asking(plan: Callable[..., Any]) -> Callable[..., Any]:
        """A plan function, which is asked in every call: what it decides the second time is compared."""
        return lambda *args: recorder.current() and plan(*args)

    def cpp_kernel(source: str, name: str, plan: Any = None, order: Orders = None) -> Callable[..., Any]:
        def run(*args: Any) -> None:
            _launch(recorder.current(), "cpp", source, name, args)

        return plain.cpp_calls(run, name, plan, order)

    def launch_cuda(self: cuda.CudaKernel, sizes: launch.Sizes, *args: Any) -> None:
        _launch(recorder.current(), "cuda", self.source, self.name, args, **sizes._asdict())

    def launch_triton(kernel: Any, grid: Any, named: dict[str, Any]) -> None:
        from passagent.plan import launches

        launches.launch(recorder.current(), kernel, (), grid, named)

    plain.remembering, plain.launch_triton = asking, launch_triton
    cpp.cpp_kernel = cpp_kernel
    cuda.CudaKernel._launch = launch_cuda  # type: ignore[method-assign]


def _launch(
    session: Session, kind: Literal["cpp", "cuda"], source: str, name: str, args: Sequence[Any], **how: Any
) -> None:
    """A launch of C++ or CUDA C++, for arguments of these types."""
    device = {"cpp": "cpu", "cuda": "cuda"}[kind]
    where = f"a {kind} kernel takes {device} tensors: record with --device {device}"
    types = plain.argument_types(name, args, lambda tensor: tensor.device.type == device, where)
    if 0 in how.get("grid", ()):
        return
    signature = tuple(Parameter(type=ctype) for ctype in types)
    kernel = NativeKernel(kind=kind, text=source, entry=name, signature=signature)
    session.kernels[kernel.digest()] = kernel
    arguments = tuple(map(session.launched, args))
    session.steps.append(Launch(kernel=kernel.digest(), args=arguments, **how))
