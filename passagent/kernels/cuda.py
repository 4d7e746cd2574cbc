"""`cuda_kernel`: a CUDA C++ kernel on CUDA tensors, compiled by NVRTC in half a second."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from passagent.kernels import build_cuda, driver, launch
from passagent.kernels.build import Signature
from passagent.kernels.launch import Shape
from passagent.kernels.plain import argument_types


class CudaKernel:
    """A kernel `name` of `source`: `kernel[grid, block](*args)` launches it on torch's current stream.

    `grid` and `block` are ints or tuples of up to three; a grid with a zero launches nothing. A third number,
    `kernel[grid, block, shared]`, is a block's dynamic shared memory in bytes. `name` may hold template
    arguments, `"rows<256>"`; type parameters that are left follow from the tensors' dtypes. A tensor arrives
    as a pointer to its first element, a number as the type that the kernel's parameter declares.

    Raises KernelBuildError if it does not compile or take the arguments, KernelRefused if it asks for more
    than a kernel may, TypeError for an argument of another kind or a tensor elsewhere, OverflowError for an
    int that does not fit, RuntimeError with CUDA's words if a launch fails, PassagentError without a CUDA
    device.
    """

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name
        self._loaded: dict[tuple[int, Signature], tuple[int, tuple[str, ...]]] = {}

    def __getitem__(self, shape: tuple[Shape | int, ...]) -> Callable[..., None]:
        return functools.partial(self._launch, launch.sizes(self.name, shape))

    def _launch(self, sizes: launch.Sizes, *args: torch.Tensor | int | float | bool) -> None:
        device, where = driver.current_device(), "a kernel takes tensors on the current CUDA device"
        c_types = argument_types(self.name, args, lambda tensor: tensor.get_device() == device, where)
        function, types = self._load(Signature(tuple(c_types)))
        values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
        cells = [launch.TYPES[ctype](value) for ctype, value in zip(types, values, strict=True)]
        for position, (ctype, value, cell) in enumerate(zip(types, values, cells, strict=True)):
            if "int" in ctype and cell.value != value:
                message = f"argument {position} ({value}) does not fit its parameter's type"
                raise OverflowError(f"{self.name}: {message}")
        if 0 not in sizes.grid:
            driver.allow_shared(self.name, function, sizes.shared)
            driver.launch(self.name, function, (*sizes.grid, *sizes.block, sizes.shared), cells)

    def _load(self, signature: Signature) -> tuple[int, tuple[str, ...]]:
        """The CUfunction for these types on the current device and its parameters' types, loaded once."""
        key = (driver.current_device(), signature)
        if key not in self._loaded:
            built = build_cuda.build(self.source, self.name, signature, driver.architecture()).read_bytes()
            image, entry, types = build_cuda.unpack(built)
            self._loaded[key] = driver.load(image, entry), types
        return self._loaded[key]


def cuda_kernel(source: str, name: str) -> CudaKernel:
    """The kernel `name` of `source`, to be launched as `kernel[grid, block](*args)`; see CudaKernel."""
    return CudaKernel(source, name)
