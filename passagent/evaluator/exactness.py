"""How near outputs are to the same computed in float64: what a tolerance against eager cannot tell.

It finds float32 results of half arithmetic, results that are wrong for their size where an absolute tolerance
lets them pass, and 16-bit results that differ from eager's because they are better.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

_SAMPLE = _CHUNK = 1 << 15
"""Elements of an output that its error is estimated from, and that are looked at together, at most: so few
that torch takes one thread."""
_ALLOWED = {torch.float32: 2.0**-15, torch.float64: 2.0**-40}
"""Error that an output of this dtype may have beyond 16 times eager's before it counts as computed in a lower
precision: float16 and TF32 leave 2^-12, bfloat16 2^-9."""
_WRONG = 2.0**-5
"""Beyond this error a value is not of low precision but wrong."""


@dataclass(frozen=True)
class Fact:
    """Of an output of eager's, beside shape and dtype."""

    contiguous: bool
    device: str


@dataclass(frozen=True)
class Expected:
    """Eager's outputs on one input set."""

    eager: list[torch.Tensor]
    facts: list[Fact]
    float64: list[torch.Tensor] | None
    """The same computed in float64; None where that does not run."""

    @cached_property
    def errors(self) -> list[float]:
        """Of eager's outputs against float64."""
        return [_error(exact, eager) for exact, eager in zip(self.float64 or [], self.eager, strict=False)]


@dataclass(frozen=True)
class Exactness:
    """Errors against float64, relative to the size of the outputs: the worst output's."""

    candidate: float
    eager: float
    reduced: bool
    """An output was computed in a lower precision than its dtype's, such as half arithmetic for float32."""
    far: bool
    """An output is wrong for its size, also where an absolute tolerance would let it pass."""


def exactness(expected: Expected, got: Sequence[torch.Tensor]) -> Exactness | None:
    """Both sides' errors against float64; None where that is not known.

    The error of an output is the 90% quantile of its elements' differences, relative to the root mean square
    of the float64 values: a few elements on the other side of a jump do not count.
    """
    if expected.float64 is None or len(expected.float64) != len(got):
        return None
    mine = theirs = 0.0
    reduced = far = False
    for exact, eager, have, eager_error in zip(
        expected.float64, expected.eager, got, expected.errors, strict=True
    ):
        if not _comparable(exact, eager, have):
            continue
        error = _error(exact, have)
        mine, theirs = max(mine, error), max(theirs, eager_error)
        allowed = _ALLOWED.get(eager.dtype)
        reduced |= allowed is not None and allowed + 16 * eager_error < error < _WRONG
        far |= error > max(_WRONG, 16 * eager_error)
    return Exactness(mine, theirs, reduced, far)


def as_exact(expected: Expected, got: Sequence[torch.Tensor]) -> bool:
    """Every output is as near to float64 as eager's, up to a factor of 2, in most elements and in all."""
    if expected.float64 is None or len(expected.float64) != len(got):
        return False
    return all(
        not eager.is_floating_point()
        or (
            _comparable(exact, eager, have)
            and error <= _WRONG  # else the float64 values do not stand for what eager computes
            and _error(exact, have) <= 2 * error
            and _largest(exact, have) <= 2 * _largest(exact, eager)
        )
        for exact, eager, have, error in zip(
            expected.float64, expected.eager, got, expected.errors, strict=True
        )
    )


def extreme_problem(expected: Expected, got: Sequence[torch.Tensor]) -> str | None:
    """What is wrong with outputs for inputs of large magnitude, where tolerances say little; None: nothing.

    They must be finite where eager's and the float64 values are, and not far off for their size.
    """
    exact = expected.float64 or expected.eager
    errors = expected.errors or [0.0] * len(expected.eager)
    for position, (want, eager, have) in enumerate(zip(exact, expected.eager, got, strict=True)):
        if not _comparable(want, eager, have):
            continue
        if not all(
            bool(h.isfinite().all()) or bool((h.isfinite() | ~(e.isfinite() & w.isfinite())).all())
            for w, e, h in _chunks(want, eager, have)
        ):
            return f"output {position} is not finite where eager's is, for inputs of large magnitude"
        if _error(want, have) > max(_WRONG, 16 * errors[position]):
            return f"output {position} is far from eager's for inputs of large magnitude"
    return None


def _comparable(exact: torch.Tensor, eager: torch.Tensor, have: torch.Tensor) -> bool:
    return eager.is_floating_point() and exact.shape == eager.shape == have.shape


def _error(exact: torch.Tensor, have: torch.Tensor) -> float:
    """The 90% quantile of |have - exact| / rms(exact), over finite elements of a sample."""
    if not have.is_floating_point() or exact.shape != have.shape:
        return 0.0
    step = -(-exact.numel() // _SAMPLE) or 1
    first = secrets.randbelow(step)
    a, b = (values.reshape(-1)[first::step].to(torch.float64) for values in (exact, have))
    finite = a.isfinite() & b.isfinite()
    a, b = a[finite], b[finite]
    if a.numel() == 0:
        return 0.0
    scale = float(a.square().mean().sqrt()) or 1.0
    diff = (a - b).abs() / scale
    return float(diff.kthvalue(max(1, int(0.9 * diff.numel()))).values)


def _largest(exact: torch.Tensor, have: torch.Tensor) -> float:
    """The largest finite |have - exact|."""
    return max(
        (
            float((a.to(torch.float64) - b.to(torch.float64)).abs().nan_to_num(0.0, 0.0, 0.0).max())
            for a, b in _chunks(exact, have)
            if a.numel()
        ),
        default=0.0,
    )


def _chunks(*tensors: torch.Tensor) -> zip[tuple[torch.Tensor, ...]]:
    return zip(*(tensor.reshape(-1).split(_CHUNK) for tensor in tensors), strict=True)
