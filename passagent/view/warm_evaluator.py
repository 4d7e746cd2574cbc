"""One evaluator for many candidates, from Python: `passagent.Evaluator`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Self, Unpack

from passagent.errors import UsageError
from passagent.evaluator.candidate import MANIFEST, PLAN, Candidate
from passagent.option_groups import checked
from passagent.options import EvaluatorOptions, config_of
from passagent.search.thread import LoopThread
from passagent.tasks import Task, load_task
from passagent.view.handles import Plan, Result


class Evaluator:
    """Judges candidates on one warm pool of processes: a context manager, also an asynchronous one."""

    def __init__(self, *, runs_dir: str | Path | None = None, **options: Unpack[EvaluatorOptions]) -> None:
        """Raises UsageError for a device that is not here, and for a wrong option.

        runs_dir: where evaluations are kept and found again; None: nowhere. options: those of
        `passagent eval`, such as device: `cpu` (the default), `cuda`, `cuda:N`, `cuda:all`.
        """
        from passagent.agent.validator import open_validator
        from passagent.evaluator.fleet.opening import open_pool

        self._config = config_of(EvaluatorOptions, checked(EvaluatorOptions, options))
        self._runs_dir = runs_dir
        self._model = open_validator(self._config)
        self._pool = open_pool(self._config.evaluator)
        self._thread = LoopThread("passagent-evaluator")

    def evaluate(self, task: Task | str | Path, candidate: CandidateLike, *, fresh: bool = False) -> Result:
        """Judge a candidate on a task: integrity, matching, correctness, speed, AS.

        candidate: a pass directory, its files as `{"name.py": source}` (without a manifest every file is a
        pass, in this order), or a plan. fresh: measure, whatever the store knows of it.
        Raises UsageError, TaskError, InfrastructureError; what is wrong with the candidate is the result.
        """
        return self._thread.run(self._evaluate(task, candidate, fresh))

    async def evaluate_async(
        self, task: Task | str | Path, candidate: CandidateLike, *, fresh: bool = False
    ) -> Result:
        """Judge as `evaluate` does; several at a time are queued, and run side by side on several devices."""
        return await asyncio.wrap_future(self._thread.start(self._evaluate(task, candidate, fresh)))

    async def _evaluate(self, task: Task | str | Path, candidate: CandidateLike, fresh: bool) -> Result:
        from passagent.agent.validator import Judges, judged
        from passagent.store import Store

        loaded = task if isinstance(task, Task) else load_task(task)
        judges = Judges(self._pool.evaluate, self._model)
        with Store.open(self._runs_dir) if self._runs_dir is not None else nullcontext() as store:
            result = await judged(judges, store, loaded, _candidate(candidate), self._config, fresh)
        return Result(result.evaluation, result.measured_at, result.from_store)

    def close(self) -> None:
        """End its processes; an evaluation that is under way raises InfrastructureError."""
        self._thread.run(self._close())
        self._thread.close()

    async def _close(self) -> None:
        await self._pool.close()
        if self._model is not None:
            await self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


CandidateLike = str | Path | Mapping[str, str] | Plan | Candidate
"""A pass directory (or a recorded plan's), files by name, a plan, or `Node.files`."""


def _candidate(source: CandidateLike) -> Candidate:
    if isinstance(source, Candidate):
        return source
    if isinstance(source, Plan):
        return Candidate(source.files)
    if isinstance(source, str | Path):
        return Candidate.from_dir(source)
    import json

    files = dict(source)
    if not any(name.endswith(".py") for name in files) and PLAN not in files:
        raise UsageError("the candidate: holds no .py file; give {'name.py': source}")
    if MANIFEST not in files and PLAN not in files:
        files[MANIFEST] = json.dumps([name.removesuffix(".py") for name in files if name.endswith(".py")])
    return Candidate(files)
