"""The rule of precision: how far outputs may be from the same graph computed in float64.

An output's error in a call is the 90% quantile of its elements' differences from float64, relative to the
root mean square of the float64 values: a few elements on the other side of a jump do not count. Its limit is
some times eager's own error, and no less than a floor that its dtype has. Error over limit, as a root mean
square over all calls together, may be 1. A tolerance against eager cannot tell float32 results of half
arithmetic, 16-bit results of 8-bit operands, or values that are wrong for their size and small.

Error beyond the limit is that of a lower precision if it is small and scattered as roundings are; else the
values are wrong. Where eager itself is ill-conditioned, the measure is what float64 makes of inputs that
differ in their last place.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from passagent.evaluator.correctness.double import real
from passagent.evaluator.correctness.inplace import States
from passagent.evaluator.score import STRICT_T, tolerance
from passagent.sandbox.pieces import chunks, each_part


@dataclass(frozen=True)
class _Rule:
    """The rule for outputs of one dtype."""

    floor: float
    """Error that is always allowed."""
    times: float
    """An error of so many times eager's own is allowed, too."""
    unknown: float
    """Error that eager is taken to have where float64 does not tell. Outputs are then held against eager's,
    and may err by twice as much: both sides' errors are in the differences."""
    fewest: int = 1
    """Elements of an output that is held to the limit: of few, eager's error may be small by chance."""


# float16 and TF32 leave 2^-12 in float32 results, bfloat16 2^-9. Operands of 8 bits leave more than 2^-7 in
# 16-bit results: with each step of norms, softmax and activations rounded, and products added in four rounded
# parts, outputs of PassNet's tasks stay well under the floor.
_RULES = {
    torch.float64: _Rule(floor=2.0**-40, times=16, unknown=2.0**-44),
    torch.float32: _Rule(floor=2.0**-15, times=16, unknown=2.0**-18),
    torch.float16: _Rule(floor=2.0**-10, times=4, unknown=2.0**-11, fewest=64),
    torch.bfloat16: _Rule(floor=2.0**-7, times=4, unknown=2.0**-8, fewest=64),
}
_WRONG, _MANY = 2.0**-5, 0.03
"""Beyond this error a value is wrong: no lower precision leaves it. This share of an output's elements may be
so beyond 4 times eager's: those on the other side of a jump."""
_FACTOR, _ALIKE = 2.0**-7, 0.9
"""No rounding moves all values alike by this much: a wrong factor or term does, and is this share of the
error's square."""
_AS_NEAR = 2
"""An output that is off by so many times what eager is counts as near to float64 as eager's."""
_STEADY = 16
"""Eager is ill-conditioned if an element is off by more than so many units in the last place of the size."""
_SAMPLE = 1 << 13
"""Elements of an output that its error is estimated from, at most: shares come out within half a per cent."""


@dataclass(frozen=True)
class Fact:
    """Facts of an output of eager's, besides shape and dtype."""

    contiguous: bool
    device: str
    own: bool = False
    """It shares no memory with an input, an output before it or within itself."""


@dataclass(frozen=True)
class Expected:
    """Eager's outputs in one call."""

    eager: list[torch.Tensor]
    """And then what eager leaves in the inputs that it writes into."""
    facts: list[Fact]
    """Facts of the outputs."""
    float64: list[torch.Tensor] | None
    """The values of `eager` computed in float64; None where that does not run, and where `room` tells."""
    states: list[States] = field(default_factory=list)
    """States of the inputs that eager writes into."""
    room: list[torch.Tensor] = field(default_factory=list)
    """How far values of `eager` may be missed (settled.py), on sets that outputs are not compared on."""
    spread: list[torch.Tensor] = field(default_factory=list)
    """How far values of `float64` move with inputs that differ in their last place; empty: not looked at."""
    usual_sizes: list[float] = field(default_factory=list)
    """Sizes on the input set that this call's values are of: a value may be small by chance."""

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
    def errors(self) -> list[_Error]:
        """Errors of eager's outputs."""
        if not self.known:
            return [_Error(_rule(eager).unknown) for eager in self.eager]
        return [_error(exact, eager) for exact, eager in zip(self.exact, self.eager, strict=True)]

    @cached_property
    def moves(self) -> list[_Error]:
        """Errors of float64 values whose inputs differ in their last place, where that was looked at."""
        if not self.spread:
            return [_Error()] * len(self.eager)
        pairs = zip(self.exact, self.spread, strict=True)
        return [_error(real(exact), real(exact) + spread) for exact, spread in pairs]

    @cached_property
    def sizes(self) -> list[float]:
        """Root mean squares of the exact outputs."""
        return [_size(exact) for exact in self.exact]

    @property
    def is_ill_conditioned(self) -> bool:
        """Tell whether an element of eager's is further from float64 than the rounding of sums explains."""
        return self.known and any(
            eager.is_floating_point()
            and _largest(_differences, exact, eager) > _STEADY * torch.finfo(eager.dtype).eps * size
            for exact, eager, size in zip(self.exact, self.eager, self.sizes, strict=True)
        )

    def input_at(self, position: int) -> int | None:
        """The input whose last values stand at `position` of `eager`; None: an output does."""
        outputs = len(self.facts)
        return None if position < outputs else self.states[position - outputs].position


Call = tuple[Expected, Sequence[torch.Tensor]]
"""A call: what was expected of it, and what it returned."""


@dataclass(frozen=True)
class Precision:
    """The verdict on outputs. The figures are those of the output and call that err most by the rule."""

    kind: Literal["right", "reduced", "wrong"] = "right"
    is_far: bool = False
    """Values of one call are wrong for their size: on the whole, or in too many places for a jump."""
    error: float = 0.0
    eager_error: float = 0.0
    wrong_share: float = 0.0
    """The share of elements that are wrong for their size."""
    call: int = 0
    """The number of that call."""
    is_known: bool = True
    """The errors are against float64, not eager."""


def judge_precision(calls: Sequence[Call]) -> Precision:
    """Judge the outputs of calls of one subgraph, all together, by the rule of this module."""
    outputs = len(calls[0][0].eager)
    figures, is_over = list[_Figure](), False
    for position in range(outputs):
        of_output = [_Figure.of(number, *call, position) for number, call in enumerate(calls)]
        of_floats = [figure for figure in of_output if figure is not None]
        is_over |= sum(figure.ratio**2 for figure in of_floats) > len(of_floats)
        figures += of_floats
    if not figures:
        return Precision()
    worst = max(figures, key=lambda figure: (figure.is_far, figure.ratio))
    kind: Literal["right", "reduced", "wrong"] = "right"
    if worst.is_far or is_over:
        kind = "reduced" if not worst.is_far and worst.is_of_roundings() else "wrong"
    errors = worst.error.typical, worst.eager.typical, worst.error.wrong
    return Precision(kind, worst.is_far, *errors, worst.call, worst.is_known)


@dataclass(frozen=True)
class _Figure:
    """The errors of one output in one call."""

    call: int
    exact: torch.Tensor
    got: torch.Tensor
    rule: _Rule
    error: _Error
    eager: _Error
    move: _Error
    is_known: bool

    @staticmethod
    def of(call: int, expected: Expected, got: Sequence[torch.Tensor], position: int) -> _Figure | None:
        """Return the errors; None for what is no float, or of another shape."""
        exact, eager, have = (real(t[position]) for t in (expected.exact, expected.eager, got))
        if not _comparable(exact, eager, have):
            return None
        least = expected.usual_sizes[position] if expected.usual_sizes else 0.0
        error = _error(exact, have, least)
        eager_errors = expected.errors[position], expected.moves[position]
        return _Figure(call, exact, have, _rule(eager), error, *eager_errors, expected.known)

    @property
    def ratio(self) -> float:
        """The error over its limit; 0 for an output that has none."""
        if self.got.numel() < self.rule.fewest:
            return 0.0
        limit = max(self.rule.floor, self.rule.times * self.eager.typical, self.move.typical)
        return self.error.typical / (limit if self.is_known else 2 * limit)

    @property
    def is_far(self) -> bool:
        """Tell whether elements are wrong for their size: on the whole, or in too many places for a jump."""
        usual, share = max(self.eager.typical, self.move.typical), max(self.eager.wrong, self.move.wrong)
        return self.error.typical > max(_WRONG, 16 * usual) or self.error.wrong > _MANY + 4 * share

    def is_of_roundings(self) -> bool:
        """Tell whether the error is one that a lower precision explains: small, and scattered."""
        if self.error.typical > _WRONG:
            return False
        exact, got = _samples(self.exact, self.got)
        is_finite = exact.isfinite() & got.isfinite()
        values, off = exact[is_finite], (got - exact)[is_finite]
        columns = torch.stack([values, torch.ones_like(values)], 1)
        alike = columns @ torch.linalg.lstsq(columns, off[:, None]).solution
        moved, size = (float(part.square().mean().sqrt()) for part in (alike, values))
        return moved <= _FACTOR * size or float(alike.square().sum()) <= _ALIKE * float(off.square().sum())


def is_as_exact(expected: Expected, got: Sequence[torch.Tensor]) -> bool:
    """Tell whether outputs are as near to float64 as eager's, in most elements and in all.

    Where it was looked at how inputs' last places move a value, it may be off by as much more than the
    tolerance that a correct output keeps.
    """
    if not expected.known or len(expected.exact) != len(got):
        return False
    for position, output in enumerate(zip(expected.exact, expected.eager, got, strict=True)):
        exact, eager, have = map(real, output)
        if not eager.is_floating_point():
            continue
        error = expected.errors[position].typical
        if not _comparable(exact, eager, have) or error > _WRONG:
            return False  # float64 values of a large error do not stand for what eager computes
        is_near = _error(exact, have).typical <= _AS_NEAR * error and (
            _largest(_differences, exact, have) <= _AS_NEAR * _largest(_differences, exact, eager)
        )
        if not is_near and not (
            expected.spread and _is_within(eager, exact, have, expected.spread[position])
        ):
            return False
    return True


def _is_within(eager: torch.Tensor, exact: torch.Tensor, have: torch.Tensor, spread: torch.Tensor) -> bool:
    """Tell whether each element is within the strict tolerance and some times its spread from float64."""
    times, (atol, rtol) = times_eager(eager), tolerance(str(eager.dtype).removeprefix("torch."), STRICT_T)

    def beyond(exact: torch.Tensor, have: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        return _differences(exact, have) - atol - rtol * _magnitudes(exact) - times * spread

    return _largest(beyond, exact, have, spread) <= 0


def times_eager(eager: torch.Tensor) -> float:
    """Return how many times an error of eager's own is allowed in an output like this, by its dtype."""
    return _rule(eager).times


def _rule(eager: torch.Tensor) -> _Rule:
    return _RULES.get(real(eager).dtype, _RULES[torch.bfloat16])


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
    exact, have = real(exact), real(have)
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
    (sample,) = _samples(real(values))
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
