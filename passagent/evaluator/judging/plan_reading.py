"""Read a candidate's plans before anything runs: what they call of torch, and their figures by subgraph.

`library` says which operators of torch a plan may call. By `compute_ops: library-only` matrix products and
convolutions stay the library's, and a pass fuses around them. Figures are launches, bytes, registers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from passagent.evaluator.result import GraphResult, KernelUse, Violation
from passagent.evaluator.runner.planned import Plans
from passagent.kernels.resource_usage import resource_usage
from passagent.plan import library, memory
from passagent.plan.arguments import PLACED, values_of
from passagent.plan.model import Alloc, Choice, Copy, Launch, OperatorCall, Plan, Recording, Step, flat
from passagent.plan.refusal import COMPUTES
from passagent.plan.show import moved
from passagent.tasks.reader import ALLOWED, LibraryRule, Subgraph

_COMPUTING = re.compile(
    r"conv(_transpose)?[123]d|convolution|linear|bilinear|matmul|__matmul__|mm|bmm|mv|dot|addmm|addmv|addbmm"
    r"|baddbmm|einsum|tensordot|inner|outer|chain_matmul|scaled_dot_product_attention"
    r"|multi_head_attention_forward|lstm|gru|rnn_tanh|rnn_relu"
)

_COPY = (
    "an output is a copy that torch made of an input; read the input in a kernel and write the output there"
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
        elif rule == "none" and any(map(_returns_a_copy, entry.plans)):
            violations.append(Violation(rule="library", file=entry.file, line=0, message=_COPY))
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


def _returns_a_copy(plan: Plan) -> bool:
    """Tell whether a result is torch's copy of an input to which no kernel is given its memory."""
    copied, launched = set(), set()
    for step in flat(plan.steps):
        if isinstance(step, Copy) and plan.values[memory.place(plan, step.source).base].kind == "input":
            copied.add(memory.place(plan, step.value).base)
        elif isinstance(step, Launch):
            launched |= {memory.place(plan, value).base for value in values_of(*step.args, kinds=PLACED)}
    return any(memory.place(plan, n).base in copied - launched for n in values_of(plan.result))


def fill_plan_figures(result: GraphResult, plans: Plans) -> None:
    """The figures of the result's subgraph; nothing where no pass is called there."""
    calls = next((s.calls for s in plans.recording.subgraphs if s.name == result.name), ())
    if not calls:
        return
    counts: Counter[str] = Counter()
    uses: dict[str, KernelUse] = {}
    result.plan_bytes = result.launches = 0
    for (number, place), times in Counter((call.number, call.plan) for call in calls).items():
        plan = plans.recording.passes[number].plans[place]
        bytes_ = moved(plan)
        result.plan_bytes += times * (bytes_.read + bytes_.written)
        for step in _heaviest(plan):
            result.launches += times
            if isinstance(step, Launch):
                counts[step.kernel] += times
                uses.setdefault(step.kernel, _use(plan, step, plans))
    result.kernels = [use.model_copy(update={"launches": counts[key]}) for key, use in uses.items()]


def _heaviest(plan: Plan) -> list[Step]:
    """The steps of a call that use the device; of a choice those of the alternative that moves most."""
    steps: list[Step] = []
    pending = list(plan.steps)
    while pending:
        step = pending.pop(0)
        if isinstance(step, Choice):
            each = [plan.model_copy(update={"steps": alternative.steps}) for alternative in step.of]
            pending[:0] = max(each, key=lambda steps_of: sum(vars(moved(steps_of)).values())).steps
        elif not isinstance(step, Alloc):
            steps.append(step)
    return steps


def _use(plan: Plan, step: Launch, plans: Plans) -> KernelUse:
    kernel, built = plan.kernels[step.kernel], plans.built.get(step.kernel)
    use = KernelUse(name=kernel.entry, kind=kernel.kind)
    if kernel.kind == "cpp" or built is None:
        return use
    taken = resource_usage(built.path)
    if taken is not None:
        use.registers, use.stack_bytes = taken.registers, taken.stack_bytes
        use.shared_bytes = max(taken.shared_bytes + step.shared, built.shared)
    return use
