"""The values of a plan: the tensors of a call, by position."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from passagent.plan.arguments import Device, Digest, Dtype, Number, Record, Sizes


class _Tensor(Record):
    shape: Sizes
    stride: Sizes
    """In elements."""
    dtype: Dtype
    device: Device

    @model_validator(mode="after")
    def _same_rank(self) -> Self:
        if len(self.shape) != len(self.stride):
            raise ValueError(f"shape {self.shape} and stride {self.stride} differ in length")
        return self


class InputValue(_Tensor):
    """A tensor that the call is given. `Plan.inputs` says where."""

    kind: Literal["input"] = "input"
    alignment: Literal[1, 2, 4, 8, 16] = 16
    """Bytes by which its address is divisible: kernels may rely on it."""


class MadeValue(_Tensor):
    """A tensor that an `Alloc` or `OperatorCall` step of this plan makes, in memory of its own."""

    kind: Literal["made"] = "made"


class ViewValue(_Tensor):
    """A part of the memory of an input, a made value or a constant (`of`; never of another view).

    `offset`: elements of this view's dtype between the first element of `of` and its own.
    """

    kind: Literal["view"] = "view"
    of: Number
    offset: Annotated[int, Field(ge=-(1 << 62), lt=1 << 62)]


class ConstantAddress(Record):
    """A 64-bit word of a constant is the address of a value plus `offset` bytes, put there at each call."""

    word: Number
    value: Number
    offset: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]


class ConstantValue(_Tensor):
    """A contiguous tensor with these bytes (`Plan.constants`), read only."""

    kind: Literal["constant"] = "constant"
    data: Digest
    addresses: Annotated[tuple[ConstantAddress, ...], Field(max_length=1 << 17)] = ()


Value = Annotated[InputValue | MadeValue | ViewValue | ConstantValue, Field(discriminator="kind")]
