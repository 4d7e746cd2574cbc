"""`compute_ops: library-only`: matrix products and convolutions stay the library's; a pass fuses around.

A plan may have the library compute a convolution, so that what it adds is the plan's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from passagent.evaluator.result import Violation
from passagent.plan.model import Recording
from passagent.tasks.reader import ALLOWED, Subgraph

_COMPUTING = re.compile(
    r"conv(_transpose)?[123]d|convolution|linear|bilinear|matmul|__matmul__|mm|bmm|mv|dot|addmm|addmv|addbmm"
    r"|baddbmm|einsum|tensordot|inner|outer|chain_matmul|scaled_dot_product_attention"
    r"|multi_head_attention_forward|lstm|gru|rnn_tanh|rnn_relu"
)


def taken_from_the_library(subgraphs: Sequence[Subgraph], recording: Recording) -> list[Violation]:
    """A violation for each pass that replaces such an operator where it is left to the library."""
    restricted = {subgraph.name for subgraph in subgraphs if subgraph.compute_ops != ALLOWED}
    numbers = {
        call.number
        for subgraph in recording.subgraphs
        for call in subgraph.calls
        if subgraph.name in restricted and not recording.passes[call.number].plans[call.plan].library
    }
    violations = []
    for number in sorted(numbers):
        entry = recording.passes[number]
        targets = (re.split(r"[:.]", node.target)[-1] for node in entry.pattern if node.op.startswith("call"))
        if taken := [name for name in targets if _COMPUTING.fullmatch(name)]:
            message = (
                f"replaces {taken[0]}, which this task leaves to the library (compute_ops: library-only); "
                "match only what comes before or after it"
            )
            violations.append(Violation(rule="compute_ops", file=entry.file, line=0, message=message))
    return violations
