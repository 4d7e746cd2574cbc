"""The referee: the trusted side of an evaluation. It owns inputs, references, the clock and the verdict.

A candidate is inspected as text, then loaded in an expendable worker. For each subgraph the referee draws
inputs from an unpredictable seed, has a baseline worker (trusted code only) compute eager's outputs on
private copies, has the candidate compute its own in audited calls, and compares bytes here. Only when all
subgraphs were checked, and one is right, are both sides timed. Nothing that a candidate says is believed
but its outputs and its clock, and the clock is audited. `Referee.evaluate` returns data; nobody parses logs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator.baseline import Baseline
from passagent.evaluator.devices import find_device
from passagent.evaluator.environment import worker_threads
from passagent.evaluator.guards import static
from passagent.evaluator.health import device_state
from passagent.evaluator.holder import Subject
from passagent.evaluator.judging import PAIRS, Judging
from passagent.evaluator.process import Worker, WorkerDied, WorkerTimeout, Zygote
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.starting import Started
from passagent.evaluator.twin import Twins
from passagent.evaluator.verdict import conclude
from passagent.kernels import build
from passagent.kernels.toolchain import cache_dir
from passagent.tasks.reader import Task

_SPARES = 2 * PAIRS
"""Workers made ahead: for the candidate's pairs, and for eager's, which last for several evaluations."""


class Referee:
    """Judges candidates on one device. Not for concurrent use; `close()` ends its processes."""

    def __init__(self, config: EvaluatorConfig | None = None, started: Started | None = None) -> None:
        """`started`: its zygote's process, if that is on its way."""
        self.config = config or EvaluatorConfig()
        find_device(self.config.device)
        self._threads = worker_threads(self.config.threads)
        self._zygote = Zygote(self.config.device, self._threads, started=started)
        self._interpreter: Zygote | None = None
        self._baseline = Baseline(self._zygote, self.config)
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="spare-worker")
        self._quiet = threading.Lock()
        self._spares: deque[Future[Worker]] = deque()
        self._twins = Twins(self._spare, self.config)
        if self.config.device == "cpu":
            self._ahead.submit(
                build.prepare
            )  # once for a compiler; what fails here is told by a kernel's build

    def __enter__(self) -> Referee:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of this referee."""
        self._ahead.shutdown(wait=True)
        self._twins.close()
        self._baseline.close()
        self._zygote.close()
        if self._interpreter is not None:
            self._interpreter.close()

    def evaluate(self, task: Task, subject: Subject, bar: float | None = None) -> Evaluation:
        """Judge `subject` on every subgraph of `task`; under `bar`, an AS, no longer than tells so.

        Raises TaskError if eager itself fails on a subgraph, InfrastructureError if the machine does.
        """
        judging = Judging(
            task,
            subject,
            self.config,
            self._baseline,
            self._worker,
            self._end,
            self._twins,
            self._quiet,
            bar,
        )
        started, before = time.monotonic(), device_state(self.config.device)
        if isinstance(subject, Candidate):
            judging.violations += static.inspect(subject, self.config.host_extensions)
        if judging.violations:
            judging.refuse_all()
        else:
            if judging.dispatch == "dynamo":
                self._zygote.load_compiler()
            self._make_spares()  # while subgraphs are checked: making them would disturb what is timed
            try:
                judging.run()
            except OSError as error:  # no descriptor, no memory for an arena: the machine's fault
                raise InfrastructureError(f"the evaluator: {error.strerror or error}") from error
        evaluation = conclude(
            task,
            subject,
            self.config,
            judging.graphs,
            judging.violations,
            judging.protections,
            interpreter=judging.interpreter,
            seconds=time.monotonic() - started,
        )
        if any(graph.speedup is not None for graph in evaluation.graphs):
            evaluation.bar, evaluation.stopped_early = bar, judging.stopped_early
        evaluation.device_state = {"before": before, "after": device_state(self.config.device)}
        return evaluation

    def _worker(self, subject: Subject, interpreter: bool) -> Worker:
        """A worker for `subject`: a spare one if it is of the kind."""
        if subject == "inductor":
            compiled = cache_dir() / "inductor"
            compiled.mkdir(parents=True, exist_ok=True)
            return self._zygote.fork(None, sandboxed=False, compiled=compiled)
        if isinstance(subject, Candidate) and self.config.host_extensions:
            return self._zygote.fork(None, sandboxed=False)  # it runs compilers itself
        if interpreter:
            if self._interpreter is None:
                self._interpreter = Zygote(self.config.device, self._threads, interpreter=True)
            return self._interpreter.fork(self.config.memory_gb)
        return self._spare()

    def _end(self, worker: Worker) -> None:
        """Kill a worker; nothing is timed before it is gone, which takes a tenth of a second on a GPU."""
        worker.interrupt()
        self._ahead.submit(self._kill_in_quiet, worker)

    def _kill_in_quiet(self, worker: Worker) -> None:
        with self._quiet:
            worker.kill()

    def _spare(self) -> Worker:
        """A worker made ahead."""
        try:
            ready = self._spares.popleft()
        except IndexError:
            ready = None
        worker = ready.result() if ready is not None and ready.exception() is None else self._fork()
        if not worker.is_alive():
            worker.kill()
            worker = self._fork()
        return worker

    def _make_spares(self) -> None:
        while len(self._spares) < _SPARES:
            self._spares.append(self._ahead.submit(self._fork_in_quiet))

    def _fork_in_quiet(self) -> Worker:
        with self._quiet:
            return self._fork()

    def _fork(self) -> Worker:
        """A worker for the next candidate, its device's context made."""
        worker = self._zygote.fork(self.config.memory_gb if self.config.device == "cpu" else None)
        request = {"op": "prepare", "device": self.config.device}
        try:
            reply = worker.ask(request, self.config.timeout_s).message
        except (WorkerDied, WorkerTimeout) as error:
            raise InfrastructureError(f"a worker did not start: {error}") from error
        if "error" in reply:
            worker.kill()
            raise InfrastructureError(f"a worker did not start: {reply['error']['message']}")
        return worker
