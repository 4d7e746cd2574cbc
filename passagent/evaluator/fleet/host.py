"""A machine that evaluates for others: jobs by ticket, a referee for each device and each who asks.

Whatever carries a call (HTTP, Ray), it is `Host.answer`: plain data in, plain data out. A call may be made
again: a ticket that is known is not begun again. Who is silent for SILENT_S has left: its jobs and its
referees end.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from passagent.config import EvaluatorConfig
from passagent.errors import MachineFault, PassagentError
from passagent.evaluator.fleet.contents import Contents, decode
from passagent.evaluator.fleet.offers import Offer
from passagent.evaluator.hardware import health
from passagent.evaluator.service.device_owner import DeviceOwner, Lost, failed
from passagent.evaluator.service.referee_process import RefereeProcess
from passagent.sandbox.environment import core_shares

log = logging.getLogger("passagent.evaluator.fleet")

CALLS = ("hello", "put", "job", "next", "check", "stop")
"""Each is a method of Host."""
SILENT_S = 40.0
"""Without a call, s; then who asked counts as gone."""
WAIT_S = 10.0
"""A call for a job's result waits for it so long at most, s."""
KEPT_S = 120.0
"""A result is kept so long for being asked for again, s."""
SWEEP_S = 2.0

MakeOwner = Callable[..., DeviceOwner]
"""RefereeProcess, or what stands for it."""
_LOOK_S = 0.05
"""Between two looks at jobs that end by themselves, s."""


@dataclass
class Job:
    """A request under way, or its outcome."""

    session: str
    device: str
    task: asyncio.Task[dict[str, Any]]
    asked: float = field(default_factory=time.monotonic)
    note: str = ""
    is_fetched: bool = False


class Host:
    """The devices of this machine, for any number of sessions: a session is one pool of one program."""

    def __init__(self, facts: dict[str, Any], make_owner: MakeOwner = RefereeProcess) -> None:
        """`facts`: of offers.find_machine."""
        self.facts, self.incarnation = facts, uuid.uuid4().hex
        self.devices = {record["name"]: Offer(**record) for record in facts["devices"]}
        self._cores = dict(zip(self.devices, core_shares(len(self.devices)), strict=True))
        self.is_draining = False
        self._make_owner = make_owner
        self._room = tempfile.TemporaryDirectory(prefix="passagent-worker-")
        self._contents = Contents(Path(self._room.name))
        self._heard: dict[str, float] = {}
        self._owners: dict[tuple[str, str], DeviceOwner] = {}
        self._jobs: dict[str, Job] = {}
        self._sweeping: asyncio.Task[None] | None = None

    async def answer(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a call. Every answer names this incarnation; a failure is in `error`, a line."""
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())
        self._heard[session := str(body.get("session", ""))] = time.monotonic()
        try:
            if call not in CALLS:
                raise PassagentError(f"no call '{call[:40]}'")
            if call != "hello" and body.get("incarnation") != self.incarnation:
                return {"incarnation": self.incarnation, "state": "restarted"}
            answer = await getattr(self, f"_{call}")(session, body)
        except OSError as error:
            answer = {"error": f"{error.strerror or error}: {error.filename or self._room.name}"}
        except (PassagentError, KeyError, TypeError, ValueError) as error:
            answer = {"error": f"{call}: {error if isinstance(error, PassagentError) else repr(error)}"}
        return {"incarnation": self.incarnation, **answer}

    async def _hello(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        """Versions and devices."""
        return self.facts

    async def _put(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        for key, content in body["contents"].items():
            await asyncio.to_thread(self._contents.add, key, decode(content))
        return {}

    async def _job(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        """The outcome of a job, or `running`; one that is not known yet is begun."""
        ticket = str(body["ticket"])
        job = self._jobs.get(ticket)
        if job is None:
            if self.is_draining:
                return {"ticket": ticket, "state": "draining"}
            if missing := self._contents.missing(body["request"]):
                return {"ticket": ticket, "state": "missing", "missing": missing}
            device = self.devices[body["device"]]
            await self._end(lambda *at: at == (session, device.name), jobs_only=True)  # nobody waits for it
            job = self._jobs[ticket] = Job(
                session, device.name, asyncio.create_task(self._work(device, body))
            )
        await asyncio.wait({job.task}, timeout=min(float(body.get("wait_s", 0.0)), WAIT_S))
        job.asked = time.monotonic()
        if not job.task.done():
            return {"ticket": ticket, "state": "running", "note": job.note}
        job.is_fetched = True
        outcome = failed(Lost("was stopped")) if job.task.cancelled() else job.task.result()
        return {"ticket": ticket, "state": "done", "outcome": outcome}

    async def _next(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        """Tell a device's referee the next request, if there is a referee."""
        if missing := self._contents.missing(body["request"]):
            return {"missing": missing}
        if owner := self._owners.get((session, body["device"])):
            await owner.foresee(await asyncio.to_thread(self._contents.unpack, body["request"]))
        return {}

    async def _work(self, device: Offer, body: dict[str, Any]) -> dict[str, Any]:
        """The outcome of a referee's request as plain data."""
        session = str(body.get("session", ""))
        try:
            request = await asyncio.to_thread(self._contents.unpack, body["request"])
            config = EvaluatorConfig.model_validate(body["config"]).model_copy(update={"pool": "local"})
            owner = self._owners.get((session, device.name))
            if owner is None:
                notify = partial(self._note, session, device.name)
                owner = self._make_owner(device.device, config, self._cores[device.name], notify=notify)
                self._owners[session, device.name] = owner
            try:
                return {"result": await owner.ask(request)}
            except BaseException as error:
                if isinstance(error, Lost | MachineFault | asyncio.CancelledError):
                    await owner.stop()
                raise
        except (Lost, PassagentError) as error:
            return failed(error)
        except OSError as error:
            return failed(Lost(f"{error.strerror or error}: {self._room.name}"))

    def _note(self, session: str, device: str, text: str) -> None:
        """Something for people who wait for this session's job on a device."""
        for job in self._jobs.values():
            if (job.session, job.device) == (session, device) and not job.task.done():
                job.note = text

    async def _check(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        """Name the fault of a device; None if it is healthy."""
        if self.is_draining:
            return {"problem": "it is being drained: it takes no new work"}
        if problem := self._contents.lack():
            return {"problem": problem}
        offered = self.devices[body["device"]]
        return {"problem": await health.check(offered.device, bool(body.get("quick")))}

    async def _stop(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        """End a session's jobs on a device, and its referee there."""
        await self._end(lambda holder, device: (holder, device) == (session, body["device"]))
        return {}

    async def _end(self, ends: Callable[[str, str], bool], jobs_only: bool = False) -> None:
        """End the jobs and referees of a session and device for which `ends` holds."""
        jobs = [job for job in self._jobs.values() if ends(job.session, job.device) and not job.task.done()]
        for job in jobs:
            job.task.cancel()
        await asyncio.gather(*(job.task for job in jobs), return_exceptions=True)
        for key in [key for key in self._owners if ends(*key) and not jobs_only]:
            await self._owners.pop(key).stop()

    async def _sweep(self) -> None:
        """Now and then: end what nobody asks for any more."""
        forgotten = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for session in [client for client, heard in self._heard.items() if now - heard > SILENT_S]:
                del self._heard[session]
                if any(key[0] == session for key in self._owners):
                    log.warning("session %s is silent for %.0f s: its referees end", session[:8], SILENT_S)
                await self._end(lambda holder, device, session=session: holder == session)  # type: ignore[misc]
            for ticket, job in list(self._jobs.items()):
                if job.task.done() and now - job.asked > KEPT_S:
                    del self._jobs[ticket]
            if now - forgotten > KEPT_S:
                forgotten = now
                with suppress(OSError):
                    await asyncio.to_thread(self._contents.forget)

    async def drain(self) -> None:
        """Take no new job; return when all that are under way are done, and their results fetched or not."""
        self.is_draining = True
        while any(not job.task.done() for job in self._jobs.values()):
            await asyncio.sleep(_LOOK_S)
        until = time.monotonic() + SILENT_S
        while any(not job.is_fetched for job in self._jobs.values()) and time.monotonic() < until:
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """End all referees."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        await self._end(lambda session, device: True)
        self._room.cleanup()
