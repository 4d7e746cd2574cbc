"""The referee: the trusted side of an evaluation. It owns inputs, references, the clock and the verdict.

A candidate's host code is recorded in a process that is thrown away. What it decided, its plans, is checked
and built here, and replayed in an expendable worker. For each subgraph the referee draws inputs from an
unpredictable seed, has a baseline worker (trusted code only) compute eager's outputs on private copies, has
the candidate's kernels compute their own in audited calls, and compares bytes here. Only when all subgraphs
were checked, and one is right, are both sides timed. `Referee.evaluate` returns data; nobody parses logs.
"""

from __future__ import annotations

import time

from passagent.config import EvaluatorConfig
from passagent.evaluator.compilers import is_compiled
from passagent.evaluator.hardware.devices import find_device
from passagent.evaluator.hardware.health import device_state
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging.effort import check_gpu_room, check_task_room, dispatch_of, has_room
from passagent.evaluator.judging.judging import Equipment, Judging
from passagent.evaluator.judging.recorder import Prepared, Recorder
from passagent.evaluator.judging.verdict import (
    Failed,
    Findings,
    Refused,
    conclude,
    evaluate_failed,
    evaluate_refused,
)
from passagent.evaluator.judging.workers import Workers
from passagent.evaluator.reference.baseline import Baseline
from passagent.evaluator.reference.eager import EagerGraph
from passagent.evaluator.result import Candidate, Evaluation, Subject
from passagent.evaluator.runner.worker_process import fork_server
from passagent.plan import artefact
from passagent.sandbox.child import ForkServer
from passagent.sandbox.environment import worker_threads
from passagent.sandbox.faults import named
from passagent.sandbox.machine_memory import available_bytes
from passagent.tasks.reader import Task


class Referee:
    """Judges candidates on one device. Not for concurrent use; `close()` ends its processes."""

    def __init__(
        self,
        config: EvaluatorConfig | None = None,
        server: ForkServer | None = None,
        lease: DeviceLease | None = None,
    ) -> None:
        """`server`: a fork server for workers and recordings, which its owner ends; None: one of its own.

        `lease`: None: its own.
        """
        self.config = config or EvaluatorConfig()
        self.lease = lease or DeviceLease(find_device(self.config.device))
        self._free_bytes = available_bytes()
        self._is_server_ours = server is None
        self.server = server or fork_server(self.config.device, worker_threads(self.config.threads))
        self.workers = Workers(self.config, self.lease, self.server)
        self._baseline = Baseline(self.workers.server, self.config, self.lease)
        self._recorder = Recorder(self.config, self.lease, self.server)

    def __enter__(self) -> Referee:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of this referee."""
        self._recorder.close()
        self._baseline.close()
        self.workers.close()
        if self._is_server_ours:
            self.server.end()

    def foresee(self, task: Task, candidate: Candidate) -> None:
        """Begin on what may be evaluated next, from another thread: where the host has cores to spare, it is
        recorded and built during the current measurement.
        """
        if has_room(self.config.device):
            self._recorder.begin(candidate, task.subgraphs)

    def describe(self, task: Task, seconds: float) -> list[EagerGraph]:
        """Eager on the subgraphs of `task`, as many as are begun in so many seconds. Raises as `evaluate`."""
        until, dispatch = time.monotonic() + seconds, dispatch_of(self.config)
        return [self._baseline.describe(s, dispatch) for s in task.subgraphs if time.monotonic() < until]

    def evaluate(self, task: Task, subject: Subject, bar: float | None = None) -> Evaluation:
        """Judge `subject` on every subgraph of `task`; stop as soon as it is below `bar`, an AS, for sure.

        Raises TaskError if eager itself fails on a subgraph, InfrastructureError if the machine does; either
        if the task is too large for its memory.
        """
        started, before = time.monotonic(), device_state(self.config.device)
        self._check_room(task)
        self._prepare_workers(dispatch_of(self.config, subject), subject)
        prepared = None
        if isinstance(subject, Candidate):
            recorded = self.record(task, subject)
            if isinstance(recorded, Evaluation):
                return recorded
            prepared = recorded
        equipment = Equipment(self.config, self._baseline, self.workers, self.lease)
        judging = Judging(task, subject, equipment, bar, prepared)
        with named("the evaluator"):  # no descriptor, no memory for an arena: the machine's fault
            judging.run()
        findings = Findings(judging.graphs, judging.violations, judging.protections)
        evaluation = conclude(task, subject, self.config, findings)
        if prepared is not None:
            evaluation.edited = prepared.edited
        if prepared is not None and evaluation.status == "ok":
            evaluation.plan_files = artefact.write(prepared.plans.recording)
            evaluation.plans = Candidate(evaluation.plan_files).key
        if any(graph.speedup is not None for graph in evaluation.graphs):
            evaluation.bar, evaluation.stopped_early = bar, judging.stopped_early
        evaluation.seconds = round(time.monotonic() - started, 3)
        evaluation.device_state = {"before": before, "after": device_state(self.config.device)}
        return evaluation

    def record(self, task: Task, candidate: Candidate) -> Prepared | Evaluation:
        """Its plans on `task`; its evaluation if there are none. Raises as `evaluate`."""
        names = {subgraph.name for subgraph in task.subgraphs}
        try:
            prepared = self._recorder.prepare(candidate, task.subgraphs, self._baseline)
            failed = prepared.failed
        except Refused as refused:
            return evaluate_refused(task, candidate, self.config, refused.violations, refused.unmatched)
        except Failed as failure:
            failed = dict.fromkeys(names, failure)
        for subgraph in task.subgraphs:
            if subgraph.name in failed and failed[subgraph.name].status == "runtime_error":
                self._baseline.reference(subgraph, dispatch_of(self.config))  # where eager fails, too
                break
        if failed.keys() == names:
            return evaluate_failed(task, candidate, self.config, failed)
        return prepared

    def outline(self, task: Task, candidate: Candidate) -> Evaluation | list[str]:
        """The candidate's plans on `task`, each in a few lines; its evaluation if there are none.

        Raises as `evaluate` does.
        """
        self._check_room(task)
        prepared = self.record(task, candidate)
        return prepared if isinstance(prepared, Evaluation) else prepared.outline()

    def _check_room(self, task: Task) -> None:
        check_task_room(task, self.config.device, self._free_bytes)
        check_gpu_room(task, self.config.device)

    def _prepare_workers(self, dispatch: str, subject: Subject) -> None:
        if dispatch == "dynamo":
            self.workers.server.load_dynamo(compiler=True)
        if is_compiled(subject) or is_compiled(self.config.reference):
            self.workers.begin_compilers()
        self.workers.prepare()
