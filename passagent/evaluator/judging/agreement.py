"""Agreement of outputs with eager's: on the input sets, and in timed calls on values of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from passagent.evaluator import score
from passagent.evaluator.correctness.compare import Comparison, compare, metadata_problem, surely_agree
from passagent.evaluator.correctness.exactness import (
    Exactness,
    Expected,
    as_exact,
    drift,
    exactness,
)
from passagent.evaluator.correctness.sets import SETS
from passagent.evaluator.correctness.settled import first_beyond
from passagent.evaluator.judging.verdict import Failed, Refused
from passagent.evaluator.reference.reference import Reference
from passagent.evaluator.result import GraphResult, Violation, Worst


def judge_sets(
    reference: Reference, returned: dict[int, list[torch.Tensor]], result: GraphResult, is_candidate: bool
) -> None:
    """Note from which t the outputs agree on all input sets, and their errors.

    Raises Failed where they do at no t, or are wrong for their size, and Refused for low precision, which
    only a candidate is charged with.
    """
    level, errors_of_sets = score.T_RANGE[0], []
    judged = [(reference.expected[chosen], got) for chosen, got in returned.items() if chosen < SETS]
    for expected, got in judged:
        comparison = compare(expected.eager, got)
        if comparison.problem:
            raise Failed("runtime_error", comparison.problem)
        _note(result, comparison, expected)
        if comparison.passes_from_t is None:
            what = f"{_values(_worst(expected, comparison))} differ from eager's at every t"
            raise _wrong(result, expected, comparison, what)
        level = max(level, comparison.passes_from_t)
        if (errors := exactness(expected, got)) is not None:
            _judge_errors(result, expected, got, errors, comparison.passes_from_t, is_candidate)
            errors_of_sets.append(errors)
    is_right = level <= score.STRICT_T or all(as_exact(*pair) for pair in judged)
    for number, got in returned.items():
        if number >= SETS:
            judge_extreme(reference, number, got, result, is_right)
    coarse = frozenset.intersection(*(errors.coarse for errors in errors_of_sets)) if errors_of_sets else None
    if coarse and is_candidate and level <= score.STRICT_T:
        worst = max(errors_of_sets, key=lambda errors: errors.candidate)
        raise _reduced(worst, _reference(reference.expected[0]))
    _credit(result, level, judged)


def judge_extreme(
    reference: Reference, number: int, got: list[torch.Tensor], result: GraphResult, is_right: bool
) -> None:
    """Raise Failed for outputs that are wrong on a set of large, further or special values.

    `is_right`: so far they are. Others agree from some t > -3 on, which they keep unless they are far off.
    """
    expected = reference.expected[number]
    if not is_right:
        errors = exactness(expected, got)
        if errors is not None and errors.far:
            what = f"far from eager's for inputs {reference.kinds[number]}"
            raise _wrong(result, expected, compare(expected.eager, got), what)
        return
    pairs = zip(expected.eager, expected.room, got, strict=True)
    for position, (eager, room, have) in enumerate(pairs):
        if problem := metadata_problem(position, eager, have):
            raise Failed("runtime_error", problem)
        if (worst := first_beyond(position, eager, room, have)) is not None:
            worst = result.worst = worst.model_copy(update={"input": expected.input_at(position)})
            what = f"{worst.place} at {worst.index} is {worst.got!r}, eager's is {worst.expected!r}"
            raise Failed("wrong_result", f"{what}, for inputs {reference.kinds[number]}")


def judge_timed(
    expected: Expected,
    eager: Expected,
    got: list[torch.Tensor],
    result: GraphResult,
    allowed: int,
    is_candidate: bool,
) -> None:
    """Judge a call made during the timing like an input set, and credit no more than it reached.

    `eager`: on the values of the call; `expected`: on the set that its values are of. Raises Failed unless
    the outputs agree from t = `allowed` on, and like judge_sets.
    """
    assert result.passes_from_t is not None
    if not surely_agree(eager.eager, got, result.passes_from_t):
        comparison = compare(eager.eager, got)
        level = comparison.passes_from_t
        if comparison.problem or level is None or level > allowed:
            raise _wrong(result, expected, comparison, _timed(comparison.problem or "stale or wrong values"))
        if level > result.passes_from_t:
            _note(result, comparison, expected)
            _credit(result, level, [(eager, got)])
    if eager is not expected:
        _judge_drift(expected, eager, got, result, is_candidate)
    if eager.known and (errors := exactness(eager, got)) is not None:
        _judge_errors(result, eager, got, errors, result.passes_from_t, is_candidate)


def _judge_drift(
    expected: Expected, eager: Expected, got: list[torch.Tensor], result: GraphResult, is_candidate: bool
) -> None:
    """Raise Refused or Failed for a timed call that is less precise than the calls of the check."""
    errors = drift(expected, eager.eager, got)
    if errors is None:
        return
    if (errors.reduced or errors.coarse) and is_candidate:
        raise _reduced(errors, "eager in a timed call")
    if errors.far and result.passes_from_t is not None and result.passes_from_t <= score.STRICT_T:
        what = _timed("values are far from eager's for their size")
        raise _wrong(result, expected, compare(eager.eager, got), what)


def _credit(
    result: GraphResult, level: int, judged: Sequence[tuple[Expected, Sequence[torch.Tensor]]]
) -> None:
    """The outputs agree from t = `level` on: right if that is strict, or if they are as exact as eager's."""
    result.passes_from_t = level
    if level > score.STRICT_T and not all(as_exact(*pair) for pair in judged):
        result.status = "wrong_result"
        needed = f"a correct pass agrees at t = {score.STRICT_T}"
        result.error = f"{_values(result.worst)} agree with eager's only from t = {level}; {needed}"


def _judge_errors(
    result: GraphResult,
    expected: Expected,
    got: list[torch.Tensor],
    errors: Exactness,
    level: int,
    is_candidate: bool,
) -> None:
    against = _reference(expected)
    if expected.known:
        result.float64_error = max(result.float64_error or 0.0, errors.candidate)
        result.eager_float64_error = max(result.eager_float64_error or 0.0, errors.eager)
    if errors.reduced and is_candidate:
        raise _reduced(errors, against)
    if errors.far and level <= score.STRICT_T:
        message = (
            f"values are far from eager's for their size: error {errors.candidate:.1e} against {against}, "
            f"{errors.wrong:.1%} of them wrong; compute every element"
        )
        raise _wrong(result, expected, compare(expected.eager, got), message)


def _reduced(errors: Exactness, against: str) -> Refused:
    message = (
        f"of a lower precision than eager's: error {errors.candidate:.1e} against {against}, "
        f"eager's {errors.eager:.1e}; compute in the outputs' dtype (tl.dot: input_precision), "
        "add long sums in blocks, subtract the mean before squaring, and refine approximate reciprocals"
    )
    return Refused([Violation(rule="reduced_precision", file="", line=0, message=message)])


def _reference(expected: Expected) -> str:
    return "float64" if expected.known else "eager"


def _timed(what: str) -> str:
    return f"a timed call differs from eager: {what}"


def _wrong(result: GraphResult, expected: Expected, comparison: Comparison, message: str) -> Failed:
    """The failure, with the element that is furthest outside kept in `result`."""
    result.max_abs_diff, result.worst = comparison.max_abs_diff, _worst(expected, comparison)
    return Failed("wrong_result", message)


def _note(result: GraphResult, comparison: Comparison, expected: Expected) -> None:
    """Keep the largest difference of all input sets."""
    if result.max_abs_diff is None or (comparison.max_abs_diff or 0.0) >= result.max_abs_diff:
        result.max_abs_diff, result.worst = comparison.max_abs_diff, _worst(expected, comparison)


def _worst(expected: Expected, comparison: Comparison) -> Worst | None:
    """The element that is furthest outside, named after the input where it is of one."""
    worst = comparison.worst
    change = {"input": worst and expected.input_at(worst.output), "passes_from_t": comparison.passes_from_t}
    return worst and worst.model_copy(update=change)


def _values(worst: Worst | None) -> str:
    return "values" if worst is None or worst.input is None else f"values left in input {worst.input}"
