"""Evaluations for an asyncio program: one referee process per device, a queue before it, faults retried.

What crosses the process border is plain data, and nothing here says where a device is, so that another pool
(a cluster's) can take this one's place.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, PassagentError, TaskError, UsageError
from passagent.evaluator.environment import import_path
from passagent.evaluator.result import Candidate, Evaluation

_ATTEMPTS = 3
_LINE_LIMIT = 256 << 20
_KINDS: dict[str, type[PassagentError]] = {"task": TaskError, "usage": UsageError, "failed": PassagentError}


class EvaluatorPool:
    """Evaluates one candidate at a time on `config.device`; callers queue."""

    def __init__(self, config: EvaluatorConfig) -> None:
        self.config = config
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def evaluate(self, task_path: Path, candidate: Candidate) -> Evaluation:
        """Judge `candidate` on the task at `task_path`.

        Raises TaskError or UsageError as the referee does; InfrastructureError after three lost attempts.
        """
        request = json.dumps({"task": str(task_path), "files": candidate.files}) + "\n"
        last = "the evaluator's process ended"
        async with self._lock:
            for _ in range(_ATTEMPTS):
                process = await self._start()
                try:
                    reply = await self._ask(process, request)
                except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
                    last = f"the evaluator's process ended ({error or type(error).__name__})"
                    await self._stop()
                    continue
                except asyncio.CancelledError:
                    await self._stop()  # its answer would be read as the next caller's
                    raise
                if "evaluation" in reply:
                    return Evaluation.model_validate(reply["evaluation"])
                if reply["error"] in _KINDS:
                    raise _KINDS[reply["error"]](reply["message"])
                last = reply["message"]
                await self._stop()
        raise InfrastructureError(f"{last}; tried {_ATTEMPTS} times")

    async def _ask(self, process: asyncio.subprocess.Process, request: str) -> dict:  # type: ignore[type-arg]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(request.encode())
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise ConnectionError(f"exit code {await process.wait()}")
        return json.loads(line)

    async def _start(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "passagent.evaluator.serve",
                self.config.model_dump_json(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
                start_new_session=True,  # Ctrl-C is for the search, which then closes the pool
                env=os.environ | import_path(),
            )
        return self._process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def close(self) -> None:
        """End the referee's process and its workers."""
        await self._stop()
