"""Check the replies of a candidate's worker; failures and refusals are raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from passagent.evaluator.correctness.compare import surely_agree
from passagent.evaluator.correctness.exactness import Fact
from passagent.evaluator.correctness.inplace import States
from passagent.evaluator.judging.verdict import Failed, Refused, raise_for, violation_of
from passagent.evaluator.reference.reference import Reference
from passagent.evaluator.result import Violation
from passagent.evaluator.runner.process import Answer
from passagent.evaluator.runner.worker_messages import Kept, R, Reply, Request, Tensor
from passagent.evaluator.score import STRICT_T
from passagent.evaluator.sizes import VIOLATIONS
from passagent.sandbox.channel import Arena

if TYPE_CHECKING:
    from passagent.evaluator.judging.loaded_worker import LoadedWorker


class Watched:
    """A candidate's worker as one side of the timing: what its audit saw is raised as Refused."""

    def __init__(self, loaded: LoadedWorker, overhead_ns: int = 0) -> None:
        self.worker, self._loaded, self.overhead_ns = loaded.worker, loaded, overhead_ns

    def ask(self, request: Request[R], timeout_s: float, fds: tuple[int, ...] = ()) -> Answer[R]:
        """Ask the worker, as Worker.ask does."""
        answer = self._loaded.answer(request, timeout_s, fds)
        refuse_violations(answer.said)
        return answer


def checked(answer: Answer[R]) -> R:
    """The reply. Raises Failed and Refused for what the answer reports."""
    refuse_violations(answer.said)
    if answer.error is not None:
        raise_for(answer.error)
    return answer.reply


def refuse_violations(reply: Reply) -> None:
    """Raise Refused for what the worker's audit saw."""
    violations = [violation_of(item) for item in reply.violations[:VIOLATIONS]]
    if violations:
        raise Refused(violations)


def outputs_of(outputs: Arena, kept_call: Kept, states: list[States]) -> list[torch.Tensor]:
    """The tensors that a reply describes, and what was left in the inputs that eager writes into, as it is
    held against eager's (inplace.py). Raises Failed where the reply describes none.
    """
    if len(kept_call.left) != len(states):
        raise Failed("runtime_error", "an input that eager writes into was not handed back")
    try:
        values = [outputs.read(item) for item in kept_call.outputs]
        inputs = [item if item is None else outputs.read(item) for item in kept_call.left]
        return values + [state.judged(values) for state, values in zip(states, inputs, strict=True)]
    except ValueError as error:
        raise Failed("runtime_error", str(error)) from error


def refuse_copies(eager: list[torch.Tensor], outputs: Arena, copies: list[Tensor | None]) -> None:
    """Raise Refused where torch's own copy is right already: what a kernel then changes in it is for show."""
    for expected, described in zip(eager, copies, strict=False):
        if described is None:
            continue
        try:
            copied = outputs.read(described)
        except ValueError as error:
            raise Failed("runtime_error", str(error)) from error
        if surely_agree([expected], [copied], STRICT_T):
            message = (
                "an output is a copy that torch made, and what a kernel changed in it makes no difference; "
                "read the input in a kernel and write the output there"
            )
            raise Refused([Violation(rule="delegated_copy", file="", line=0, message=message)])


def refuse_kept(reference: Reference, facts: list[Fact], kept_call: Kept) -> None:
    """Raise Refused for a changed input, Failed for an output that does not lie in memory as eager's does.

    A view of an input, or of less than there is to compute, is no replacement for what eager writes out.
    """
    if len(kept_call.outputs) != len(facts):
        raise Failed("runtime_error", f"{len(kept_call.outputs)} outputs, eager has {len(facts)}")
    extra = sorted(set(kept_call.mutated) - set(reference.mutated))
    if extra:
        message = f"writes into input {extra[0]}, which eager leaves as it is; write to a tensor of your own"
        raise Refused([Violation(rule="input_mutation", file="", line=0, message=message)])
    for position, (fact, item) in enumerate(zip(facts, kept_call.outputs, strict=False)):
        if item.device != fact.device:
            raise Failed("runtime_error", f"output {position} is on {item.device}, eager's on {fact.device}")
        if fact.contiguous and not item.contiguous:
            raise Failed("runtime_error", f"output {position} is not contiguous, eager's is")
        if fact.own and not item.own:
            shared = "an input, an output before it or elements of its own"
            message = f"output {position} shares memory with {shared}; eager's has memory to itself"
            raise Failed("wrong_result", message)
