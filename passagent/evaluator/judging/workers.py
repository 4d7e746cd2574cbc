"""The workers of a referee: made ahead, handed out, ended; no noise while calls are timed."""

from __future__ import annotations

import functools
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from passagent.config import EvaluatorConfig
from passagent.evaluator.compilers import is_compiled
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging.eager_worker import EagerWorkers
from passagent.evaluator.result import Subject
from passagent.evaluator.runner.process import Worker, WorkerServer, answered
from passagent.evaluator.runner.worker_messages import Prepare
from passagent.evaluator.runner.worker_process import compilers_server
from passagent.kernels import toolchain
from passagent.sandbox.cache import cache_dir
from passagent.sandbox.child import ForkServer
from passagent.sandbox.environment import worker_threads

SPARES = 2
"""Workers made ahead: for a candidate and the next pair, or for eager, whose last for several evaluations."""


class Workers:
    """One device's workers.

    `quiet` is held while calls are timed; workers are made and killed by who holds it.
    """

    def __init__(self, config: EvaluatorConfig, lease: DeviceLease, server: ForkServer) -> None:
        """`server`: what forks them. Raises InfrastructureError."""
        self._config, self._lease = config, lease
        self.server = WorkerServer(server, lease)
        self._compilers: ForkServer | None = None
        self.quiet = threading.Lock()
        self.spares: deque[Future[Worker]] = deque()
        self.eager = EagerWorkers(self._spare, config)
        self.compiled = EagerWorkers(functools.partial(self.take, "inductor"), config, "inductor")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="spare-worker")
        if config.device == "cpu":
            # once for a compiler; a kernel's build reports what fails here
            self._ahead.submit(self._prepare_headers)

    def prepare(self) -> None:
        """Begin to make the workers of the next evaluation: later it would disturb what is timed."""
        while len(self.spares) < SPARES:
            self.spares.append(self._ahead.submit(self._fork_in_quiet))

    def begin_compilers(self) -> None:
        """Start the process of compilers' workers, unless it runs: what it imports takes seconds."""
        if self._compilers is None:
            threads = worker_threads(self._config.threads)
            self._compilers = compilers_server(self._config.device, threads)

    def take(self, subject: Subject) -> Worker:
        """A worker for `subject`, a spare one unless it is a compiler."""
        if is_compiled(subject):
            compiled = cache_dir() / "inductor"
            compiled.mkdir(parents=True, exist_ok=True)
            self.begin_compilers()
            server = self.server if self._compilers is None else WorkerServer(self._compilers, self._lease)
            return server.fork(None, sandboxed=False, compiled=compiled)
        return self._spare()

    def end(self, worker: Worker) -> None:
        """Kill a worker; nothing is timed before it is gone, which takes a tenth of a second on a GPU."""
        worker.interrupt()
        self._ahead.submit(self._kill_in_quiet, worker)

    def settle(self) -> None:
        """Wait for the workers that are being made and killed."""
        self._ahead.submit(int).result()

    def close(self) -> None:
        """End every worker."""
        self._ahead.shutdown(wait=True)
        self.eager.close()
        self.compiled.close()
        self.server.close()
        if self._compilers is not None:
            self._compilers.end()

    def _prepare_headers(self) -> None:
        with self._lease.host():
            toolchain.prelude()

    def _kill_in_quiet(self, worker: Worker) -> None:
        with self.quiet, self._lease.shared():
            worker.kill()

    def _spare(self) -> Worker:
        """A worker made ahead, if there is one."""
        ready = self.spares.popleft() if self.spares else None
        worker = ready.result() if ready is not None and ready.exception() is None else self._fork()
        if not worker.is_alive():
            worker.kill()
            worker = self._fork()
        return worker

    def _fork_in_quiet(self) -> Worker:
        with self.quiet:
            return self._fork()

    def _fork(self) -> Worker:
        """A worker for the next candidate, its device's context made."""
        worker = self.server.fork(self._config.memory_gb if self._config.device == "cpu" else None)
        request = Prepare(device=self._config.device)
        return answered(worker, request, self._config.timeout_s, "a worker")
