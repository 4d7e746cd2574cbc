"""`cuda_kernel`: a CUDA C++ kernel on CUDA tensors, compiled by NVRTC in half a second, launched cheaply."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from passagent.kernels import build_cuda, driver, launch
from passagent.kernels.build import Signature
from passagent.kernels.cpp import argument_types
from passagent.kernels.launch import Shape

_Argument = torch.Tensor | int | float | bool


class CudaKernel:
    """A kernel `name` of `source`: `kernel[grid, block](*args)` launches it on torch's current stream.

    `grid` and `block` are ints or tuples of up to three; a grid with a zero launches nothing. A third number,
    `kernel[grid, block, shared]`, is a block's dynamic shared memory in bytes. What the subscript gives is a
    function that may be kept: calling it is the cheapest launch there is. `name` may hold template
    arguments, `"rows<256>"`; type parameters that are left follow from the tensors' dtypes. A tensor arrives
    as a pointer to its first element, a number as the type that the kernel's parameter declares.

    Raises KernelBuildError if it does not compile or take the arguments, KernelRefused if it asks for more
    than a kernel may, TypeError for an argument of another kind or a tensor elsewhere, OverflowError for an
    int that does not fit, RuntimeError with CUDA's words if a launch fails, PassagentError without a CUDA
    device.
    """

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name
        self._launches: dict[tuple[Shape | int, ...], Callable[..., None]] = {}
        self._loaded: dict[tuple[int, Signature], tuple[int, tuple[str, ...]]] = {}

    def __getitem__(self, shape: tuple[Shape | int, ...]) -> Callable[..., None]:
        function = self._launches.get(shape)
        if function is None:
            function = self._launches[shape] = self._launch(shape)
        return function

    def _launch(self, shape: tuple[Shape | int, ...]) -> Callable[..., None]:
        sizes = launch.sizes(self.name, shape)
        launches: list[launch.Launch] = []
        other = functools.partial(self._other, launches, sizes)
        launches.append(launch.Launch(f"{self.name}[{list(sizes.grid)}, {list(sizes.block)}]", other))
        return launches[0].function

    def _other(
        self,
        launches: list[launch.Launch],
        sizes: launch.Sizes,
        *args: _Argument,
    ) -> bool:
        """Make a variant for arguments such as these."""
        device, where = driver.current_device(), "a kernel takes tensors on the current CUDA device"
        argument_ctypes = argument_types(self.name, args, lambda tensor: tensor.get_device() == device, where)
        function, types = self._load(Signature(tuple(argument_ctypes)))
        for position, (argument, ctype) in enumerate(zip(args, types, strict=True)):
            _check_fits(self.name, position, argument, ctype)
        driver.allow_shared(self.name, function, sizes.shared)
        parameters = [launch.Parameter(ctype, position) for position, ctype in enumerate(types)]
        return launches[0].add(args, function, sizes, parameters)

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


def _check_fits(name: str, position: int, argument: _Argument, ctype: str) -> None:
    whole = type(argument) is int and ctype not in ("float", "double", "bool")
    if whole and launch.TYPES[ctype](argument).value != argument:
        raise OverflowError(f"{name}: argument {position} ({argument}) does not fit its parameter's type")
