"""Agreement of outputs with eager's: on the input sets, and in timed calls on values of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch

from passagent.evaluator import score
from passagent.evaluator.correctness.compare import Comparison, compare, metadata_problem, surely_agree
from passagent.evaluator.correctness.precision import (
    Call,
    Expected,
    is_as_exact,
    judge_precision,
)
from passagent.evaluator.correctness.settled import first_beyond
from passagent.evaluator.judging.verdict import Failed, Refused
from passagent.evaluator.reference.reference import Reference
from passagent.evaluator.result import GraphResult, Violation, Worst
from passagent.evaluator.score import SETS

_ADVICE = "compute every element, with the graph's own constants and terms"


def judge_sets(
    reference: Reference,
    returned: dict[int, list[torch.Tensor]],
    result: GraphResult,
    look_closer: Callable[[Expected, int], Expected],
    is_candidate: bool,
) -> None:
    """Note from which t the outputs agree on all input sets, and their errors.

    Raises Failed where they do at no t, or are wrong for their size, and Refused for low precision, which
    only a candidate is charged with.
    """
    level, sets, calls = score.T_RANGE[0], list[int](), list[Call]()
    for chosen, got in returned.items():
        if chosen >= SETS:
            continue
        expected = reference.expected[chosen]
        comparison = compare(expected.eager, got)
        if comparison.problem:
            raise Failed("runtime_error", comparison.problem)
        _note(result, comparison, expected)
        if comparison.passes_from_t is None:
            what = f"{_values(_worst(expected, comparison))} differ from eager's at every t"
            raise _wrong(result, expected, comparison, what)
        level = max(level, comparison.passes_from_t)
        sets.append(chosen)
        calls.append((expected, got))

    def closer() -> list[Call]:
        return [
            (look_closer(expected, chosen), got) for chosen, (expected, got) in zip(sets, calls, strict=True)
        ]

    is_right = _judge_calls(result, calls, level, closer, is_candidate)
    for number, got in returned.items():
        if number >= SETS:
            judge_extreme(reference, number, got, result, is_right, look_closer)
    _credit(result, level, is_right)


def judge_extreme(
    reference: Reference,
    number: int,
    got: list[torch.Tensor],
    result: GraphResult,
    is_right: bool,
    look_closer: Callable[[Expected, int], Expected],
) -> None:
    """Raise Failed for outputs that are wrong on a set of large, further or special values.

    `is_right`: so far they are. Others agree from some t > -3 on, which they keep unless they are far off.
    What agrees with eager's values as they stand is right however many of them eager would not keep, so only
    other outputs are looked at more closely.
    """
    expected = reference.expected[number]
    if not is_right:
        if len(got) == len(expected.eager) and judge_precision([(expected, got)]).is_far:
            what = f"far from eager's for inputs {reference.kinds[number]}"
            raise _wrong(result, expected, compare(expected.eager, got), what)
        return
    for position, (eager, have) in enumerate(zip(expected.eager, got, strict=True)):
        if problem := metadata_problem(position, eager, have):
            raise Failed("runtime_error", problem)
        if first_beyond(position, eager, None, have) is None:
            continue
        expected = look_closer(expected, number)
        if (worst := first_beyond(position, eager, expected.room[position], have)) is not None:
            worst = result.worst = worst.model_copy(update={"input": expected.input_at(position)})
            what = f"{worst.place} at {worst.index} is {worst.got!r}, eager's is {worst.expected!r}"
            raise Failed("wrong_result", f"{what}, for inputs {reference.kinds[number]}")


def judge_timed(
    eager: Expected,
    got: list[torch.Tensor],
    result: GraphResult,
    allowed: int,
    look_closer: Callable[[Expected], Expected],
    is_candidate: bool,
) -> None:
    """Judge a call made during the timing like an input set, and credit no more than it reached.

    `eager`: on the values of the call. Raises Failed unless the outputs agree from t = `allowed` on, or are
    as exact as eager's, and like judge_sets.
    """
    assert result.passes_from_t is not None
    level = result.passes_from_t
    if not surely_agree(eager.eager, got, level):
        comparison = compare(eager.eager, got)
        reached = comparison.passes_from_t
        if reached is not None and reached > allowed:
            eager = look_closer(eager)  # an ill-conditioned value may differ by more than before
            reached = reached if is_as_exact(eager, got) else None
        if comparison.problem or reached is None:
            raise _wrong(result, eager, comparison, _timed(comparison.problem or "stale or wrong values"))
        if reached > level:
            level = reached
            _note(result, comparison, eager)
    is_right = _judge_calls(
        result, [(eager, got)], level, lambda: [(look_closer(eager), got)], is_candidate, _timed
    )
    if level > result.passes_from_t:
        _credit(result, level, is_right)


def _judge_calls(
    result: GraphResult,
    calls: list[Call],
    level: int,
    look_closer: Callable[[], list[Call]],
    is_candidate: bool,
    worded: Callable[[str], str] = str,
) -> bool:
    """Judge calls by the rule of precision: True if they are right, though they agree from `level` on only.

    `look_closer`: the calls where eager was looked at more closely. Raises Failed for values that are wrong
    though they agree at a strict level, and Refused for a candidate of a lower precision.
    """
    precision, is_right = judge_precision(calls), _are_right(calls, level)
    if precision.kind != "right" or not is_right:
        calls = look_closer()
        precision, is_right = judge_precision(calls), _are_right(calls, level)
    against = "float64" if precision.is_known else "eager"
    if precision.is_known:
        result.float64_error = max(result.float64_error or 0.0, precision.error)
        result.eager_float64_error = max(result.eager_float64_error or 0.0, precision.eager_error)
    errors = f"error {precision.error:.1e} against {against}, eager's {precision.eager_error:.1e}"
    if precision.kind == "reduced" and is_candidate:
        raise _reduced(worded(errors))
    if precision.kind == "wrong" and level <= score.STRICT_T:
        expected, got = calls[precision.call]
        share = f", {precision.wrong_share:.1%} of them wrong" if precision.wrong_share else ""
        message = f"values are far from eager's for their size: {errors}{share}; {_ADVICE}"
        raise _wrong(result, expected, compare(expected.eager, got), worded(message))
    return is_right and precision.kind != "wrong"


def _are_right(calls: list[Call], level: int) -> bool:
    return level <= score.STRICT_T or all(is_as_exact(*call) for call in calls)


def _credit(result: GraphResult, level: int, is_right: bool) -> None:
    """The outputs agree from t = `level` on: right if that is strict, or if they are as exact as eager's."""
    result.passes_from_t = level
    if not is_right:
        result.status = "wrong_result"
        needed = f"a correct pass agrees at t = {score.STRICT_T}"
        result.error = f"{_values(result.worst)} agree with eager's only from t = {level}; {needed}"


def _reduced(errors: str) -> Refused:
    message = (
        f"of a lower precision than eager's: {errors}; compute in the outputs' dtype "
        "(tl.dot: input_precision), add long sums in blocks, subtract the mean before squaring, and refine "
        "approximate reciprocals"
    )
    return Refused([Violation(rule="reduced_precision", file="", line=0, message=message)])


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
