"""The base of a plan's records, and the arguments: what a replacement or kernel is given and returns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from typing_extensions import TypeAliasType

MOST_CONSTANT = 1 << 20
"""Bytes of one constant tensor, at most."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
"""An identifier of Python or C."""
Word = Annotated[str, StringConstraints(pattern=r"^[ -~]*$", max_length=500)]
"""A short text in printable ASCII."""
Text = Annotated[str, Field(max_length=1 << 20)]
Base64 = Annotated[str, Field(max_length=MOST_CONSTANT * 2)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=300)]
HexFloat = Annotated[
    str,
    StringConstraints(
        pattern=r"^(-?0x[01]\.[0-9a-f]{1,13}p[+-]([0-9]{1,3}|10[01][0-9]|102[0-3])|-?inf|nan)$"
    ),
]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[int, Field(ge=0, lt=1 << 20)]
"""The position of a value, an input, a plan: small."""
Sizes = Annotated[tuple[Count, ...], Field(max_length=64)]
Dtype = Literal[
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16",
    "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip
Device = Literal["cpu", "cuda"]


class Record(BaseModel):
    """Base of all records: frozen, strict, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def canonical(self) -> bytes:
        """Its JSON as UTF-8, keys sorted, without spaces."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False
        ).encode()

    def digest(self) -> str:
        """SHA-256 of `canonical`, 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical()).hexdigest()


class ValueArg(Record):
    """A tensor: the position of a value of the plan. For a kernel it is the address of its first element."""

    kind: Literal["value"] = "value"
    value: Number


class IntArg(Record):
    """A whole number."""

    kind: Literal["int"] = "int"
    value: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]


class FloatArg(Record):
    """A float of 64 bits."""

    kind: Literal["float"] = "float"
    value: HexFloat


class BoolArg(Record):
    """True or False."""

    kind: Literal["bool"] = "bool"
    value: bool


class NoneArg(Record):
    """None."""

    kind: Literal["none"] = "none"


class StrArg(Record):
    """A text: the name of an activation, the precision of a product."""

    kind: Literal["str"] = "str"
    value: Annotated[str, Field(max_length=1000)]


class ComplexArg(Record):
    """A complex number."""

    kind: Literal["complex"] = "complex"
    real: HexFloat
    imag: HexFloat


class TorchArg(Record):
    """A dtype, device, memory format or layout of torch: `float32`, `cuda:0`, `contiguous_format`."""

    kind: Literal["torch"] = "torch"
    type: Literal["dtype", "device", "memory_format", "layout"]
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+(:[0-9]+)?$", max_length=40)]


class SliceArg(Record):
    """A slice of constants."""

    kind: Literal["slice"] = "slice"
    items: tuple[Argument, Argument, Argument]


class EllipsisArg(Record):
    """`...`."""

    kind: Literal["ellipsis"] = "ellipsis"


class TupleArg(Record):
    """A tuple or list; `fields` are the names of a named tuple's."""

    kind: Literal["tuple"] = "tuple"
    items: Annotated[tuple[Argument, ...], Field(max_length=1 << 16)]
    fields: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()


class ParameterArg(Record):
    """A match of a parameter of the pattern, in `Call.arguments` only: `x`, or `x[1]` of a list."""

    kind: Literal["parameter"] = "parameter"
    name: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\[[0-9]{1,4}\])*$", max_length=250)
    ]


class AddressArg(Record):
    """For kernels only: the address of a value's first element plus `offset` bytes, as a 64-bit number."""

    kind: Literal["address"] = "address"
    value: Number
    offset: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]


class DescriptorArg(Record):
    """For Triton only: a tensor descriptor (`TensorDescriptor`) over a value; strides in elements.

    A load beyond the shape gives `padding`; one of float32 values rounds them to `tf32`.
    """

    kind: Literal["descriptor"] = "descriptor"
    value: Number
    shape: Sizes
    stride: Sizes
    block: Sizes
    padding: Literal["zero", "nan"]
    tf32: bool = False


class TritonDtypeArg(Record):
    """For Triton only: a dtype of triton.language, such as `fp32`."""

    kind: Literal["triton_dtype"] = "triton_dtype"
    name: Word


class FunctionArg(Record):
    """For Triton only: a jitted function; it is part of the kernel's IR, here is its name for people."""

    kind: Literal["function"] = "function"
    name: Name


Constant = IntArg | FloatArg | BoolArg | NoneArg | StrArg | ComplexArg | TorchArg | SliceArg | EllipsisArg
Argument = TypeAliasType(
    "Argument",
    Annotated[
        ValueArg
        | Constant
        | TupleArg
        | ParameterArg
        | AddressArg
        | DescriptorArg
        | TritonDtypeArg
        | FunctionArg,
        Field(discriminator="kind"),
    ],
)


def leaves(argument: Argument) -> Iterator[Any]:
    """The argument itself, or what is in the tuples of which it is made, in order."""
    if isinstance(argument, (TupleArg, SliceArg)):
        for item in argument.items:
            yield from leaves(item)
    else:
        yield argument


PLACED = (ValueArg, AddressArg, DescriptorArg)
"""Arguments that lead to the memory of a value."""


def values_of(*arguments: Argument, kinds: tuple[Any, ...] = (ValueArg,)) -> Iterator[int]:
    """The values among arguments; `kinds` as which, else as tensors."""
    for argument in arguments:
        yield from (leaf.value for leaf in leaves(argument) if isinstance(leaf, kinds))


def python_number(argument: IntArg | FloatArg | BoolArg | ComplexArg) -> complex:
    """The number that an argument stands for."""
    if isinstance(argument, ComplexArg):
        return complex(float.fromhex(argument.real), float.fromhex(argument.imag))
    return float.fromhex(argument.value) if isinstance(argument, FloatArg) else argument.value


for _record in (SliceArg, TupleArg):
    _record.model_rebuild()
