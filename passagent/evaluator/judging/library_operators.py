"""Hold plans against what a task leaves to torch's library, and what a pass may call of it.

`library` says which operators of torch a plan may call. By `compute_ops: library-only` matrix products and
convolutions stay the library's, and a pass fuses around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from passagent.evaluator.result import Violation
from passagent.plan import library
from passagent.plan.model import OperatorCall, Plan, Recording, flat
from passagent.plan.refusal import COMPUTES
from passagent.tasks.reader import ALLOWED, LibraryRule, Subgraph

_COMPUTING = re.compile(
    r"conv(_transpose)?[123]d|convolution|linear|bilinear|matmul|__matmul__|mm|bmm|mv|dot|addmm|addmv|addbmm"
    r"|baddbmm|einsum|tensordot|inner|outer|chain_matmul|scaled_dot_product_attention"
    r"|multi_head_attention_forward|lstm|gru|rnn_tanh|rnn_relu"
)


def library_violations(
    subgraphs: Sequence[Subgraph], recording: Recording, rule: LibraryRule
) -> list[Violation]:
    """A violation for each pass that calls what `rule` forbids, or replaces what is left to the library."""
    restricted = {subgraph.name for subgraph in subgraphs if subgraph.compute_ops != ALLOWED}
    taken = {
        call.number
        for subgraph in recording.subgraphs
        for call in subgraph.calls
        if subgraph.name in restricted and not any(_called(recording.passes[call.number].plans[call.plan]))
    }
    violations = []
    for number, entry in enumerate(recording.passes):
        called = (name for plan in entry.plans for name in _called(plan))
        if forbidden := next((name for name in called if not library.is_allowed(name, rule)), None):
            message = COMPUTES.format(operator=library.readable(forbidden))
            violations.append(Violation(rule="library", file=entry.file, line=0, message=message))
        targets = (re.split(r"[:.]", node.target)[-1] for node in entry.pattern if node.op.startswith("call"))
        replaced = next((name for name in targets if _COMPUTING.fullmatch(name)), None)
        if number in taken and replaced is not None:
            message = (
                f"replaces {replaced}, which this task leaves to the library (compute_ops: library-only); "
                "match only what comes before or after it"
            )
            violations.append(Violation(rule="compute_ops", file=entry.file, line=0, message=message))
    return violations


def _called(plan: Plan) -> Iterator[str]:
    """The operators of torch that a plan calls."""
    return (step.operator for step in flat(plan.steps) if isinstance(step, OperatorCall))
