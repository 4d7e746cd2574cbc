"""Eager's side of the timing, or a compiler's: workers as young as the candidate's, with the same past.

The worker of the baseline may have run Dynamo and has grown old: calls take a per cent or two longer in it.
These run nothing but graphs of eager. Each serves a few evaluations (USES), so that only the candidate's
workers are waited for, and is then replaced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from passagent.config import EvaluatorConfig
from passagent.errors import TaskError
from passagent.evaluator.reference.keeping import are_too_many
from passagent.evaluator.reference.reference import Reference
from passagent.evaluator.runner.endings import WorkerDied, WorkerTimeout, failed, lost
from passagent.evaluator.runner.process import Worker, WorkerAnswer
from passagent.evaluator.runner.worker_messages import Load, R, Release, Request
from passagent.sandbox.channel import Arena

USES = {"dynamo": 1, "direct": 2, "graph": 8}
"""Evaluations that an eager worker serves, by dispatch: an older one is slower, and eager would look slow. On
an H200 that was 0.7% from the second evaluation on behind Dynamo, from the third on where graphs are called
directly, and nothing in a CUDA graph."""


@dataclass(frozen=True)
class _HeldSubgraph:
    """A subgraph in the worker; its reference may be gone from here, which takes far more memory."""

    reference: weakref.ref[Reference]
    size: int
    """Bytes of its inputs and their copies."""
    dispatches: float
    """The dispatches of Reference.host_ns."""


class EagerWorker:
    """A worker that holds eager's graphs of one task, or what a compiler makes of them."""

    def __init__(self, worker: Worker, config: EvaluatorConfig, compiler: str | None = None) -> None:
        self.worker, self._timeout_s, self._device = worker, config.timeout_s, config.device
        self.compiler = compiler
        self.overhead_ns = 0
        """The host's part of a call's time, which does not count, for the subgraph that was taken last."""
        self.uses = 0
        self._task_key = ""
        self._held: dict[str, _HeldSubgraph] = {}
        self.ask(Load(plans=None, compiler=compiler, device=config.device), self._timeout_s)

    def serve(self, task_key: str) -> None:
        """One more evaluation begins; the graphs of another task are forgotten."""
        if self._task_key != task_key:
            self._release(list(self._held))
        self._task_key = task_key
        self.uses += 1

    def take(self, reference: Reference) -> None:
        """Have the worker load the subgraph, unless it holds it."""
        if not self._has(reference):
            self._load(reference)
        self.overhead_ns = reference.host_ns(self._held[reference.name].dispatches)

    def _load(self, reference: Reference) -> None:
        self._release([reference.name])
        size = reference.arena.size + reference.copied()
        while self._held and are_too_many([size, *(held.size for held in self._held.values())], self._device):
            self._release([next(iter(self._held))])
        outputs = Arena.create(reference.room())
        try:
            fds = (reference.arena.fd, outputs.fd)
            reply = self.ask(reference.request(outputs), self._timeout_s, fds).reply
        finally:
            outputs.close()
        self._held[reference.name] = _HeldSubgraph(weakref.ref(reference), size, reply.dispatches)

    def ask(self, request: Request[R], timeout_s: float, fds: tuple[int, ...] = ()) -> WorkerAnswer[R]:
        """The worker's answer. Raises InfrastructureError: it runs nothing but what eager ran before.

        Raises TaskError where a compiler fails.
        """
        try:
            answer = self.worker.ask(request, timeout_s, fds)
        except (WorkerDied, WorkerTimeout) as error:
            raise lost(f"{self.compiler or 'eager'}'s worker was lost", error) from error
        if answer.error is not None:
            self.worker.kill()
            if self.compiler is not None:
                raise TaskError(f"{self.compiler} fails: {answer.error.message}")
            raise failed("eager fails where it ran before", answer.error)
        return answer

    def paused(self) -> AbstractContextManager[None]:
        """Have every thread of the worker stand still inside the block."""
        return self.worker.paused()

    def release(self, reference: Reference) -> None:
        """Have the worker forget the subgraph, if it holds it."""
        self._release([reference.name])

    def _has(self, reference: Reference) -> bool:
        held = self._held.get(reference.name)
        return held is not None and held.reference() is reference

    def _release(self, names: list[str]) -> None:
        held = [name for name in names if self._held.pop(name, None) is not None]
        if held:
            self.ask(Release(ids=held), self._timeout_s)


class EagerWorkers:
    """The eager workers of a referee, by the number of the pair that they are in."""

    def __init__(
        self, new_worker: Callable[[], Worker], config: EvaluatorConfig, compiler: str | None = None
    ) -> None:
        self._new_worker, self._config, self._compiler = new_worker, config, compiler
        self._workers: dict[int, EagerWorker] = {}

    def get(self, number: int, task_key: str, uses: int) -> EagerWorker:
        """The worker for pair `number` of an evaluation on a task; it has served fewer than `uses`."""
        eager = self._workers.get(number)
        if eager is None or eager.uses >= uses or not eager.worker.is_alive():
            if eager is not None:
                eager.worker.kill()
            eager = self._workers[number] = EagerWorker(self._new_worker(), self._config, self._compiler)
        eager.serve(task_key)
        return eager

    def replace(self, eager: EagerWorker, task_key: str) -> EagerWorker:
        """A new worker in the place of `eager`, which ends."""
        [number] = [number for number, worker in self._workers.items() if worker is eager]
        return self.get(number, task_key, uses=0)

    def end(self, number: int) -> None:
        """End the one of pair `number`; a new one is made when it is needed."""
        self._workers.pop(number).worker.kill()

    def close(self) -> None:
        """End them; new ones are made when they are needed."""
        while self._workers:
            self._workers.popitem()[1].worker.kill()
