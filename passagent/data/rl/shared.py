"""One evaluator for all environments of a process: its pool, its store and an event loop on a thread.

Trainers call tools from ordinary functions, so the pool's coroutines run on a thread of their own. The pool
holds a device's lock around each evaluation, as for every other command: environments queue, also with those
of other processes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator.fleet.opening import environment_key, open_pool
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.service import known
from passagent.evaluator.service.pool import SubjectLost
from passagent.search.thread import LoopThread
from passagent.store import Store
from passagent.tasks import Task

log = logging.getLogger("passagent.data.rl")

MAX_FAULTS = 3
"""Evaluations in a row that the machine failed; then no episode is begun any more."""

_T = TypeVar("_T")


class SharedEvaluator:
    """Evaluates for every environment with the same settings; get it by `shared`."""

    def __init__(self, config: EvaluatorConfig, runs_dir: str | None) -> None:
        """`runs_dir`: where evaluations are kept and found again; None: nowhere. Raises UsageError."""
        self._config, self._runs_dir = config, runs_dir
        self._pool = open_pool(config, tell=log.warning)
        self._environment = environment_key(config)
        self._store: Store | None = None
        self._faults = 0
        self._last_fault = ""
        self._thread = LoopThread("passagent-rl")

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the evaluator's loop; it is cancelled if the caller is interrupted."""
        return self._thread.run(work)

    async def evaluate(self, task: Task, candidate: Candidate) -> Evaluation:
        """Return the evaluation, from the store if it is known there.

        A refusal that rests on a measurement must repeat itself to count: it is measured once more. Raises
        what EvaluatorPool.evaluate raises.
        """
        evaluation = await self._evaluate(task, candidate)
        if evaluation.status == "refused" and evaluation.rests_on_measurement:
            evaluation = await self._evaluate(task, candidate)
        return evaluation

    async def outline(self, task: Task, candidate: Candidate) -> Evaluation | list[str]:
        """Return EvaluatorPool.outline of the candidate."""
        return await self._pool.outline(task.path, candidate)

    async def _evaluate(self, task: Task, candidate: Candidate) -> Evaluation:
        try:
            if self._runs_dir is None:
                evaluation = await self._pool.evaluate(task.path, candidate)
            else:
                self._store = store = self._store or Store.open(self._runs_dir)
                case = known.Case(task, candidate, self._environment)
                evaluation = (await known.evaluate(self._pool.evaluate, store, case)).evaluation
        except SubjectLost:
            raise
        except InfrastructureError as error:
            self._faults, self._last_fault = self._faults + 1, str(error)
            raise
        self._faults = 0
        return evaluation

    def check(self) -> None:
        """Raise InfrastructureError if the machine failed the last MAX_FAULTS evaluations."""
        if self._faults >= MAX_FAULTS:
            raise InfrastructureError(
                f"the machine failed {self._faults} evaluations in a row, training on would teach nothing: "
                f"{self._last_fault}"
            )

    def close(self) -> None:
        """End the pool's processes and the thread."""

        async def close() -> None:
            await self._pool.close()
            if self._store is not None:
                self._store.close()

        self.run(close())
        self._thread.close()


_open: dict[tuple[str, str | None], SharedEvaluator] = {}
_guard = threading.Lock()


def shared(config: EvaluatorConfig, runs_dir: str | None) -> SharedEvaluator:
    """Return this process's evaluator with these settings, made when first asked for. Raises UsageError."""
    key = config.model_dump_json(), runs_dir
    with _guard:
        if key not in _open:
            _open[key] = SharedEvaluator(config, runs_dir)
        return _open[key]


def close_all() -> None:
    """End every shared evaluator of this process; the next episode makes a new one.

    A process that just ends need not call it: the owners see their sockets close and end, too.
    """
    with _guard:
        while _open:
            _open.popitem()[1].close()
