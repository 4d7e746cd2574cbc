"""PassBench's own protocol, beside which passagent's stands."""

from __future__ import annotations

import numpy as np

from passagent.config import EvaluatorConfig
from passagent.evaluator.reference.reference import Reference, run_request
from passagent.evaluator.runner.samples import Timing
from passagent.evaluator.timing.timing import Share, Side, TimedCallError

OF_PASSBENCH = "speedup: ratio of the medians of all calls of each side"
"""The estimator of `measure_passbench`, for people."""


def measure_passbench(
    candidate: Side,
    baseline: Side,
    reference: Reference,
    config: EvaluatorConfig,
    share: Share = lambda: 0.0,
) -> Timing:
    """PassBench's protocol as it is: 25 warm-ups and 100 trials of the candidate, then the same of eager.

    One set of values behind the same addresses throughout, no pairing, no verification, medians.
    """
    timing = Timing()
    still = reference.rotation.first()
    for side, samples in ((candidate, timing.compiled), (baseline, timing.eager)):
        for calls in (config.warmups, config.trials):
            request = run_request(reference, 0, [still] * max(1, calls))
            answer = side.ask(request.model_copy(update={"often": reference.mutated}), config.timeout_s)
            if answer.error is not None:
                raise TimedCallError(answer.error)
        samples.add(answer)
        share()
    timing.pairs = [1]
    eager, compiled = (float(np.median(samples.e2e)) for samples in (timing.eager, timing.compiled))
    timing.eager_ns, timing.speedup = eager, eager / max(compiled, 1.0)
    timing.low = timing.high = timing.speedup
    return timing
