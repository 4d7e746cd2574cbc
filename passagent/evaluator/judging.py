"""One evaluation: check every subgraph of a task in audited calls, then time those whose values agree."""

from __future__ import annotations

import ast
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator import score
from passagent.evaluator.agreement import judge_drift, judge_sets, judge_timed
from passagent.evaluator.baseline import (
    SETS,
    Baseline,
    Reference,
    load_request,
    run_request,
)
from passagent.evaluator.channel import Arena
from passagent.evaluator.fresh import Windows
from passagent.evaluator.process import Worker, WorkerDied, WorkerTimeout, last_line
from passagent.evaluator.replies import Watched, checked, outputs_of, refuse_kept
from passagent.evaluator.result import Candidate, Compiler, GraphResult, Mismatch, Violation
from passagent.evaluator.timing import (
    PATIENCE,
    TimedCallError,
    Timing,
    measure,
    measure_passbench,
    together,
)
from passagent.evaluator.twin import Twin, Twins
from passagent.evaluator.verdict import Failed, Refused, as_end, blank, fill_times, raise_for
from passagent.tasks.reader import Subgraph, Task

Subject = Candidate | Compiler
"""What is judged: a candidate, or a compiler in its place."""
NewWorker = Callable[[Subject, bool], Worker]
"""A worker for the subject; the flag: one that runs Triton kernels in the interpreter."""

PAIRS = 2
"""Pairs of workers that time a candidate, one after the other: what two workers differ by averages out."""
HELD_BYTES = 1 << 29
"""Subgraphs stay with a worker between their check and their timing while all of them take no more."""
_DEATHS = 2
"""Workers that a candidate may lose before the rest of its subgraphs is not run."""


@dataclass(frozen=True)
class _Held:
    """A subgraph that the worker holds, and the arena that it writes outputs into."""

    reference: Reference
    outputs: Arena


class Judging:
    """One evaluation: a worker serves all subgraphs unless it dies.

    `quiet` is held while calls are timed: who holds it, makes no noise.
    """

    def __init__(
        self,
        task: Task,
        subject: Subject,
        config: EvaluatorConfig,
        baseline: Baseline,
        new_worker: NewWorker,
        twins: Twins,
        quiet: threading.Lock,
        bar: float | None = None,
    ) -> None:
        """`bar`: an AS; of a subject that stays under it for sure no more is measured than tells so."""
        self.task, self.subject, self.config = task, subject, config
        self.baseline, self.new_worker, self.twins, self.quiet = baseline, new_worker, twins, quiet
        self.bar = bar
        self._is_candidate = isinstance(subject, Candidate)
        self.stopped_early: str | None = None
        self.interpreter = (
            self.config.device == "cpu" and isinstance(subject, Candidate) and uses_triton(subject)
        )
        self.passbench = self.config.protocol == "passbench"
        self.dispatch = "dynamo" if subject == "inductor" or self.passbench else self.config.dispatch
        self.graphs = [blank(subgraph, "ok") for subgraph in task.subgraphs]
        self.violations: list[Violation] = []
        self.protections: dict[str, str] = {}
        self.stop: Failed | None = None
        self._worker: Worker | None = None
        self._held: dict[str, _Held] = {}
        self._twin: Twin | None = None
        self._deaths = 0
        self._timings: dict[str, list[Timing]] = {}
        # What Dynamo compiles is compiled once: that takes longer than measuring.
        self.pairs = PAIRS if self.dispatch == "direct" else 1

    def run(self) -> None:
        """Check every subgraph, then time those whose values agree; a refusal is the whole candidate's."""
        try:
            for subgraph, result in zip(self.task.subgraphs, self.graphs, strict=True):
                self._guarded(subgraph, result, self._check)
            if not self.interpreter:
                self._time_all()
        except Refused as refused:
            self.violations += refused.violations
            self.refuse_all()
        finally:
            self._end_worker()

    def _time_all(self) -> None:
        """Time what is right at some t, by one pair of workers after the other; a failure of any counts."""
        if not any(result.status == "ok" for result in self.graphs):
            for result in self.graphs:
                if result.passes_from_t is not None:
                    result.not_timed = "no subgraph is right"
            return
        for pair in range(self.pairs):
            if pair:
                self._end_worker()
            self._twin = self.twins.get(pair, self.task.key)
            for subgraph, result in zip(self.task.subgraphs, self.graphs, strict=True):
                if result.passes_from_t is not None:
                    self._guarded(subgraph, result, self._time)
            for result in self.graphs:
                if result.passes_from_t is not None:
                    timings = self._timings[result.name]
                    fill_times(result, timings[0] if self.passbench else together(timings, self.config))
            if pair + 1 < self.pairs:
                self.stopped_early = self._why_beaten()
                if self.stopped_early is not None:
                    return

    def _why_beaten(self) -> str | None:
        """In words, if the AS stays under the bar with every speedup at the upper end of its interval."""
        if self.bar is None or (most := as_end(self.graphs, self.config, "high")) >= self.bar:
            return None
        limit = f"its AS, at most {most:.3f}, is under {self.bar:.3f}"
        return f"timed by one of {self.pairs} pairs of workers: {limit}"

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        self._forget()

    def _forget(self) -> None:
        """The worker is gone, and with it what it held."""
        while self._held:
            self._held.popitem()[1].outputs.close()

    def refuse_all(self) -> None:
        """A candidate that breaks a rule on one subgraph is refused on all of them."""
        for result in self.graphs:
            result.status, result.error = "refused", "broke an integrity rule; see violations"
            result.speedup = None

    def _guarded(self, subgraph: Subgraph, result: GraphResult, step: Any) -> None:
        """A step on a subgraph, whose failure is written into the result. Raises Refused."""
        if self.stop is not None:
            result.status, result.error = self.stop.status, self.stop.message
            result.passes_from_t, result.speedup = None, None
            return
        try:
            step(self._ready(), subgraph, result)
        except Failed as failure:
            result.status, result.error = failure.status, failure.message
        except Refused as refused:
            first = f"{result.applied[0]}.py" if result.applied else ""
            for violation in refused.violations:
                violation.file = violation.file or first
            raise
        except WorkerTimeout:
            result.status = "timeout"
            result.error = f"no answer within {self.config.timeout_s:.0f} s; its processes were killed"
            self.stop, self._worker = (
                Failed("timeout", f"not run after the time-out on {subgraph.name}"),
                None,
            )
        except WorkerDied as death:
            if death.killed_from_outside:
                raise InfrastructureError(f"a worker {death.describe()}") from death
            result.status = death.status
            result.error = f"the process {death.describe()}{last_line(death.log)}"
            self._deaths, self._worker = self._deaths + 1, None
            if self._deaths == _DEATHS:
                self.stop = Failed(death.status, f"not run: {_DEATHS} processes died before it")
        if result.status not in ("ok", "wrong_result"):
            result.passes_from_t, result.speedup = None, None

    def _ready(self) -> Worker:
        """The worker with the subject loaded. Raises Failed (every subgraph's failure) and Refused."""
        if self._worker is None:
            self._forget()
            self._worker = self.new_worker(self.subject, self.interpreter)
            try:
                self._load(self._worker)
            except Failed as failure:
                status = "load_error" if failure.status == "runtime_error" else failure.status
                self.stop = Failed(status, failure.message)
                raise self.stop from failure
        return self._worker

    def _load(self, worker: Worker) -> None:
        files = self.subject.files if isinstance(self.subject, Candidate) else None
        compiler = None if isinstance(self.subject, Candidate) else self.subject
        self.protections = worker.protections
        try:
            self._ask(worker, load_request(files, self.config, compiler))
        except WorkerDied as death:
            if death.killed_from_outside:
                raise
            status = "load_error" if death.status == "runtime_error" else death.status
            raise Failed(status, f"loading: the process {death.describe()}{last_line(death.log)}") from death

    def _ask(self, worker: Worker, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """A worker's reply. Raises Failed and Refused for what it reports."""
        return checked(worker.ask(message, self.config.timeout_s, fds)).message

    def _take(self, worker: Worker, subgraph: Subgraph, result: GraphResult, reference: Reference) -> Arena:
        """Hand the subgraph to the worker, unless it holds it; the arena that its outputs will lie in."""
        if (held := self._held.get(reference.name)) is not None:
            if held.reference is reference:
                return held.outputs
            self._release(worker, held.reference)
        outputs = Arena.create(reference.room())
        self._held[reference.name] = _Held(reference, outputs)
        try:
            reply = self._ask(worker, reference.request(outputs), (reference.arena.fd, outputs.fd))
            if isinstance(self.subject, Candidate):
                result.matches, result.applied = int(reply["matches"]), [str(n) for n in reply["applied"]]
                result.mismatches = [Mismatch.model_validate(item) for item in reply["mismatches"]]
                result.nodes_before, result.nodes_after = reference.operators, int(reply["nodes_after"])
                if result.matches == 0:
                    raise Failed("mismatch", "no pass matched this graph")
        except BaseException:
            self._held.pop(reference.name).outputs.close()
            raise
        return outputs

    def _release(self, worker: Worker, reference: Reference) -> None:
        """Have the worker forget the subgraph."""
        self._held.pop(reference.name).outputs.close()
        self._ask(worker, {"op": "release", "ids": [reference.name]})

    def _check(self, worker: Worker, subgraph: Subgraph, result: GraphResult) -> None:
        """Outputs on every input set, in audited calls; raises Failed if they agree with eager's at no t."""
        reference = self.baseline.reference(subgraph, self.dispatch)
        outputs = self._take(worker, subgraph, result, reference)
        found = self._outputs(worker, reference, outputs, result)
        if sum(held.reference.arena.size + held.outputs.size for held in self._held.values()) > HELD_BYTES:
            self._release(worker, reference)
        judge_sets(reference, found, result, self._is_candidate)

    def _outputs(
        self, worker: Worker, reference: Reference, outputs: Arena, result: GraphResult
    ) -> list[list[torch.Tensor]]:
        """What the subject returns on each input set."""
        if isinstance(self.subject, Candidate):
            return self._audited(worker, reference, outputs, result, list(range(len(reference.expected))))
        found = []
        for chosen in range(SETS):
            request = run_request(reference, chosen, [reference.rotation.first()], keep=0)
            found.append(outputs_of(outputs, self._ask(worker, request)["kept"]))
        return found

    def _audited(
        self, worker: Worker, reference: Reference, outputs: Arena, result: GraphResult, sets: list[int]
    ) -> list[list[torch.Tensor]]:
        """The candidate's outputs on `sets`, in audited calls. Raises Failed and Refused for how they are."""
        reply = self._ask(worker, {"op": "audit", "id": reference.name, "sets": sets})
        for chosen, kept in zip(sets, reply["kept"], strict=True):
            refuse_kept(reference, reference.expected[chosen].facts, kept)
        if not reply["stable"] and not reference.mutated:
            message = (
                "a later call changes the outputs of an earlier one; allocate the outputs of each call anew"
            )
            raise Refused([Violation(rule="reused_output", file="", line=0, message=message)])
        return [outputs_of(outputs, kept) for kept in reply["kept"]]

    def _time(self, worker: Worker, subgraph: Subgraph, result: GraphResult) -> None:
        """Time both sides, verifying outputs of calls among them; raises Failed and Refused."""
        reference = self.baseline.reference(subgraph, self.dispatch)
        outputs = self._take(worker, subgraph, result, reference)
        assert result.passes_from_t is not None
        allowed = max(result.passes_from_t, score.STRICT_T) + 1

        def verify(chosen: int, windows: Windows, kept: dict[str, Any]) -> None:
            expected = reference.expected[chosen]
            if self._is_candidate:
                refuse_kept(reference, expected.facts, kept)
            eager, got = self.baseline.again(reference, chosen, windows), outputs_of(outputs, kept)
            judge_timed(eager, got, result, allowed)
            judge_drift(expected, eager, got, result, self._is_candidate)

        def surprise() -> None:
            if self._is_candidate:
                chosen = secrets.randbelow(SETS)
                (got,) = self._audited(worker, reference, outputs, result, [chosen])
                judge_timed(reference.expected[chosen].eager, got, result, allowed)

        side = Watched(worker)
        assert self._twin is not None
        self._twin.take(reference)
        try:
            with self.quiet:
                if self.passbench:
                    timing = measure_passbench(side, self._twin, reference, self.config)
                else:
                    # Who stays under the bar is seen at a glance.
                    patience = 1 if self.bar is not None and result.name not in self._timings else PATIENCE
                    timing = measure(side, self._twin, reference, verify, surprise, self._part(), patience)
            if not self.passbench:
                surprise()
                if self._is_candidate:
                    self._ask(worker, {"op": "held"})
        except TimedCallError as failure:
            raise_for(failure.error)
            raise
        self._release(worker, reference)
        if timing.clock_disagrees and self._is_candidate:
            message = "its own times do not add up to the time that passed; leave the clock alone"
            raise Refused([Violation(rule="clock", file="", line=0, message=message)])
        self._timings.setdefault(result.name, []).append(timing)

    def _part(self) -> EvaluatorConfig:
        """The settings of one pair of workers: its part of the calls.

        Under a bar half the time and half the precision: a search measures its best again, in full.
        """
        config, coarser = self.config, 2 if self.bar is not None else 1
        return config.model_copy(
            update={
                "interval": config.interval * coarser,
                "budget_s": config.budget_s / self.pairs / coarser,
                "trials": max(1, config.trials // self.pairs),
                "max_trials": max(1, config.max_trials // self.pairs),
            }
        )


def uses_triton(candidate: Candidate) -> bool:
    """Whether a module of the candidate imports triton."""
    for name, text in candidate.files.items():
        if not name.endswith(".py"):
            continue
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            if any(module.split(".")[0] == "triton" for module in modules):
                return True
    return False
