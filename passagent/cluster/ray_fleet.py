"""The devices of a Ray cluster: a seat for each GPU, or each node's CPU, for all pools of a process."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

from passagent.cluster import ray_seats
from passagent.cluster.machine_facts import read_devices
from passagent.cluster.ray_seats import MakeHost, Seat
from passagent.cluster.remote_owner import Asker, RemoteOwner, Silent, Unreachable
from passagent.cluster.survey import Offered, Reference, kind_wanted, mixed, offered, reference_of
from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, PassagentError
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.service.device_owner import DeviceOwner

PLACE_S = 240.0
"""Ray has so long to find a place for the first device, s."""
GATHER_S = 20.0
"""When the first has one, the others have so long, s; who is later joins the run when it comes."""
TOLD_AFTER_S = 10.0
LOOK_S = 1.0
REST_S = 60.0
"""Where an actor could not be made, another is tried after this time, s."""


class Cluster:
    """What this process has of a cluster."""

    def __init__(self, config: EvaluatorConfig, make: MakeHost) -> None:
        """Raises InfrastructureError: no cluster, no device, or no place for one in PLACE_S."""
        self.kind, self._make, self.users = kind_wanted(config), make, 0
        self._is_ours = ray_seats.connect(config.pool.partition("://")[2] or None)
        self.seats: list[Seat] = []
        self.failed: list[str] = []
        """Actors that could not be made, a line each."""
        self._resting: dict[str | None, float] = {}
        """Where none is made again before that time, by time.monotonic(); None: on any GPU."""
        try:
            self.seat_more()
            if not self.seats:
                raise InfrastructureError(f"--pool {config.pool}: the cluster has no GPU")
            self._gather(config)
        except BaseException:
            self.close()
            raise

    def _gather(self, config: EvaluatorConfig) -> None:
        until = time.monotonic() + PLACE_S
        while not self.placed():
            if not any(seat.has_actor for seat in self.seats):
                raise InfrastructureError(f"--pool {config.pool}: {'; '.join(self.failed)}")
            if time.monotonic() > until:
                said = f"{self.waiting()}; gave up after {PLACE_S:.0f} s"
                raise InfrastructureError(f"--pool {config.pool}: {said}")
            time.sleep(0.05)
        until = min(until, time.monotonic() + GATHER_S)
        while self.placed() < sum(seat.has_actor for seat in self.seats) and time.monotonic() < until:
            time.sleep(0.05)
        found = [one for seat in self.seats if seat.hello is not None for one in self.offered(seat)]
        self.reference = reference_of(found, self.kind)

    def placed(self) -> int:
        """How many seats have a place; what fails one is kept in `failed`."""
        count = 0
        for seat in self.seats:
            try:
                count += seat.look()
            except PassagentError as error:
                self.failed.append(str(error))
                self._resting[seat.node] = time.monotonic() + REST_S
        return count

    def offered(self, seat: Seat) -> list[Offered]:
        """The device of a seat that has a place. Raises UsageError for unlike versions."""
        assert seat.hello is not None
        return offered(seat.name, seat.hello, self.kind)

    def seat_more(self) -> list[Seat]:
        """New seats, for GPUs or nodes that have none; nodes first take the seats whose own is gone."""
        made = []
        nodes: list[str | None]
        if self.kind == "cuda":
            nodes = [None] * (
                ray_seats.gpus() - sum(seat.has_actor or seat.is_refused for seat in self.seats)
            )
        else:
            taken = {seat.node for seat in self.seats if seat.has_actor or seat.is_refused}
            nodes = [node for node in ray_seats.live_nodes() if node not in taken]
        idle = [seat for seat in self.seats if not seat.has_actor and not seat.is_refused]
        now = time.monotonic()
        for node in [node for node in nodes if self._resting.get(node, now) <= now]:
            seat = idle.pop() if idle else Seat(len(self.seats), self.kind, self._make)
            seat.take(node)
            if seat not in self.seats:
                self.seats.append(seat)
                made.append(seat)
        return made

    def waiting(self) -> str:
        """What is waited for, in words; empty if nothing is."""
        late = [seat for seat in self.seats if seat.has_actor and seat.hello is None]
        if not late:
            return ""
        what = "a GPU" if self.kind == "cuda" else "a node"
        free = ray_seats.free_gpus()
        seen = f"; {free:g} of {ray_seats.gpus()} GPUs are free" if self.kind == "cuda" else ""
        return f"{', '.join(seat.name for seat in late)}: Ray has no place for {what} yet{seen}"

    def close(self) -> None:
        """Give all devices back, and leave a cluster that was joined for this."""
        for seat in self.seats:
            seat.leave()
        if self._is_ours:
            ray_seats.disconnect()


_clusters: dict[str, Cluster] = {}
"""Of this process, by pool and kind of device."""
make_host: MakeHost = ray_seats.make_host
"""What actors are made of."""


def _cluster(config: EvaluatorConfig) -> Cluster:
    key = f"{config.pool} {kind_wanted(config)}"
    if key not in _clusters:
        _clusters[key] = Cluster(config, make_host)
    return _clusters[key]


def survey(config: EvaluatorConfig) -> Reference:
    """The reference device. Raises UsageError, InfrastructureError."""
    return _cluster(config).reference


class RayOwner(RemoteOwner):
    """A RemoteOwner whose machine may still have to be found."""

    link: Seat

    @property
    def is_placed(self) -> bool:
        """See DeviceOwner."""
        return self.link.hello is not None and not self.link.is_refused

    async def check(self, quick: bool = False) -> str | None:
        """See DeviceOwner."""
        if self.link.is_refused:
            return "its device is unlike the others"
        return await super().check(quick)


class RayFleet:
    """See Fleet."""

    def __init__(self, config: EvaluatorConfig, tell: Callable[[str], None]) -> None:
        """Raises UsageError, InfrastructureError as `survey`."""
        self._cluster = _cluster(config)
        self._cluster.users += 1
        self._early: list[str] = []
        self._tell: Callable[[str], None] = self._early.append
        self._told = ""
        self._asker = Asker(config, tell, uuid.uuid4().hex)
        self._met: set[str] = set()
        self._failures = 0
        for seat in self._cluster.seats:
            self._meet(seat)
        self.owners: list[DeviceOwner] = [self._owner(seat) for seat in self._cluster.seats]

    def _owner(self, seat: Seat) -> RayOwner:
        name = "cpu" if self._cluster.kind == "cpu" else "cuda:0"
        return RayOwner(
            Device(f"{seat.name}/{name}", "", self._cluster.reference.label), name, seat, self._asker
        )

    def _meet(self, seat: Seat) -> None:
        """Say where a seat's actor is, and refuse a device that is unlike the others."""
        if seat.hello is None or seat.hello["incarnation"] in self._met:
            return
        self._met.add(seat.hello["incarnation"])
        where = f"{seat.name} is on {seat.hello['host']}, node {seat.hello['node'][:8]}"
        gpu = f", GPU {seat.hello['visible']}" if seat.hello["visible"] else ""
        self._tell(f"{where}{gpu}: {read_devices(seat.hello['devices'])[0].label}")
        try:
            text = mixed(self._cluster.offered(seat), self._cluster.reference)
        except PassagentError as error:
            text = str(error)
        if text:
            self._tell(text)
            seat.is_refused = True
            seat.leave()

    async def attend(self, add: Callable[[DeviceOwner], None]) -> None:
        """See Fleet: places that Ray has found meanwhile, nodes and GPUs that are new, signs of life."""
        self._tell = self._asker.tell  # not before: who opens a pool may not be ready to hear
        for line in self._early:
            self._tell(line)
        while True:
            for seat in await asyncio.to_thread(self._look):
                add(self._owner(seat))
            await asyncio.gather(
                *(self._greet(seat) for seat in self._cluster.seats if seat.hello is not None)
            )
            await asyncio.sleep(LOOK_S)

    def _look(self) -> list[Seat]:
        """The seats that are new. Says what has a place now, and what waits for one."""
        made = self._cluster.seat_more()
        self._cluster.placed()
        for line in self._cluster.failed[self._failures :]:
            self._tell(line)
        self._failures = len(self._cluster.failed)
        for seat in self._cluster.seats:
            self._meet(seat)
        waited = [time.monotonic() - seat.asked_at for seat in self._cluster.seats if seat.hello is None]
        if max(waited, default=0.0) > TOLD_AFTER_S and (waiting := self._cluster.waiting()):
            self._say(f"waiting: {waiting}")
        return made

    def _say(self, text: str) -> None:
        """Say something that was not just said."""
        if text != self._told:
            self._told = text
            self._tell(text)

    async def _greet(self, seat: Seat) -> None:
        """A sign of life; an actor that Ray has restarted says where it is now."""
        try:
            answer = await seat.call("hello", {"session": self._asker.session})
        except (Silent, Unreachable):
            return
        if seat.hello is not None:
            seat.hello = answer

    async def close(self) -> None:
        """See Fleet; with the last pool of this process the devices are given back."""
        self._cluster.users -= 1
        if not self._cluster.users:
            for key in [key for key, one in _clusters.items() if one is self._cluster]:
                del _clusters[key]
            await asyncio.to_thread(self._cluster.close)
