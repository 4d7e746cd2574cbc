"""One evaluation: check every subgraph of a task in audited calls, then time those whose values agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging import effort, speed_of_light
from passagent.evaluator.judging.agreement import judge_sets
from passagent.evaluator.judging.eager_worker import USES, EagerWorker
from passagent.evaluator.judging.loaded_worker import LoadedWorker
from passagent.evaluator.judging.plan_reading import fill_plan_figures
from passagent.evaluator.judging.recorder import Prepared
from passagent.evaluator.judging.timed_checks import TimedChecks
from passagent.evaluator.judging.verdict import (
    Failed,
    Refused,
    blank,
    fill_times,
    raise_for,
    refuse_all,
    speedup_of,
    why_beaten,
)
from passagent.evaluator.judging.workers import Workers
from passagent.evaluator.reference.baseline import Baseline
from passagent.evaluator.reference.reference import Reference
from passagent.evaluator.result import Candidate, GraphResult, Subject, Violation
from passagent.evaluator.runner.endings import WorkerDied, WorkerTimeout, last_line
from passagent.evaluator.timing import clocks
from passagent.evaluator.timing.timing import TimedCallError, TimedPair, Timing, measure, together
from passagent.sandbox import tools
from passagent.sandbox.environment import worker_threads
from passagent.tasks.reader import Subgraph, Task

_HELD_PAIRS = 2
"""Pairs of workers that are held until the evaluation ends. More are held where they take no more memory than
so many that hold as much as a worker may."""
_CONTEXTS = 1 << 30
"""Memory of a GPU that two processes take beside their tensors, bytes."""
_DEATHS = 2
"""Workers that a candidate may lose before the rest of its subgraphs is not run."""

_Step = Callable[[LoadedWorker, Subgraph, GraphResult], None]


@dataclass(frozen=True)
class Equipment:
    """The processes and the device that a referee judges with."""

    config: EvaluatorConfig
    baseline: Baseline
    workers: Workers
    lease: DeviceLease


class Judging:
    """One evaluation: a worker of each pair serves its subgraphs unless it dies."""

    def __init__(
        self,
        task: Task,
        subject: Subject,
        equipment: Equipment,
        bar: float | None = None,
        prepared: Prepared | None = None,
    ) -> None:
        """`bar`: an AS. Measuring stops as soon as the subject is below it for sure.

        `prepared`: a candidate's plans, which workers replay.
        """
        self.task, self.subject, self.bar, self._prepared = task, subject, bar, prepared
        self.config, self._lease = equipment.config, equipment.lease
        self.baseline, self.workers = equipment.baseline, equipment.workers
        self._is_candidate = isinstance(subject, Candidate)
        self.dispatch = effort.dispatch_of(self.config, subject)
        self.pairs = effort.pairs_of(self.config, self.dispatch, bar)
        self._held_bytes = effort.held_bytes(self.config.device)
        self.graphs = [blank(subgraph, "ok") for subgraph in task.subgraphs]
        self.violations: list[Violation] = []
        self.protections: dict[str, str] = {}
        self.stopped_early: str | None = None
        self._stop: Failed | None = None
        self._deaths = 0
        self._timings: dict[str, list[Timing]] = {}
        self._loaded: LoadedWorker | None = None
        self._done: list[LoadedWorker] = []
        self._eager: EagerWorker | None = None

    def run(self) -> None:
        """Check every subgraph, then time those whose values agree; a refusal is the whole candidate's."""
        self.baseline.turn_to(self.task.subgraphs, self.dispatch)
        try:
            for subgraph, result in zip(self.task.subgraphs, self.graphs, strict=True):
                try:
                    self._guarded(subgraph, result, self._check)
                except Refused as refused:  # its author learns what the others break, too
                    self._note(refused)
            if self.violations:
                refuse_all(self.graphs)
            else:
                self._time_all()
        except Refused as refused:
            self._note(refused)
            refuse_all(self.graphs)
        finally:
            self._end_aside()

    def _note(self, refused: Refused) -> None:
        """Each violation once, of however many subgraphs."""
        self.violations += [violation for violation in refused.violations if violation not in self.violations]

    def _time_all(self) -> None:
        """Time what is right at some t, by one pair of workers after the other; a failure of any counts."""
        if not any(result.status == "ok" for result in self.graphs):
            return  # no subgraph is right
        order = list(zip(self.task.subgraphs, self.graphs, strict=True))
        for pair in range(self.pairs):
            order.reverse()  # where not all references have room, the last ones are those that are here
            if not (is_held := self._are_held(pair)):
                self._end_aside()
                self.workers.prepare()
            if pair:
                self._put_aside()
            self._eager = self.workers.eager.get(pair, self.task.key, USES[self.dispatch])
            for subgraph, result in order:
                if result.passes_from_t is not None:
                    self._guarded(subgraph, result, self._time)
            for result in self.graphs:
                if result.passes_from_t is not None:
                    fill_times(result, together(self._timings[result.name]))
            if not is_held:
                self.workers.eager.end(pair)
        if self.config.reference != "eager":
            self.stopped_early = why_beaten(self.graphs, self.bar, self.config.reference)
        if self.config.reference != "eager" and self.stopped_early is None:
            self._eager = self.workers.compiled.get(0, self.task.key, USES["graph"])
            for subgraph, result in order:
                if result.speedup is not None:
                    self._guarded(subgraph, result, self._compare)
        for subgraph, result in order if self._is_candidate else ():
            if result.passes_from_t is not None:
                self._guarded(subgraph, result, self._check_untimed)
        for subgraph, result in order if self._is_candidate else ():
            if result.status == "ok":  # last of all: an index out of range may break the worker
                self._guarded(subgraph, result, LoadedWorker.check_indices)

    def _are_held(self, pair: int) -> bool:
        """Tell whether the workers of a pair have room beside those of the pairs before it."""
        held = self._loaded.nbytes if self._loaded is not None else 0
        return pair < _HELD_PAIRS or (pair + 1) * (held + _CONTEXTS) <= _HELD_PAIRS * self._held_bytes

    def _check_untimed(self, loaded: LoadedWorker, subgraph: Subgraph, result: GraphResult) -> None:
        """Check the sets that are not timed in calls like the timed ones."""
        reference = self.baseline.reference(subgraph, self.dispatch)
        is_brief = self.bar is not None and reference.is_slow
        TimedChecks(loaded, reference, result, self.baseline).finish(is_brief)

    def _put_aside(self) -> None:
        """The worker has done its work. It ends with the evaluation, as ending it disturbs what is timed."""
        if self._loaded is not None:
            if self.config.device == "cpu":  # what it left running disturbs as well
                self._loaded.worker.halt()
            self._done.append(self._loaded)
            self._loaded = None

    def _end_aside(self) -> None:
        """End the workers that have done their work, and forget what they hold."""
        self._put_aside()
        while self._done:
            self._done.pop().close(self.workers.end)

    def _guarded(self, subgraph: Subgraph, result: GraphResult, step: _Step) -> None:
        """A step on a subgraph, whose failure is written into the result. Raises Refused."""
        if self._stop is not None:
            result.status, result.error = self._stop.status, self._stop.message
            result.passes_from_t, result.speedup = None, None
            return
        with self._noting(subgraph, result):
            step(self._ready(), subgraph, result)

    @contextmanager
    def _noting(self, subgraph: Subgraph, result: GraphResult) -> Iterator[None]:
        """Write a failure on a subgraph into its result. Raises Refused, with the file that it is about."""
        try:
            yield
        except Failed as failure:
            result.status, result.error = failure.status, failure.message
            result.mismatches = failure.mismatches or result.mismatches
            result.passes_from_t, result.speedup = None, None
        except Refused as refused:
            refused.are_in(result)
            raise
        except WorkerTimeout as late:
            result.status = "timeout"
            result.error = f"{late}; its processes were killed"
            self._stop = Failed("timeout", f"not run after the time-out on {subgraph.name}")
            self._put_aside()
        except WorkerDied as death:
            if death.killed_from_outside:
                raise InfrastructureError(f"a worker {death.describe()}") from death
            result.status = death.status
            result.error = f"the process {death.describe()}{last_line(death.log)}"
            self._deaths += 1
            self._put_aside()
            if self._deaths == _DEATHS:
                self._stop = Failed(death.status, f"not run: {_DEATHS} processes died before it")
        if result.status not in ("ok", "wrong_result"):
            result.passes_from_t, result.speedup = None, None

    def _ready(self) -> LoadedWorker:
        """The worker with the subject loaded. Raises Failed (every subgraph's failure) and Refused."""
        loaded = self._loaded
        if loaded is None:
            worker = self.workers.take(self.subject)
            loaded = self._loaded = LoadedWorker(worker, self.subject, self.config, self._prepared)
            self.protections = worker.protections and worker.protections | tools.protections()
            try:
                loaded.load()
            except Failed as failure:
                status = "load_error" if failure.status == "runtime_error" else failure.status
                self._stop = Failed(status, failure.message)
                raise self._stop from failure
        return loaded

    def _check(self, loaded: LoadedWorker, subgraph: Subgraph, result: GraphResult) -> None:
        """Compare the outputs on every input set, of audited calls, with eager's."""
        judged = self.subject.key if isinstance(self.subject, Candidate) else None
        reference = self.baseline.reference(subgraph, self.dispatch, judged)
        result.moved_bytes = reference.moved_bytes - reference.unread_bytes
        result.flops = reference.flops
        result.narrowed = reference.narrowed
        if self._prepared is not None:
            fill_plan_figures(result, self._prepared.plans)
        returned = loaded.outputs(reference, loaded.take(reference, result))
        if loaded.nbytes > self._held_bytes:
            loaded.release(reference)
        with self._lease.host():
            look_closer = partial(self.baseline.look_closer, reference)
            judge_sets(reference, returned, result, look_closer, self._is_candidate)

    def _time(
        self, loaded: LoadedWorker, subgraph: Subgraph, result: GraphResult, is_repeat: bool = False
    ) -> None:
        """Time the subject against eager; raises Failed and Refused.

        What is wrong with a time may be the machine's doing: all is measured again, once, by new workers.
        """
        before = self._timings.get(result.name, [])
        if len(before) >= _HELD_PAIRS and before[0].is_slow:
            return  # it had all its calls
        reference, timing = self._measured(loaded, subgraph, result)
        fault = self._fault(reference, result, timing) if self._is_candidate else None
        if fault is not None:
            if is_repeat:
                raise Refused([fault])
            self._put_aside()
            assert self._eager is not None
            self._eager = self.workers.eager.replace(self._eager, self.task.key)
            self._time(self._ready(), subgraph, result, is_repeat=True)
            return
        self._timings.setdefault(result.name, []).append(timing)

    def _fault(self, reference: Reference, result: GraphResult, timing: Timing) -> Violation | None:
        """Find a fault of a candidate's time: hidden time, too many threads, a speed that no device has."""
        if timing.hidden is not None:
            return clocks.refusal(timing.hidden)
        if busy := clocks.extra_threads(timing.compiled, worker_threads(self.config.threads)):
            return clocks.refusal_of_threads(busy)
        measured = speed_of_light.beyond_light(reference, result, timing, self.config.device)
        return None if measured is None else speed_of_light.refusal(measured)

    def _compare(self, loaded: LoadedWorker, subgraph: Subgraph, result: GraphResult) -> None:
        """Time the subject against the compiler that is the reference; raises Failed and Refused.

        The subject's clock was audited when it was timed beside eager.
        """
        result.vs_reference = speedup_of(together([self._measured(loaded, subgraph, result)[1]]))

    def _measured(
        self, loaded: LoadedWorker, subgraph: Subgraph, result: GraphResult
    ) -> tuple[Reference, Timing]:
        """Time the subject against the eager, verifying outputs of calls among them."""
        reference = self.baseline.reference(subgraph, self.dispatch)
        checks = TimedChecks(loaded, reference, result, self.baseline)
        assert self._eager is not None
        self._eager.take(reference)
        dispatches = loaded.dispatches(reference)
        if self._is_candidate:  # no more than eager's, whatever its worker says
            dispatches = min(dispatches, reference.dispatches)
        loaded.overhead_ns = reference.host_ns(dispatches)
        try:
            with self.workers.quiet, self._lease.exclusive() as share:
                part = effort.effort_of(self.config, self.dispatch, self.bar, len(self.graphs))
                timing = measure(TimedPair(loaded, self._eager, reference, checks.verify, part, share))
        except TimedCallError as failure:
            raise_for(failure.error)
            raise
        if loaded.nbytes > self._held_bytes:
            loaded.release(reference)
            if self.config.device != "cpu":  # or eager's workers of several pairs hold it at a time
                self._eager.release(reference)
        return reference, timing
