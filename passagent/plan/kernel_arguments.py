"""What a compiled kernel is given of the arguments of its launch.

Of a tensor descriptor made on the host that is a tensor map on a GPU with TMA, 128 bytes by value, else a
pointer and all that the map would hold; shape and strides follow in both cases. A map holds an address:
replay.c has CUDA's driver make it anew where the address is not that of the call before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

from passagent.kernels import driver
from passagent.plan import memory
from passagent.plan.arguments import Argument, BoolArg, DescriptorArg, IntArg, TupleArg, ValueArg
from passagent.plan.extension import Map
from passagent.plan.model import Launch, Parameter
from passagent.plan.values import Value

MAP = "CUtensorMap"
_TF32, _FP4 = 11, 14
"""Types of elements as CUDA's driver counts them: rounded float32, and 4 bits, of which a byte holds two."""
_FIXED_AFTER, _SMALL = 13010, 128 * 1024
"""Up to this version the driver sets a bit that is wrong for tensors of fewer bytes; Triton clears it too."""


def passed(step: Launch, signature: Sequence[Parameter], types: Sequence[str]) -> list[Argument]:
    """The arguments of a compiled kernel with parameters of these C types."""
    arguments: list[Argument] = []
    for whole, parameter in zip(step.args, signature, strict=True):
        for argument in _without_constants(whole, parameter):
            if isinstance(argument, DescriptorArg):
                arguments += _parts(argument, types[len(arguments) :])
            else:
                arguments.append(argument)
    return arguments


def _without_constants(argument: Argument, parameter: Parameter) -> Iterator[Argument]:
    """Nothing of a constant, of a tuple its parts."""
    if parameter.items:
        assert isinstance(argument, TupleArg)
        for item, part in zip(argument.items, parameter.items, strict=True):
            yield from _without_constants(item, part)
    elif parameter.type != "constexpr":
        yield argument


def _parts(descriptor: DescriptorArg, types: Sequence[str]) -> list[Argument]:
    sizes: list[Argument] = [IntArg(value=n) for n in (*descriptor.shape, *descriptor.stride)]
    if types[0] == MAP:
        return [descriptor, *sizes]
    flags = [BoolArg(value=descriptor.padding == "nan"), BoolArg(value=descriptor.tf32)]
    taken = types[1 + len(sizes) :].index("int32_t")  # Triton 3.6 takes the first of them only
    return [ValueArg(value=descriptor.value), *sizes, *flags[:taken], *sizes]


def tensor_map(descriptor: DescriptorArg, value: Value, decided: Sequence[int]) -> Map:
    """The map of a descriptor over `value`; `decided`: by Triton's compiler (an item of Built.maps)."""
    kind, swizzle, *box = decided
    size, rank = memory.dtype_of(value).itemsize, len(descriptor.shape)
    sizes, strides = [*reversed(descriptor.shape)], [size * step for step in reversed(descriptor.stride)]
    last = sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    if kind == _FP4:
        sizes[0] *= 2
    return Map(
        kind=_TF32 if descriptor.tf32 else kind,
        rank=rank,
        swizzle=swizzle,
        fill=descriptor.padding == "nan",
        small=last + 1 < _SMALL and driver.version() <= _FIXED_AFTER,
        sizes=(ctypes.c_uint64 * 5)(*sizes),
        strides=(ctypes.c_uint64 * 5)(*strides[1:]),
        box=(ctypes.c_uint32 * 5)(*reversed(box)),
    )
