"""A worker that has loaded what is judged, and the subgraphs that it holds."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from passagent.config import EvaluatorConfig
from passagent.evaluator.correctness.inplace import States
from passagent.evaluator.correctness.precision import Fact
from passagent.evaluator.judging.effort import Allowance
from passagent.evaluator.judging.recorder import Prepared
from passagent.evaluator.judging.verdict import Failed, Refused, raise_for, violation_of
from passagent.evaluator.reference.reference import Reference, run_request
from passagent.evaluator.result import Candidate, GraphResult, Subject, Violation
from passagent.evaluator.runner.endings import WorkerDied, WorkerTimeout, last_line
from passagent.evaluator.runner.fresh import Draw
from passagent.evaluator.runner.process import Worker, WorkerAnswer
from passagent.evaluator.runner.worker_messages import Audit, Kept, Load, R, Release, Request
from passagent.evaluator.score import SETS
from passagent.evaluator.sizes import VIOLATIONS, plain
from passagent.sandbox.channel import Arena
from passagent.tasks.graphio import load_graph
from passagent.tasks.reader import Subgraph
from passagent.tasks.uses import wrong_indices

_CHECK = "check it: `return 1;` in C++ (an int), tl.device_assert(i < n, '') in Triton, assert(i < n) in CUDA"


@dataclass
class _HeldSubgraph:
    """A subgraph that the worker holds, and the arena that it writes outputs into."""

    reference: Reference
    outputs: Arena
    dispatches: float = 0.0


class LoadedWorker:
    """Asks a worker for what the subject does. Raises Failed and Refused for what the worker reports,
    WorkerDied and WorkerTimeout.
    """

    def __init__(
        self, worker: Worker, subject: Subject, config: EvaluatorConfig, prepared: Prepared | None = None
    ) -> None:
        """`prepared`: a candidate's plans."""
        self.worker, self._subject, self._config = worker, subject, config
        self._prepared = prepared
        self._allowance = Allowance(math.inf) if prepared is None else prepared.allowance
        self.overhead_ns = 0
        """The host's part of a call's time, which does not count, for the subgraph that is timed."""
        self._held: dict[str, _HeldSubgraph] = {}
        self._is_closed = self._is_broken = False

    def load(self) -> None:
        """Have the worker load the subject."""
        compiler = None if isinstance(self._subject, Candidate) else self._subject
        try:
            plans = self._prepared.plans.data() if self._prepared is not None else None
            self.reply(Load(plans=plans, compiler=compiler, device=self._config.device))
        except WorkerDied as death:
            if death.killed_from_outside:
                raise
            status = "load_error" if death.status == "runtime_error" else death.status
            raise Failed(status, f"loading: the process {death.describe()}{last_line(death.log)}") from death

    def reply(self, request: Request[R], fds: tuple[int, ...] = ()) -> R:
        """The worker's reply. Raises Failed where it has none."""
        answer = self.ask(request, self._config.timeout_s, fds)
        if answer.error is not None:
            raise_for(answer.error)
        return answer.reply

    def ask(self, request: Request[R], timeout_s: float, fds: tuple[int, ...] = ()) -> WorkerAnswer[R]:
        """Ask as Worker.ask does, within what is left to the candidate; not for twice eager's time."""
        held, allowance = self._held.get(getattr(request, "id", "")), self._allowance
        free_s = 2 * held.reference.eager_s + self._config.budget_s if held is not None else 0.0
        most_s = max(0.0, allowance.left_s) + free_s
        try:
            answer = self.worker.ask(request, min(timeout_s, most_s), fds)
        except WorkerTimeout as late:
            if timeout_s < most_s:
                raise
            raise WorkerTimeout("took all of its time, beyond what eager takes") from late
        finally:
            allowance.left_s -= max(0.0, time.monotonic() - self.worker.asked_at - free_s)
        if answer.said.violations:
            raise Refused([violation_of(item) for item in answer.said.violations[:VIOLATIONS]])
        return answer

    @property
    def is_candidate(self) -> bool:
        """Tell whether the subject is a candidate, not eager or a compiler."""
        return isinstance(self._subject, Candidate)

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs and outputs of the subgraphs that it holds."""
        return sum(held.reference.handed() for held in self._held.values())

    def take(self, reference: Reference, result: GraphResult) -> Arena:
        """Hand over the subgraph, unless it is held; the arena that its outputs will lie in.

        What matched is written into `result`.
        """
        if (held := self._held.get(reference.name)) is not None:
            if held.reference is reference:
                return held.outputs
            self.release(held.reference)
        if self._prepared is not None and reference.subgraph.name in self._prepared.failed:
            raise self._prepared.failed[reference.subgraph.name]
        outputs = Arena.create(reference.room())
        self._held[reference.name] = _HeldSubgraph(reference, outputs)
        try:
            reply = self.reply(reference.request(outputs), (reference.arena.fd, outputs.fd))
            self._held[reference.name].dispatches = reply.dispatches
            if self._prepared is not None:
                recording = self._prepared.plans.recording
                calls = recording.calls_of(reference.subgraph.name)
                result.applied = [recording.passes[call.number].name for call in calls]
                result.matches = reply.matches
                result.mismatches = self._prepared.mismatches(reference.subgraph.name)
                result.left = [plain(name)[:80] for name in reply.left]
                result.nodes_before, result.nodes_after = reference.operators, len(result.left)
                if result.matches == 0:
                    raise Failed("mismatch", "no pass matched this graph")
        except BaseException:
            self._held.pop(reference.name).outputs.close()
            raise
        return outputs

    def dispatches(self, reference: Reference) -> float:
        """The dispatches of Reference.host_ns, as the worker reported them for a subgraph that it holds."""
        return self._held[reference.name].dispatches

    def paused(self) -> AbstractContextManager[None]:
        """Have every thread of the worker stand still inside the block."""
        return self.worker.paused()

    def release(self, reference: Reference) -> None:
        """Have the worker forget the subgraph."""
        self._held.pop(reference.name).outputs.close()
        self.reply(Release(ids=[reference.name]))

    def outputs(self, reference: Reference, arena: Arena) -> dict[int, list[torch.Tensor]]:
        """The subject's outputs on each input set: a candidate in audits, but on special ones."""
        sets = range(len(reference.expected) if self.is_candidate else SETS)
        ordinary = [chosen for chosen in sets if chosen not in reference.special]
        if self.is_candidate:
            returned = dict(zip(ordinary, self.audited(reference, arena, ordinary), strict=True))
        else:
            returned = {chosen: self.as_timed(reference, arena, chosen) for chosen in ordinary}
        special = [chosen for chosen in reference.special if chosen < len(reference.expected)]
        return returned | {chosen: self.as_timed(reference, arena, chosen) for chosen in special}

    def as_timed(self, reference: Reference, arena: Arena, chosen: int) -> list[torch.Tensor]:
        """The subject's outputs on an input set in a call like timed ones; raises as `audited` does."""
        expected, first = reference.expected[chosen], reference.rotation.first()
        drawn = enumerate(Draw(reference.rotation).next())
        ordinary = [window if i in reference.often else first[i] for i, window in drawn]
        settle = None if chosen in reference.special or reference.is_slow else ordinary
        kept_call = self.reply(run_request(reference, chosen, [first], keep=True, settle=settle)).returned
        if self.is_candidate:
            refuse_kept(reference, expected.facts, kept_call)
        return outputs_of(arena, kept_call, expected.states)

    def audited(self, reference: Reference, outputs: Arena, sets: list[int]) -> list[list[torch.Tensor]]:
        """The candidate's outputs on `sets`, in audited calls; refused or failed for how they are."""
        before = secrets.choice([other for other in range(SETS) if other != sets[0]])
        reply = self.reply(Audit(id=reference.name, sets=sets, before=before))
        for chosen, kept_call in zip(sets, reply.kept, strict=True):
            refuse_kept(reference, reference.expected[chosen].facts, kept_call)
        if not reply.stable and not reference.mutated:
            message = (
                "a later call changes the outputs of an earlier one; allocate the outputs of each call anew"
            )
            raise Refused([Violation(rule="reused_output", file="", line=0, message=message)])
        return [
            outputs_of(outputs, kept_call, reference.expected[chosen].states)
            for chosen, kept_call in zip(sets, reply.kept, strict=True)
        ]

    def check_indices(self, subgraph: Subgraph, _: GraphResult) -> None:
        """Raise Failed where eager raises for an index and the subject does not: it breaks the worker."""
        held = [graph.reference for graph in self._held.values() if graph.reference.subgraph == subgraph]
        if self._is_broken or not held:
            return
        wrong = wrong_indices(subgraph, load_graph(held[0].nodes), held[0].order)
        for bad in wrong if (is_cpu := self._config.device == "cpu") else wrong[:1]:
            self._is_broken = True
            message = f"input {bad[0]} holds the index {bad[2]}: eager raises, the pass does not; {_CHECK}"
            try:
                request = Audit(id=held[0].name, sets=[0], before=1, wrong=bad)
                error = self.worker.ask(request, self._config.timeout_s).error
            except WorkerDied as death:
                if death.killed_from_outside:
                    raise
                raise Failed("runtime_error", message) from death
            if error is None:
                raise Failed("wrong_result", message)
            self._is_broken = not is_cpu

    def close(self, end_worker: Callable[[Worker], None]) -> None:
        """End the worker, once, and forget what it held."""
        if not self._is_closed:
            end_worker(self.worker)
            self._is_closed = True
        while self._held:
            self._held.popitem()[1].outputs.close()


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
