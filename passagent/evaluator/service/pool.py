"""Evaluations for an asyncio program: one owner per device, a queue before them, faults retried elsewhere.

A device judges one subject of this program at a time; between programs its owner leases it, stage by stage
(hardware/leases.py). A CPU with cores for several is several devices. After a fault of the machine the device
must pass a health check; one that fails it is quarantined, and its work goes to another. What crosses to an
owner is plain data, and nothing here knows where a device is: a fleet (evaluator/fleet) may bring owners of
other machines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, MachineFault, TaskError
from passagent.evaluator.hardware import health
from passagent.evaluator.hardware.devices import Device, find_devices
from passagent.evaluator.hardware.leases import is_in_use
from passagent.evaluator.reference.eager import EagerGraph, read_graphs
from passagent.evaluator.result import Candidate, Evaluation, Subject
from passagent.evaluator.service.device_owner import DeviceOwner, Fleet, Lost
from passagent.evaluator.service.referee_process import RefereeProcess
from passagent.evaluator.target import target_of
from passagent.sandbox.environment import core_shares
from passagent.sandbox.faults import speaks_of_places

log = logging.getLogger("passagent.evaluator")

ATTEMPTS = 3
"""Times that an evaluation is begun on a healthy device before it is given up."""
DESCRIBE_S = 20.0
"""For telling what eager does on a task; subgraphs that are not begun by then are not described, s."""
MACHINES = 10
"""Machines that an evaluation may lose, or one so often; then it is given up."""
OUTAGE_S = 120.0
"""Machines may all be out of reach for so long, s; then a network is no longer waited for."""
LOOK_S = 0.05
"""Between two looks at machines that are out of reach, s."""
STARTS = 2
"""Times that an owner may fail to start on a healthy device before that is quarantined."""
PAUSES_S = (5.0, 20.0, 80.0, 320.0, 600.0)
"""Time in quarantine after the first, second, ... failed health check in a row, s."""

_pinned: ContextVar[list[str] | None] = ContextVar("pinned", default=None)
"""The name of the device that evaluations are made on, once the first of them has one; None: on any."""


@contextmanager
def on_one_device() -> Iterator[None]:
    """Evaluate on one device meanwhile, as long as that is fit."""
    token = _pinned.set([])
    try:
        yield
    finally:
        _pinned.reset(token)


@dataclass
class Quarantine:
    """Why a device is not used, and until when."""

    reason: str
    since: str
    """Time of day."""
    until: float
    """time.monotonic() when it is tried again."""
    times: int
    """Failed health checks in a row."""


class DeviceSlot:
    """A device, its owner, and whether it can take work."""

    def __init__(self, owner: DeviceOwner, cores: list[int] | None = None) -> None:
        """`cores`: of this machine's CPU or beside its GPU; None for a device of another machine."""
        self.device, self.owner, self._cores = owner.device, owner, cores
        self.is_busy = False
        self.foresees = False
        """True once the next candidate was announced."""
        self.evaluations, self.faults, self.busy_s = 0, 0, 0.0
        self.failed_starts = 0
        self.quarantine: Quarantine | None = None

    def is_open(self) -> bool:
        """Not in quarantine, or its time there is over."""
        return self.quarantine is None or self.quarantine.until <= time.monotonic()

    def preference(self) -> tuple[bool, bool]:
        """The lowest of several free ones is taken: a fit one, that no other program uses."""
        is_used = self._cores is not None and is_in_use(self.device, self._cores)
        return self.quarantine is not None, is_used


class SubjectLost(InfrastructureError):
    """A subject was lost `ATTEMPTS` times on healthy devices: it may itself be what ends the evaluator."""


class EvaluatorPool:
    """Judges subjects on the devices of `config.device`, one on each at a time; callers queue."""

    def __init__(
        self,
        config: EvaluatorConfig,
        devices: Sequence[Device] | None = None,
        tell: Callable[[str], None] = log.warning,
        fleet: Fleet | None = None,
    ) -> None:
        """`tell` gets a line for people about waits, faults, quarantine.

        `fleet`: whose devices these are, if not this machine's.
        Raises UsageError if `config.device` is not here, or `config.target` cannot be used.
        """
        target_of(config)
        self.tell = tell
        self._fleet = fleet
        self._attending: asyncio.Task[None] | None = None
        if fleet is None:
            all_devices = devices or find_devices(config.device) * _cpu_sets(config)
            shares = core_shares(len(all_devices))
            self._slots = [
                DeviceSlot(RefereeProcess(device, config, cores, tell), cores)
                for device, cores in zip(all_devices, shares, strict=True)
            ]
        else:
            self._slots = [DeviceSlot(owner) for owner in fleet.owners]
        self._telling: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._begun = time.monotonic()

    @property
    def size(self) -> int:
        """Devices, fit or not."""
        return len(self._slots)

    def start(self) -> None:
        """Start the first device's process on this machine and do not wait: it imports torch meanwhile."""
        for slot in self._slots[:1]:
            if isinstance(slot.owner, RefereeProcess):
                slot.owner.start()

    async def evaluate(self, task_path: Path, subject: Subject, bar: float | None = None) -> Evaluation:
        """Judge a candidate, or a compiler in its place, on the task at `task_path`.

        `bar`: an AS; a candidate that stays under it for sure is measured no longer than tells so.
        Raises TaskError, UsageError or MachineFault as the referee does; InfrastructureError if no device is
        fit, SubjectLost after three lost attempts on healthy ones.
        """
        request: dict[str, Any] = {"task": str(task_path), "bar": bar}
        if isinstance(subject, Candidate):
            request["files"], name = subject.files, f"candidate {subject.key[:12]}"
            self._foresee(request)
        else:
            request["compiler"], name = subject, f"compiler {subject}"
        losses: list[str] = []
        machines = 0
        while len(losses) < ATTEMPTS:
            async with self._next_slot() as slot:
                try:
                    return await self._measure(slot, request)
                except Lost as lost:
                    await slot.owner.stop()
                    slot.faults += 1
                    machines += lost.machine
                    if not self._is_closed and await self._is_fit(slot, lost):
                        losses.append(str(lost))
                    if machines == MACHINES:
                        raise InfrastructureError(f"{name} lost {MACHINES} machines: {lost}") from lost
                if len(losses) == 2:
                    self.tell(f"{name} was lost twice though {slot.device.name} is healthy: {losses[-1]}")
        raise SubjectLost(
            f"{losses[-1]}; tried {ATTEMPTS} times on healthy devices: {name} may be what ends the evaluator"
        )

    def _foresee(self, request: dict[str, Any]) -> None:
        """Where all devices are busy, tell one of them of a candidate that waits. Nobody waits for that."""
        slots = [slot for slot in self._slots if slot.is_open()]
        if slots and all(slot.is_busy for slot in slots):
            for slot in [slot for slot in slots if not slot.foresees][:1]:
                slot.foresees = True
                telling = asyncio.create_task(slot.owner.foresee(request))
                self._telling.add(telling)
                telling.add_done_callback(self._told)

    def _told(self, telling: asyncio.Task[None]) -> None:
        self._telling.discard(telling)
        if not telling.cancelled() and (error := telling.exception()) is not None:
            log.info("a device was not told of what is next: %s", error)

    async def describe(self, task_path: Path) -> tuple[EagerGraph, ...]:
        """Eager on the task's subgraphs, as many as take DESCRIBE_S together.

        Raises TaskError as the referee does, InfrastructureError if no device is fit or one is lost.
        """
        return read_graphs(await self._ask({"task": str(task_path), "describe_s": DESCRIBE_S}))

    async def outline(self, task_path: Path, candidate: Candidate) -> Evaluation | list[str]:
        """The candidate's plans, each in a few lines; its evaluation if there are none. Nothing of it is run.

        Raises as `describe` does.
        """
        request = {"task": str(task_path), "files": candidate.files, "outline": True}
        answer = await self._ask(request)
        return answer if isinstance(answer, list) else Evaluation.model_validate(answer)

    async def _ask(self, request: dict[str, Any]) -> Any:
        """The answer to what measures nothing that counts."""
        async with self._next_slot() as slot:
            try:
                return await slot.owner.ask(request)
            except Lost as lost:
                await slot.owner.stop()
                raise InfrastructureError(f"{slot.device.name}: {lost}") from lost

    async def _measure(self, slot: DeviceSlot, request: dict[str, Any]) -> Evaluation:
        """One attempt. A failure that a faulty device may cause counts only if the device is healthy."""
        begun, slot.foresees = time.monotonic(), False
        try:
            evaluation = Evaluation.model_validate(await slot.owner.ask(request))
        except TaskError:
            await self._clear(slot, quick=False)
            raise
        finally:
            slot.busy_s += time.monotonic() - begun
        if evaluation.status == "infrastructure":
            raise Lost(evaluation.error or "the machine failed an evaluation")
        is_full = any(graph.status == "out_of_memory" for graph in evaluation.graphs)
        if is_full and (crowd := health.others_on(evaluation.device_state)):
            raise Lost(health.crowded(crowd))
        others = [other for other in self._slots if other is not slot and other.is_open()]
        if evaluation.status == "timeout":
            await self._clear(slot, quick=False)
        elif (
            evaluation.status in ("runtime_error", "out_of_memory")
            or (evaluation.status == "load_error" and speaks_of_places(evaluation.error or ""))
            or (others and health.is_throttled(evaluation.device_state))
        ):
            await self._clear(slot, quick=True)
        if slot.quarantine is not None:
            self.tell(f"{slot.device.name} is fit again")
        slot.failed_starts, slot.quarantine = 0, None
        slot.evaluations += 1
        return evaluation

    async def _clear(self, slot: DeviceSlot, quick: bool) -> None:
        """Raise Lost if the device is faulty."""
        problem = await slot.owner.check(quick)
        if problem is not None:
            raise Lost(problem)

    async def _is_fit(self, slot: DeviceSlot, lost: Lost) -> bool:
        """After a loss: whether the device is healthy and the loss must be the subject's or chance's."""
        self.tell(f"{slot.device.name}: {lost}")
        problem = await slot.owner.check()
        if problem is None and lost.starting:
            slot.failed_starts += 1
            if slot.failed_starts >= STARTS:
                problem = f"its evaluator does not start: {lost}"
        if problem is not None:
            self._quarantine(slot, problem)
        return problem is None and not lost.starting and not lost.machine

    def _quarantine(self, slot: DeviceSlot, reason: str) -> None:
        times = slot.quarantine.times + 1 if slot.quarantine else 1
        pause = PAUSES_S[min(times, len(PAUSES_S)) - 1]
        slot.quarantine = Quarantine(reason, time.strftime("%H:%M:%S"), time.monotonic() + pause, times)
        self.tell(f"{slot.device.name} is quarantined for {pause:.0f} s: {reason}")

    @asynccontextmanager
    async def _next_slot(self) -> AsyncIterator[DeviceSlot]:
        """The next free device in good health. Raises InfrastructureError."""
        if self._fleet is not None and self._attending is None:
            self._attending = asyncio.create_task(self._fleet.attend(self._add))
        while True:
            slot = await self._take()
            try:
                if slot.quarantine is not None:
                    problem = await slot.owner.check()
                    if problem is not None:
                        self._quarantine(slot, problem)
                        continue
                    slot.failed_starts = 0
                try:
                    yield slot
                except (asyncio.CancelledError, MachineFault):
                    await slot.owner.stop()  # its answer would be read as the next caller's
                    raise
                return
            finally:
                slot.is_busy = False
                self._changed.set()

    async def _take(self) -> DeviceSlot:
        """Wait, first come first served, for a device that is free."""
        is_told = False
        patient_until = time.monotonic() + (OUTAGE_S if self._fleet is not None else 0.0)
        async with self._turn:
            while True:
                if self._is_closed:
                    raise InfrastructureError("the evaluator was closed before it came to this candidate")
                slots = [slot for slot in self._slots if slot.is_open()]
                if not slots:
                    if time.monotonic() >= patient_until:
                        raise InfrastructureError(f"no device is fit: {self._reasons()}")
                    if not is_told:
                        is_told = True
                        self.tell(f"waiting: no device is fit: {self._reasons()}")
                    await asyncio.sleep(LOOK_S)
                    continue
                if pinned := [slot for slot in slots if slot.device.name in (_pinned.get() or ())]:
                    slots = pinned
                free = [slot for slot in slots if not slot.is_busy]
                if free:
                    slot = min(free, key=DeviceSlot.preference) if free[1:] else free[0]
                    slot.is_busy = True
                    if (names := _pinned.get()) is not None:
                        names[:] = [slot.device.name]
                    return slot
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSES_S[0]):
                        await self._changed.wait()

    def _reasons(self) -> str:
        """For each quarantined device: since when, why, and when it is tried again."""
        return "; ".join(
            f"{slot.device.name} is quarantined since {q.since} ({q.reason}), "
            f"tried again in {max(0.0, q.until - time.monotonic()):.0f} s"
            for slot in self._slots
            if (q := slot.quarantine) is not None
        )

    async def close(self) -> None:
        """End the owners' processes and their workers; who still waits gets InfrastructureError."""
        self._is_closed = True
        self._changed.set()
        for telling in self._telling:
            telling.cancel()
        await asyncio.gather(*(slot.owner.stop() for slot in self._slots))
        if self._attending is not None:
            self._attending.cancel()
            await asyncio.gather(self._attending, return_exceptions=True)
        if self._fleet is not None:
            await self._fleet.close()

    def _add(self, owner: DeviceOwner) -> None:
        """A device that came later."""
        self._slots.append(DeviceSlot(owner))
        self._changed.set()

    def figures(self) -> list[dict[str, Any]]:
        """Figures of each device, as plain data: its state, and the share of the time that it was busy."""
        up_s = time.monotonic() - self._begun
        return [
            {
                "device": slot.device.name,
                "model": slot.device.model,
                "state": _state(slot),
                "busy": min(1.0, slot.busy_s / up_s) if up_s > 0 else 0.0,
                "evaluations": slot.evaluations,
                "faults": slot.faults,
            }
            for slot in self._slots
        ]


def _state(slot: DeviceSlot) -> str:
    if slot.quarantine is not None:
        return f"quarantined since {slot.quarantine.since}: {slot.quarantine.reason}"
    return "busy" if slot.is_busy else "idle"


def _cpu_sets(config: EvaluatorConfig) -> int:
    """Candidates that are judged at a time on the CPU, each on cores of its own: `threads`, and one for its
    referee. One where all cores are the workers', and on a GPU.
    """
    if config.device != "cpu" or config.threads is None:
        return 1
    return max(1, len(os.sched_getaffinity(0)) // (config.threads + 1))
