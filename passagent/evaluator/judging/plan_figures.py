"""Figures of each subgraph from a candidate's plans, before anything runs: launches, bytes, registers."""

from __future__ import annotations

from collections import Counter

from passagent.evaluator.result import GraphResult, KernelUse
from passagent.evaluator.runner.planned import Plans
from passagent.kernels.resource_usage import resource_usage
from passagent.plan.model import Alloc, Choice, Launch, Plan, Step
from passagent.plan.show import moved


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
