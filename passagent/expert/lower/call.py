"""From torch operators to tensor expressions: the registry, and what all lowerings share.

A lowering is a function `(c: Call, *args, **kwargs)` with the operator's own signature; tensors arrive as
Value, literals as they are, literals that became pattern parameters as Size (int) or Scalar (float).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from passagent.expert.lower.dtypes import HALVES, compute_type, dtype_name
from passagent.expert.lower.expressions import Expr, Number, Trace, Value, apply
from passagent.expert.lower.shapes import broadcast
from passagent.expert.lower.symbolic_sizes import Scalar, Size, Unsupported

Lowered = Callable[..., Any]
OPS: dict[str, Lowered] = {}


def lowers(*names: str) -> Callable[[Lowered], Lowered]:
    """Register a lowering under the names of functions and methods."""

    def register(function: Lowered) -> Lowered:
        OPS.update(dict.fromkeys(names, function))
        return function

    return register


@dataclass
class Call:
    """One operator call being lowered."""

    trace: Trace
    op: str
    out: str
    """dtype of the (first) result."""

    @property
    def target(self) -> str:
        return self.trace.target

    def fail(self, reason: str) -> Unsupported:
        return Unsupported(self.op, reason)

    def pointwise(
        self,
        function: str | Callable[..., Expr],
        *inputs: Value | Number,
        common: str = "",
        out: str = "",
        exact: bool = False,
        rounds: bool = False,
    ) -> Value:
        """Apply an operator, or a function of expressions, element by element with broadcasting.

        All inputs get the dtype `common` first, that of the result if not named, integers modulo its range.
        In 16 bits numbers, and what eager takes for one, have the type that is computed with, unless the
        operator `rounds` them.
        """
        common = common or out or self.out
        dims, parts = broadcast([v for v in inputs if isinstance(v, Value)])
        operands = iter(parts)
        args = []
        for v in inputs:
            operand = next(operands) if isinstance(v, Value) else self.trace.number(v, compute_type(common))
            is_known = self.target == "cpu" or operand.kind == "const"  # beside a kernel's launch
            alone = not isinstance(v, Value) or (is_known and not v.dims)
            stays = alone and not rounds and common in HALVES
            args.append(operand.through(compute_type(common) if stays else common))
        expr = apply(function, *args) if isinstance(function, str) else function(*args)
        return Value(dims, expr.stored(out or self.out, exact))

    def promoted(self, a: Value | Number, b: Value | Number) -> str:
        """The dtype that PyTorch promotes the inputs of a comparison to."""
        name = dtype_name(torch.result_type(_example(a), _example(b)))
        generic = any(isinstance(v, Value) and v.dtype == "half" for v in (a, b))
        return "half" if generic and name == "bfloat16" else name

    def constant(self, number: Number, dtype: str = "") -> Value:
        """A tensor without dimensions."""
        dtype = dtype or self.out
        return Value([], self.trace.number(number, compute_type(dtype)).stored(dtype))


def _example(value: Value | Number) -> Any:
    """An example that PyTorch promotes like `value`; `half` is bfloat16, as only float16 is named."""
    if not isinstance(value, Value):
        return value.hint if isinstance(value, Size | Scalar) else value
    dtype = torch.bfloat16 if value.dtype == "half" else getattr(torch, value.dtype)
    return torch.empty([1] * len(value.dims), dtype=dtype, device="meta")


def check_shape(op: str, result: Any, expected: Any) -> None:
    """Raise Unsupported if what was lowered has not the shape of `expected`, or is empty."""
    pairs = zip(result, expected, strict=True) if isinstance(result, tuple) else [(result, expected)]
    for value, like in pairs:
        if not isinstance(value, Value):  # a result that is lowered when it is unpacked
            continue
        shape = [size.hint for size in value.refresh().shape]
        eager_shape = [n if isinstance(n, int) else n.node.hint for n in like.shape]
        if shape != eager_shape:
            raise Unsupported(op, f"shape {shape} came out where eager has {eager_shape}")
        if any(n == 0 for n in shape):
            raise Unsupported(op, "an empty tensor")


def int_list(*sizes: Any) -> list[Any]:
    """`view(2, 3)` and `view((2, 3))` alike."""
    return list(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes)


def arguments(names: str, args: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """An operator's arguments by name, as far as they are given. Raises TypeError for one of another name."""
    order = names.split()
    if len(args) > len(order) or not named.keys() <= {*order}:
        raise TypeError(f"others than {', '.join(order)}")
    return dict(zip(order, args, strict=False)) | named


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % rank if rank else 0
