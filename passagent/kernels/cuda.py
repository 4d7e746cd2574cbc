"""`cuda_kernel`: a CUDA C++ kernel on CUDA tensors, compiled by NVRTC in half a second, launched cheaply."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from passagent.errors import PassagentError
from passagent.kernels import build_cuda
from passagent.kernels.build import Signature
from passagent.kernels.cpp import CTYPES, SCALARS

Builder = Callable[[str, str, Signature, str], Path]
_builder: list[Builder] = [build_cuda.build]
"""Who compiles: `build_cuda.build` here; in a candidate's process the referee, asked over the channel."""

_MORE_SHARED, _ARGUMENT = -1, -2
_MAX_DYNAMIC_SHARED = 8
_SHARED_WITHOUT_ASKING = 48 * 1024

Shape = int | tuple[int, ...]
_Argument = torch.Tensor | int | float | bool


class _Plan(ctypes.Structure):
    """`struct plan` of launcher.h."""

    _fields_ = (
        ("launch", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_limit", ctypes.c_uint32),
    )


class CudaKernel:
    """A kernel `name` of `source`: `kernel[grid, block](*args)` launches it on torch's current stream.

    `grid` and `block` are ints or tuples of up to three; a grid with a zero launches nothing. `name` may hold
    template arguments, `"rows<256>"`; type parameters that are left follow from the tensors' dtypes.

    Raises KernelBuildError if it does not compile or take the arguments, KernelRefused if it asks for more
    than a kernel may, TypeError for an argument of another kind or a tensor elsewhere, RuntimeError with
    CUDA's words if a launch fails, PassagentError without a CUDA device.
    """

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name
        self._launches: dict[tuple[Shape, Shape], CudaLaunch] = {}
        self._loaded: dict[tuple[Any, ...], _Loaded] = {}

    def __getitem__(self, shape: tuple[Shape, Shape]) -> CudaLaunch:
        launch = self._launches.get(shape)
        if launch is None:
            launch = self._launches[shape] = CudaLaunch(self, shape)
        return launch

    def load(self, key: tuple[Any, ...], args: tuple[_Argument, ...]) -> _Loaded:
        """The kernel for arguments of these types on the current device, built and loaded on first use."""
        loaded = self._loaded.get(key)
        if loaded is None:
            signature = _signature(self.name, args)
            major, minor = torch.cuda.get_device_capability()
            loaded = _Loaded(_builder[0](self.source, self.name, signature, f"sm_{major}{minor}"), signature)
            self._loaded[key] = loaded
        return loaded


class CudaLaunch:
    """A kernel with its grid and block: call it with tensors, ints, floats and bools; it returns nothing.

    A tensor arrives as a pointer to its first element, a number as the type that the kernel's parameter
    declares. `shared` is the dynamic shared memory of a block, in bytes.

    To see what kernels are given, replace `CudaLaunch.__call__` (and `CppKernel.__call__`) for a while: it is
    looked up on the class at each call, so that nothing is paid while nobody looks.
    """

    def __init__(self, kernel: CudaKernel, shape: tuple[Shape, Shape]) -> None:
        if not isinstance(shape, tuple) or len(shape) != 2:
            raise TypeError(f"{kernel.name}: launch as kernel[grid, block](...)")
        self.kernel = kernel
        self._grid, self._block = (_three(kernel.name, part) for part in shape)
        self._entries: dict[tuple[Any, ...], Any] = {}

    def __call__(self, *args: _Argument, shared: int = 0) -> None:
        key = tuple([a.dtype if isinstance(a, torch.Tensor) else type(a) for a in args])
        entry = self._entries.get((device := _current_device(), key))
        if entry is None:
            entry = self._entries[device, key] = self._load(device, key, args)
        function, plan, is_tensor, stream = entry
        code = function(
            plan,
            shared,
            stream(device),
            *[a.data_ptr() if t else a for a, t in zip(args, is_tensor, strict=True)],  # type: ignore[union-attr]
        )
        if code:
            self._failed(code, args, shared)

    def _load(self, device: int, key: tuple[Any, ...], args: tuple[_Argument, ...]) -> Any:
        loaded = self.kernel.load((device, key), args)
        plan = _Plan(loaded.launch, loaded.function, self._grid, self._block, _SHARED_WITHOUT_ASKING)
        is_tensor = tuple(isinstance(a, torch.Tensor) for a in args)
        return loaded.call, ctypes.byref(plan), is_tensor, torch._C._cuda_getCurrentRawStream

    def _failed(self, code: int, args: tuple[_Argument, ...], shared: int) -> None:
        """Ask for more shared memory and launch again, or raise."""
        name = self.kernel.name
        if code == _MORE_SHARED:
            key = tuple([a.dtype if isinstance(a, torch.Tensor) else type(a) for a in args])
            loaded = self.kernel.load((_current_device(), key), args)
            _check(name, _driver().cuFuncSetAttribute(loaded.function, _MAX_DYNAMIC_SHARED, shared))
            for _, plan, _, _ in self._entries.values():
                plan._obj.shared_limit = max(plan._obj.shared_limit, shared)
            self(*args, shared=shared)
        elif code <= _ARGUMENT:
            number = _ARGUMENT - code
            raise OverflowError(
                f"{name}: argument {number} ({args[number]}) does not fit its parameter's type"
            )
        else:
            _check(f"{name}[{list(self._grid)}, {list(self._block)}]", code)


class _Loaded:
    """A built kernel in the current device's context."""

    def __init__(self, path: Path, signature: Signature) -> None:
        self._library = ctypes.PyDLL(str(path))
        driver = _driver()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        image = ctypes.c_char.in_dll(self._library, "passagent_image")
        entry = ctypes.c_char.in_dll(self._library, "passagent_entry")
        torch.cuda.current_stream().synchronize()  # makes torch's context the current one
        _check("loading a kernel", driver.cuModuleLoadData(ctypes.byref(module), ctypes.byref(image)))
        name = ctypes.string_at(ctypes.addressof(entry))
        _check("loading a kernel", driver.cuModuleGetFunction(ctypes.byref(function), module, name))
        self.function = function.value
        self.launch = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p).value
        self.call = self._library.passagent_launch
        scalars: dict[str, Any] = dict(SCALARS.values())
        kinds: list[Any] = [scalars.get(ctype, ctypes.c_void_p) for ctype in signature.types]
        self.call.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, *kinds]
        self.call.restype = ctypes.c_int


def cuda_kernel(source: str, name: str) -> CudaKernel:
    """The kernel `name` of `source`, to be launched as `kernel[grid, block](*args)`; see CudaKernel."""
    return CudaKernel(source, name)


def _signature(name: str, args: tuple[_Argument, ...]) -> Signature:
    types = []
    for position, argument in enumerate(args):
        if isinstance(argument, torch.Tensor):
            if argument.get_device() != _current_device() or argument.dtype not in CTYPES:
                what = f"argument {position} is a {argument.dtype} tensor on {argument.device}"
                raise TypeError(f"{name}: {what}; cuda_kernel takes tensors on the current CUDA device")
            types.append(CTYPES[argument.dtype])
        elif type(argument) in SCALARS:
            types.append(SCALARS[type(argument)][0])
        else:
            what = f"argument {position} is a {type(argument).__name__}"
            raise TypeError(f"{name}: {what}; pass tensors, ints, floats or bools")
    return Signature(tuple(types))


def _three(name: str, part: Shape) -> Any:
    sizes = part if isinstance(part, tuple) else (part,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int) and 0 <= n < 1 << 32 for n in sizes):
        raise TypeError(f"{name}: {part!r} is no grid or block; give an int or a tuple of up to three")
    return (ctypes.c_uint32 * 3)(*sizes, *[1] * (3 - len(sizes)))


def _current_device() -> int:
    try:
        return int(torch._C._cuda_getDevice())
    except (AttributeError, RuntimeError) as error:
        raise PassagentError(
            "cuda_kernel needs a CUDA device, and torch sees none; use cpp_kernel"
        ) from error


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(what: str, code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: CUDA error {code}: {(text.value or b'unknown').decode()}")
