"""Charge a call with work that is done while its outputs are copied, after its clock has stopped.

Native code of a candidate may leave its work to that moment: whatever a worker calls there can be made to
compute. No check finds all of it. But copying eager's outputs, which are the same, tells what copying takes.
"""

from __future__ import annotations

import math
from itertools import chain

import numpy as np

from passagent.evaluator.runner.samples import Samples

_SURELY = 3.5
"""Standard deviations by which two shares differ: on a busy machine honest ones differed by up to 2.8."""
_USUAL = 0.9
"""Share of eager's calls whose outputs are copied in what is allowed."""
_SMALL_NS = 10_000
"""Copying takes so long in any process; what goes beyond it in one differed by up to 1.9 times in another."""


def charge(eager: Samples, compiled: Samples) -> None:
    """Where copying surely takes longer than may be, add what is beyond eager's median to each call's time.

    Surely: that is so in a larger share of the candidate's calls than of eager's. So one that leaves work
    undone in a part of its calls shows, too.
    """
    theirs, candidate_times = (np.array(list(chain(*side.copying))) for side in (eager, compiled))
    if not theirs.size or not candidate_times.size:
        return
    usual = round(float(np.median(theirs)))
    allowed = max(float(np.quantile(theirs, _USUAL)), 2 * usual - _SMALL_NS)
    longer = (candidate_times > allowed, theirs > allowed)
    share = float(np.concatenate(longer).mean())
    spread = math.sqrt(share * (1 - share) * (1 / candidate_times.size + 1 / theirs.size))
    if longer[0].mean() - longer[1].mean() <= _SURELY * spread:
        return
    for number, copying in enumerate(compiled.copying):
        beyond = [max(0, copied - usual) for copied in copying]
        compiled.blocks[number] = [sum(both) for both in zip(compiled.blocks[number], beyond, strict=True)]
        compiled.hidden[number] -= sum(beyond)
