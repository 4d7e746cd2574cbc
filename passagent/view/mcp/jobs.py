"""Evaluations under way for clients: a job is a node of the store, so its number outlives this process.

No client need wait longer than MAX_WAIT_S for an answer: clients give up after 60 s. The work goes on
meanwhile, whether or not anybody waits.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent.agent.taskfiles import ToolError
from passagent.errors import PassagentError
from passagent.evaluator.result import Candidate
from passagent.search.candidates import judge, tell
from passagent.search.session import Stopping
from passagent.store import nodes
from passagent.store.episodes import Episode
from passagent.store.nodes import Node
from passagent.view.mcp.client_runs import ClientRun

log = logging.getLogger("passagent.mcp")

MAX_WAIT_S = 45.0
"""An answer takes no longer than so, s: clients give up after 60."""
LOOK_S = 0.25
"""Between two looks at a job, s."""
PROGRESS_S = 5.0
"""Progress is reported at least so often: a client's patience may begin anew with it, s."""

Report = Callable[[float, str], Awaitable[None]]
"""`await report(seconds, line)`: say to a client how a job stands."""


@dataclass(eq=False)
class Job:
    """A node that this process evaluates."""

    node: Node
    run: ClientRun
    begun: float
    """time.monotonic()."""
    call: tuple[str, dict[str, Any]]
    """The tool's name and arguments, for the conversation."""
    work: asyncio.Task[None] | None = None
    told: str | None = None
    """The last line about what it waits for, and `told_at`: when, time.monotonic()."""
    told_at: float = 0.0
    error: str | None = None
    """Why it failed."""

    @property
    def is_done(self) -> bool:
        """Return whether nothing of it is under way."""
        return self.work is None or self.work.done()


_current: ContextVar[Job | None] = ContextVar("job", default=None)


class Jobs:
    """The jobs of this process."""

    devices = 1
    """How many measure at a time."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def get(self, node_id: int) -> Job | None:
        """The job of this node, if this process has begun one."""
        return self._jobs.get(node_id)

    def tell(self, line: str) -> None:
        """Take a line of the pool for people: it is about the job that asks, else about all under way."""
        asking = _current.get()
        for job in [asking] if asking is not None else self._jobs.values():
            if not job.is_done:
                job.told, job.told_at = line, time.monotonic()
        log.info(line)

    def begin(
        self,
        run: ClientRun,
        episode: Episode,
        node: Node,
        call: tuple[str, dict[str, Any]],
        first: bool,
    ) -> Job:
        """Evaluate the node, whose files are in the `call`; `first`: see candidates.propose."""
        job = Job(node, run, time.monotonic(), call)
        job.work = asyncio.create_task(self._work(job, episode, first))
        self._jobs[node.id] = job
        return job

    async def _work(self, job: Job, episode: Episode, first: bool) -> None:
        _current.set(job)
        session, (name, arguments) = job.run.session, job.call
        files = arguments["files"]
        try:
            node, evaluation = await judge(session, job.node, Candidate(files), first)
            text = tell(session.store, node, files, evaluation)
            job.run.record(episode, node.call_id, (name, arguments, text))
        except Stopping as stopping:
            job.error = f"run {session.run.id}: {stopping}"
        except PassagentError as error:
            job.error = str(error)
        except Exception as error:
            log.exception("job %d failed with an error of passagent's own", job.node.id)
            job.error = f"an error of passagent's own: {type(error).__name__}"

    def line(self, job: Job) -> str:
        """How the job stands, in words."""
        seconds = f"{time.monotonic() - job.begun:.0f} s so far"
        others = [other for other in self._jobs.values() if not other.is_done]
        ahead = others.index(job) - self.devices + 1 if job in others else 0
        if ahead > 0:
            return f"waiting: {ahead} before it in this server; {seconds}"
        age = f"said {time.monotonic() - job.told_at:.0f} s ago"
        return f"{job.told}; {age}, {seconds}" if job.told else f"under way; {seconds}"

    async def wait(self, job: Job, seconds: float, report: Report) -> None:
        """Return when the job is done, or after so many seconds; report progress meanwhile."""
        if job.work is not None:
            await waited(job.work, seconds, report, lambda: self.line(job))

    async def cancel(self, job: Job) -> None:
        """Stop the job; its node is not evaluated any more, unless it is proposed again."""
        await self._end(job)
        nodes.cancel(job.run.session.store, job.node.id)

    async def close(self, run: ClientRun | None = None) -> None:
        """Leave off all jobs, or those of one run: the next server may go on with them."""
        mine = [job for job in self._jobs.values() if run is None or job.run is run]
        await asyncio.gather(*(self._end(job) for job in mine))

    async def _end(self, job: Job) -> None:
        if job.work is not None:
            job.work.cancel()
            await asyncio.wait({job.work})


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.A)


def new_directory(place: Path, name: str) -> Path:
    """Return the directory `name` in `place`, which is not there yet. Raises ToolError."""
    if not _NAME.fullmatch(name):
        raise ToolError(f"name '{name[:80]}': write letters, digits, - and _")
    if (place / name).exists():
        raise ToolError(f"{name}: is there already; take another name")
    place.mkdir(parents=True, exist_ok=True)
    return place / name


async def waited(work: asyncio.Task[Any], seconds: float, report: Report, line: Callable[[], str]) -> bool:
    """Return whether `work` is done within so many seconds.

    Progress is reported where `line()` changes, but for what follows its last semicolon, and now and then.
    """
    begun, reported_s, last = time.monotonic(), float("-inf"), ""
    while not work.done():
        passed, text = time.monotonic() - begun, line()
        state = text.rpartition(";")[0]
        if state != last or passed - reported_s >= PROGRESS_S:
            last, reported_s = state, passed
            await report(passed, text)
        if passed >= seconds:
            return False
        await asyncio.wait({work}, timeout=min(LOOK_S, seconds - passed))
    return True


async def run_command(words: Sequence[str]) -> str:
    """Return what `passagent WORDS` prints; its process ends with this call. Raises ToolError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "passagent",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = err.decode("utf-8", "replace").strip().splitlines() or ["it failed"]
        raise ToolError(f"passagent {words[0]}: {lines[-1].removeprefix('passagent: error: ')[:1000]}")
    return out.decode("utf-8", "replace")
