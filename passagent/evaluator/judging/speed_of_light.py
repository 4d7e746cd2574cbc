"""A call that writes its outputs faster than the device can copy did not do its work.

The bound is low on purpose: an honest candidate must never meet it. Only bytes that any call must write
count; reads and FLOPs do not, since honest code may read a part of an input, or do less arithmetic than the
graph says. The rate is the best that a copy reaches here at any size, in cache or not, and measured again
when it matters; and a margin comes on top.
"""

from __future__ import annotations

from collections.abc import Callable

from passagent.errors import InfrastructureError
from passagent.evaluator.hardware import machine
from passagent.evaluator.reference.reference import Reference
from passagent.evaluator.result import GraphResult, Measured, Violation
from passagent.evaluator.runner.samples import Timing
from passagent.evaluator.timing.estimate import typical_ns

MARGIN = 2.0
"""Times the rate of a copy, which counts bytes read and written; only those written count for a candidate."""
LEAST_BYTES = 16 << 20
"""Smaller outputs fit into the caches of single cores, whose rates no copy of torch's shows."""


def beyond_light(
    reference: Reference,
    result: GraphResult,
    timing: Timing,
    device: str,
    measured_now: Callable[[str], machine.Machine] = machine.measured_now,
) -> Measured | None:
    """The figures of a time that no device explains, in GB/s; None for any other one.

    Where an operator of eager's is left, it may have written an output, and nothing is said.
    """
    if reference.written_bytes < LEAST_BYTES or set(result.left) - set(result.applied):
        return None
    rate = reference.written_bytes / max(typical_ns(timing.compiled.counted), 1.0) * 1e9
    eager_rate = reference.written_bytes / max(typical_ns(timing.eager.counted), 1.0) * 1e9
    earlier = machine.kept_machine(device)
    if earlier is not None and rate <= MARGIN * max(earlier.best_bandwidth, eager_rate):
        return None
    try:
        now = measured_now(device)
    except InfrastructureError:  # what is not known refuses nobody
        return None
    if earlier is None:
        machine.keep(device, now)
    best = max(now.best_bandwidth, earlier.best_bandwidth if earlier else 0.0, eager_rate)
    if rate <= MARGIN * best:
        return None
    return Measured(claimed=rate / 1e9, seen=best / 1e9, bound=MARGIN * best / 1e9, unit="GB/s")


def refusal(measured: Measured) -> Violation:
    """The violation of a candidate that was beyond light in two measurements."""
    message = (
        f"it would write its outputs at {measured.claimed:.4g} GB/s; "
        f"a copy here reaches {measured.seen:.4g} GB/s, "
        f"and more than {measured.bound:.4g} GB/s is taken for impossible. Two measurements by separate "
        "processes say so: every call must write its outputs. The refusal is not kept: evaluating the pass "
        "again measures again"
    )
    return Violation(rule="speed_of_light", file="", line=0, message=message, measured=measured)
