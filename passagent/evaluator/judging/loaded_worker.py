"""A worker that has loaded what is judged, and the subgraphs that it holds."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from passagent.config import EvaluatorConfig
from passagent.evaluator.correctness.sets import SETS
from passagent.evaluator.judging.effort import Allowance
from passagent.evaluator.judging.recorder import Prepared
from passagent.evaluator.judging.replies import checked, outputs_of, refuse_copies, refuse_kept
from passagent.evaluator.judging.verdict import Failed, Refused, blank
from passagent.evaluator.reference.reference import Reference, run_request
from passagent.evaluator.result import Candidate, GraphResult, Mismatch, Subject, Violation
from passagent.evaluator.runner.endings import WorkerDied, WorkerTimeout, last_line
from passagent.evaluator.runner.fresh import Draw
from passagent.evaluator.runner.process import Answer, Worker
from passagent.evaluator.runner.worker_messages import Audit, Load, R, Release, Request
from passagent.evaluator.worker_text import plain
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
        self._held: dict[str, _HeldSubgraph] = {}
        self._is_closed = self._is_broken = False

    def load(self) -> None:
        """Have the worker load the subject."""
        compiler = None if isinstance(self._subject, Candidate) else self._subject
        try:
            plans = self._prepared.plans.data() if self._prepared is not None else None
            self.ask(Load(plans=plans, compiler=compiler, device=self._config.device))
        except WorkerDied as death:
            if death.killed_from_outside:
                raise
            status = "load_error" if death.status == "runtime_error" else death.status
            raise Failed(status, f"loading: the process {death.describe()}{last_line(death.log)}") from death

    def ask(self, request: Request[R], fds: tuple[int, ...] = ()) -> R:
        """The worker's reply."""
        return checked(self.answer(request, self._config.timeout_s, fds))

    def answer(self, request: Request[R], timeout_s: float, fds: tuple[int, ...] = ()) -> Answer[R]:
        """Ask as Worker.ask does, within what is left to the candidate; not for twice eager's time."""
        held, allowance = self._held.get(getattr(request, "id", "")), self._allowance
        free_s = 2 * held.reference.eager_s + self._config.budget_s if held is not None else 0.0
        most_s = max(0.0, allowance.left_s) + free_s
        try:
            return self.worker.ask(request, min(timeout_s, most_s), fds)
        except WorkerTimeout as late:
            if timeout_s < most_s:
                raise
            raise WorkerTimeout("took all of its time, beyond what eager takes") from late
        finally:
            allowance.left_s -= max(0.0, time.monotonic() - self.worker.asked_at - free_s)

    @property
    def is_candidate(self) -> bool:
        """Tell whether the subject is a candidate, not eager or a compiler."""
        return isinstance(self._subject, Candidate)

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs and outputs of the subgraphs that it holds."""
        return sum(held.reference.handed() for held in self._held.values())

    def take(self, reference: Reference, result: GraphResult, inputs: int | None = None) -> Arena:
        """Hand over the subgraph, unless it is held; the arena that its outputs will lie in.

        What matched is written into `result`. `inputs`: a descriptor of the inputs, if not the arena's own.
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
            fds = (reference.arena.fd if inputs is None else inputs, outputs.fd)
            reply = self.ask(reference.request(outputs), fds)
            self._held[reference.name].dispatches = reply.dispatches
            if self.is_candidate:
                result.matches, result.applied = reply.matches, reply.applied
                result.mismatches = [Mismatch(**vars(item)) for item in reply.mismatches]
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

    def release(self, reference: Reference) -> None:
        """Have the worker forget the subgraph."""
        self._held.pop(reference.name).outputs.close()
        self.ask(Release(ids=[reference.name]))

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
        settle = None if chosen in reference.special else ordinary
        kept_call = self.ask(run_request(reference, chosen, [first], keep=True, settle=settle)).returned
        if self.is_candidate:
            refuse_kept(reference, expected.facts, kept_call)
        return outputs_of(arena, kept_call, expected.states)

    def audited(self, reference: Reference, outputs: Arena, sets: list[int]) -> list[list[torch.Tensor]]:
        """The candidate's outputs on `sets`, in audited calls; refused or failed for how they are."""
        before = secrets.choice([other for other in range(SETS) if other != sets[0]])
        reply = self.ask(Audit(id=reference.name, sets=sets, before=before))
        for chosen, kept_call, copies in zip(sets, reply.kept, reply.copies, strict=True):
            refuse_kept(reference, reference.expected[chosen].facts, kept_call)
            refuse_copies(reference.expected[chosen].eager, outputs, copies)
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
        if self._is_broken or not held or self._config.isolation == "in-process":
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


class NextPair:
    """The worker of the next pair, made ready while calls of the first one's are checked.

    It compiles the same kernels as the first one, which is most of what a check takes. What fails there is
    dropped, as it will fail again where it is judged; what breaks a rule counts.
    """

    def __init__(self, make: Callable[[], LoadedWorker], limit: int) -> None:
        """`limit`: bytes of the subgraphs that it may hold."""
        self._make, self._limit = make, limit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="second")
        self._loaded: LoadedWorker | None = None
        self._steps = [self._thread.submit(self._begin)]

    def warm(self, reference: Reference) -> None:
        """Have it take the subgraph, if there is room, and make an audited call."""
        inputs = os.dup(reference.arena.fd)  # the reference may be closed before its turn comes
        self._steps.append(self._thread.submit(self._warm, reference, inputs))

    def get(self) -> LoadedWorker | None:
        """The worker, when it is ready; None if anything failed. Raises Refused."""
        try:
            for step in self._steps:
                step.result()
        except (Failed, WorkerDied, WorkerTimeout, OSError):
            return None
        return self._loaded

    def close(self, end_worker: Callable[[Worker], None]) -> None:
        """End the worker, and with it what is under way."""
        if self._loaded is not None:
            self._loaded.worker.interrupt()
        self._thread.shutdown()
        if self._loaded is not None:
            self._loaded.close(end_worker)

    def _begin(self) -> None:
        self._loaded = self._make()
        self._loaded.load()

    def _warm(self, reference: Reference, inputs: int) -> None:
        result = blank(reference.subgraph, "ok")
        try:
            lost = any(step.done() and step.exception() is not None for step in self._steps)
            if lost or self._loaded is None or self._loaded.nbytes + reference.handed() > self._limit:
                return
            outputs = self._loaded.take(reference, result, inputs)
            self._loaded.audited(reference, outputs, [secrets.randbelow(SETS)])
        except Refused as refused:
            refused.are_in(result)
            raise
        finally:
            os.close(inputs)
