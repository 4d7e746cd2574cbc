"""How near outputs are to the same computed in float64: what a tolerance against eager cannot tell.

It finds float32 results of half arithmetic, 16-bit results of 8-bit operands, results that are wrong for
their size where an absolute tolerance lets them pass, and 16-bit results that differ from eager's because
they are better.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from passagent.evaluator.correctness.inplace import States
from passagent.sandbox.pieces import chunks, each_part

_SAMPLE = 1 << 13
"""Elements of an output that its error is estimated from, at most: shares come out within half a per cent."""
_ALLOWED = {torch.float32: 2.0**-15, torch.float64: 2.0**-40}
"""Error that an output of this dtype may have beyond 16 times eager's before it counts as computed in a lower
precision: float16 and TF32 leave 2^-12, bfloat16 2^-9."""
_COARSE = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""The coarse limit of a 16-bit output's error, where that is also beyond 4 times eager's, on every input set:
operands of 8 bits leave more. With each step of norms, softmax and activations rounded, and products added in
four rounded parts, outputs of PassNet's tasks stay well under it."""
_SEVERAL = 64
"""The fewest elements for which that is judged: of a few, eager's error may be small by chance."""
_UNKNOWN = {
    torch.float64: 2.0**-44,
    torch.float32: 2.0**-19,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
}
"""Error that eager is taken to have where float64 does not tell: then outputs are held against its own, as a
tolerance alone lets anything pass for small values."""
_WRONG = 2.0**-5
"""Beyond this error a value is not of low precision but wrong."""
_MANY = 0.03
"""Share of an output's values that may be wrong beyond 4 times eager's: those on the other side of a jump."""


@dataclass(frozen=True)
class Fact:
    """Facts of an output of eager's, besides shape and dtype."""

    contiguous: bool
    device: str
    own: bool = False
    """It shares no memory with an input, an output before it or within itself."""


@dataclass(frozen=True)
class Expected:
    """Eager's outputs on one input set."""

    eager: list[torch.Tensor]
    """And then what eager leaves in the inputs that it writes into."""
    facts: list[Fact]
    """Facts of the outputs."""
    float64: list[torch.Tensor] | None
    """The values of `eager` computed in float64; None where that does not run."""
    states: list[States] = field(default_factory=list)
    """States of the inputs that eager writes into."""
    room: list[torch.Tensor] = field(default_factory=list)
    """How far values of `eager` may be missed (settled.py), on sets that outputs are not compared on."""

    @cached_property
    def known(self) -> bool:
        """True if all outputs are known in float64."""
        return (
            self.float64 is not None
            and len(self.float64) == len(self.eager)
            and all(exact.shape == eager.shape for exact, eager in zip(self.float64, self.eager, strict=True))
        )

    @property
    def exact(self) -> list[torch.Tensor]:
        """The values that outputs are compared with: float64, or eager's own where that is not known."""
        return self.float64 if self.known and self.float64 is not None else self.eager

    @cached_property
    def errors(self) -> list[float]:
        """Errors of eager's outputs against float64."""
        return [error.typical for error in self._errors]

    @cached_property
    def _errors(self) -> list[_Error]:
        if not self.known:
            return [_Error(_UNKNOWN.get(_real(eager).dtype, 0.0)) for eager in self.eager]
        return [_error(exact, eager) for exact, eager in zip(self.exact, self.eager, strict=True)]

    @cached_property
    def sizes(self) -> list[float]:
        """Root mean squares of the exact outputs."""
        return [_size(exact) for exact in self.exact]

    def input_at(self, position: int) -> int | None:
        """The input whose last values stand at `position` of `eager`; None: an output does."""
        outputs = len(self.facts)
        return None if position < outputs else self.states[position - outputs].position

    def far(self, position: int, error: _Error) -> bool:
        """An output with this error is wrong for its size: on the whole, or in too many places for a jump."""
        mine = self._errors[position]
        return error.typical > max(_WRONG, 16 * mine.typical) or error.wrong > _MANY + 4 * mine.wrong


@dataclass(frozen=True)
class Exactness:
    """Errors against float64, relative to the size of the outputs: the worst output's."""

    candidate: float
    eager: float
    reduced: bool
    """An output was computed in a lower precision than its dtype's, such as half arithmetic for float32."""
    coarse: frozenset[int]
    """16-bit outputs with the error of narrower arithmetic; on one input set that may be chance."""
    wrong: float
    """Share of an output's values that are wrong for its size."""
    far: bool
    """So are more than a jump or low precision explains, also where an absolute tolerance lets them pass."""


def exactness(expected: Expected, got: Sequence[torch.Tensor]) -> Exactness | None:
    """Both sides' errors against float64, or against eager where that is not known; None if some are missing.

    The error of an output is the 90% quantile of its elements' differences, relative to the root mean square
    of the float64 values: a few elements on the other side of a jump do not count.
    """
    if len(expected.eager) != len(got):
        return None
    return _worst(expected, expected.exact, got, [0.0] * len(got), against_eager=not expected.known)


def drift(expected: Expected, eager: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> Exactness | None:
    """Judge a call on other values of the set of `expected`, against `eager` on those values.

    Eager's error follows from the set: float64 is not known here.
    """
    if not len(expected.eager) == len(eager) == len(got):
        return None
    return _worst(expected, eager, got, expected.sizes, against_eager=True)


def _worst(
    expected: Expected,
    exact: Sequence[torch.Tensor],
    got: Sequence[torch.Tensor],
    at_least: Sequence[float],
    against_eager: bool,
) -> Exactness:
    """The worst output's errors against `wanted`; `against_eager`: their own error is in those, too."""
    mine = theirs = wrong = 0.0
    reduced = far = False
    coarse: set[int] = set()
    for position, triple in enumerate(zip(expected.eager, exact, got, strict=True)):
        eager, want, have = map(_real, triple)
        if not _comparable(want, eager, have):
            continue
        error, eager_error = _error(want, have, at_least[position]), expected.errors[position]
        mine, theirs, wrong = max(mine, error.typical), max(theirs, eager_error), max(wrong, error.wrong)
        low = _is_reduced(eager.dtype, error.typical / (2 if against_eager else 1), eager_error)
        if _is_coarse(eager, error.typical, eager_error, against_eager):
            coarse.add(position)
        reduced, far = reduced or low, far or (expected.far(position, error) and not low)
    return Exactness(mine, theirs, reduced, frozenset(coarse), wrong, far)


def _is_reduced(dtype: torch.dtype, error: float, eager_error: float) -> bool:
    allowed = _ALLOWED.get(dtype)
    return allowed is not None and allowed + 16 * eager_error < error < _WRONG


def _is_coarse(eager: torch.Tensor, error: float, eager_error: float, against_eager: bool) -> bool:
    allowed, most = _COARSE.get(eager.dtype), 4 * eager_error
    if allowed is None or eager.numel() < _SEVERAL:
        return False
    if against_eager:  # both sides' errors and last roundings are in the differences; they add as squares
        allowed, most = allowed * 2**0.5, math.hypot(most, eager_error)
    return error > max(allowed, most)


def as_exact(expected: Expected, got: Sequence[torch.Tensor]) -> bool:
    """Every output is as near to float64 as eager's, up to a factor of 2, in most elements and in all."""
    if not expected.known or len(expected.exact) != len(got):
        return False
    outputs = (map(_real, output) for output in zip(expected.exact, expected.eager, got, strict=True))
    return all(
        not eager.is_floating_point()
        or (
            _comparable(exact, eager, have)
            and error <= _WRONG  # else the float64 values do not stand for what eager computes
            and _error(exact, have).typical <= 2 * error
            and _largest(_differences, exact, have) <= 2 * _largest(_differences, exact, eager)
        )
        for (exact, eager, have), error in zip(outputs, expected.errors, strict=True)
    )


def _real(values: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _comparable(exact: torch.Tensor, eager: torch.Tensor, have: torch.Tensor) -> bool:
    return eager.is_floating_point() and exact.shape == eager.shape == have.shape


@dataclass(frozen=True)
class _Error:
    """Errors of an output: its elements' differences relative to the root mean square of the exact values."""

    typical: float = 0.0
    """The 90% quantile."""
    wrong: float = 0.0
    """The share of elements beyond _WRONG."""


def _error(exact: torch.Tensor, have: torch.Tensor, at_least: float = 0.0) -> _Error:
    """Over finite elements of a sample; relative to `at_least`, if the exact values are smaller than that."""
    exact, have = _real(exact), _real(have)
    if not have.is_floating_point() or exact.shape != have.shape:
        return _Error()
    a, b = _samples(exact, have)
    finite = a.isfinite() & b.isfinite()
    a, b = a[finite], b[finite]
    if a.numel() == 0:
        return _Error()
    scale = max(float(a.square().mean().sqrt()), at_least) or 1.0
    diff = (a - b).abs() / scale
    typical = diff.kthvalue(max(1, int(0.9 * diff.numel()))).values
    return _Error(float(typical), float((diff > _WRONG).double().mean()))


def _size(values: torch.Tensor) -> float:
    """The root mean square of the finite elements of a sample."""
    (sample,) = _samples(_real(values))
    sample = sample[sample.isfinite()]
    return float(sample.square().mean().sqrt()) if sample.numel() else 0.0


def _samples(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Draw the same elements of each by chance: values may differ at regular places."""
    flat = [values.reshape(-1) for values in tensors]
    if flat[0].numel() > _SAMPLE:
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        chosen = torch.randint(flat[0].numel(), (_SAMPLE,), generator=generator)
        flat = [values[chosen] for values in flat]
    return [values.to(torch.float64) for values in flat]


def _largest(of: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> float:
    """The largest value that `of` makes of their elements."""

    def largest(_: int, *part: torch.Tensor) -> float:
        return max(float(of(*chunk).max()) for chunk in chunks(*part))

    return max(each_part(largest, *map(torch.flatten, tensors))) if tensors[0].numel() else 0.0


def _differences(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _magnitudes(a.to(torch.float64) - b.to(torch.float64))


def _magnitudes(values: torch.Tensor) -> torch.Tensor:
    """In float64; 0 where a value is not finite."""
    return values.to(torch.float64).abs().nan_to_num(0.0, 0.0, 0.0)
