"""The devices of a Ray cluster (extra `passagent[ray]`): an actor for each GPU, or each node's CPU.

An actor of a GPU asks Ray for a whole one (`num_gpus=1`). Ray restarts an actor that died, but repeats no
call: RemoteOwner counts what was lost. Evaluations run in the actor's referee process, in sandboxed children,
never in the actor itself.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, UsageError
from passagent.evaluator.fleet.host import Host
from passagent.evaluator.fleet.offers import Survey, find_machine, kind_wanted, make_survey
from passagent.evaluator.fleet.remote_owner import MachineFleet, Silent, Unreachable

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
_token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
if "ray" not in sys.modules and ("RAY_AUTH_TOKEN" in os.environ or _token.is_file()):
    # `ray start` asks for a token where there is one, and Ray's clients send it only if they are set to;
    # a cluster that asks for none takes it, too
    os.environ.setdefault("RAY_AUTH_MODE", "token")
try:
    import ray
    from ray.exceptions import ActorUnavailableError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ModuleNotFoundError as missing:
    raise UsageError(f"--pool ray needs {missing.name}: pip install 'passagent[ray]'") from missing

PLACE_S = 240.0
"""Ray has so long to find a place for the first device, s."""
GATHER_S = 20.0
"""When the first has one, the others have so long, s; who is later joins the run when it comes."""


def make_host(device: str) -> Host:
    """The devices of the machine that an actor is on."""
    return Host(find_machine(device))


class DeviceActor:
    """A Host with one device, `cpu` or `cuda:0`."""

    def __init__(self, make: Callable[[str], Host], device: str) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's, of an actor without CPUs: 1
        self._host = make(device)

    async def call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a call, as Host.answer does."""
        return await self._host.answer(name, body)


class RayLink:
    """An actor; see remote_owner.Link."""

    def __init__(self, number: int, kind: str, node: str | None) -> None:
        """`node`: the one that the actor must be on; None: any with a free GPU."""
        self.name, self.node, self._kind = f"ray:{number}", node, kind
        self.incarnation: str | None = None
        self.is_wanted = False
        """It has answered, so that it is started again if it dies, and its device is used."""
        self.actor: Any = None
        self.start()

    def start(self) -> None:
        """Ask Ray for an actor."""
        how: dict[str, Any] = {"num_gpus": 1} if self._kind == "cuda" else {}
        if self.node is not None:
            how["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self.node, soft=False)
        actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, **how)(DeviceActor)
        self.actor = actor.remote(make_host, "cpu" if self._kind == "cpu" else "cuda:0")

    def leave(self) -> None:
        """Give the device back."""
        if self.actor is not None:
            ray.kill(self.actor)
        self.actor = self.incarnation = None

    def refuse(self) -> None:
        """Give the device back for good."""
        self.is_wanted = False
        self.leave()

    async def call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the actor, as Link.call says."""
        if self.actor is None:
            raise Unreachable("it has no actor now")
        try:
            answer = dict(await self.actor.call.remote(name, body))
        except ActorUnavailableError as error:
            if self.node is not None and self.node not in _live_nodes():
                self.leave()
                raise Unreachable("its node is gone") from error
            raise Silent(_last_line(error)) from error
        except RayError as error:
            self.leave()
            raise Unreachable(f"its actor died: {_last_line(error)}") from error
        self.is_wanted = True
        return answer


class Cluster:
    """The actors that this process has in a cluster, for all of its pools."""

    def __init__(self, config: EvaluatorConfig) -> None:
        """Raises InfrastructureError: no cluster, no device, or no place for one in PLACE_S."""
        self.kind, self.users = kind_wanted(config), 0
        self.links: list[RayLink] = []
        self._has_joined = not ray.is_initialized()
        if self._has_joined:
            _join(config.pool.partition("://")[2])
        try:
            self.start_actors()
            if not self.links:
                raise InfrastructureError(f"--pool {config.pool}: the cluster has no GPU")
            answers, notes = self._hear()
            if not answers:
                raise InfrastructureError(f"--pool {config.pool}: {'; '.join(notes)}")
            self.survey = make_survey(config, answers, notes)
        except BaseException:
            self.close()
            raise

    def start_actors(self) -> None:
        """Start an actor for each GPU, or node, that has none, and again where one has died.

        An actor that died before it answered could not be made, and is not tried again.
        """
        nodes = _live_nodes()
        for link in self.links:
            if link.actor is None and link.is_wanted and (link.node is None or link.node in nodes):
                link.start()
        if self.kind == "cuda":
            gpus = int(ray.cluster_resources().get("GPU", 0))  # of the whole cluster, whoever has them now
            places: list[str | None] = [None] * (gpus - len(self.links))
        else:
            places = [node for node in nodes if node not in {link.node for link in self.links}]
        for node in places:
            self.links.append(RayLink(len(self.links), self.kind, node))

    def _hear(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Wait for the actors; return each one's answer, and a line for each that has none yet."""
        waiting = {link.actor.call.remote("hello", {}): link for link in self.links}
        answers: dict[str, dict[str, Any]] = {}
        notes: list[str] = []
        until = time.monotonic() + PLACE_S
        while waiting and time.monotonic() < until:
            done, _ = ray.wait([*waiting], timeout=max(0.0, until - time.monotonic()))
            for reference in done:
                link = waiting.pop(reference)
                try:
                    answers[link.name], link.is_wanted = dict(ray.get(reference)), True
                except RayError as error:
                    link.leave()
                    notes.append(f"{link.name}: no actor: {_last_line(error)}")
            if answers:
                until = min(until, time.monotonic() + GATHER_S)
        what = "a GPU" if self.kind == "cuda" else "a node"
        notes += [f"waiting: {link.name}: Ray has no place for {what} yet" for link in waiting.values()]
        return answers, notes

    def close(self) -> None:
        """Give all devices back, and leave a cluster that was joined for this."""
        _cluster.cache_clear()
        for link in self.links:
            link.leave()
        if self._has_joined:
            ray.shutdown()


@functools.cache
def _cluster(pool: str, kind: str) -> Cluster:
    return Cluster(EvaluatorConfig(pool=pool, device=kind))


def survey(config: EvaluatorConfig) -> Survey:
    """The reference device and what is there. Raises UsageError, InfrastructureError."""
    return _cluster(config.pool, kind_wanted(config)).survey


class RayFleet(MachineFleet):
    """The actors of a Ray cluster, as a Fleet."""

    def __init__(self, config: EvaluatorConfig, notify: Callable[[str], None]) -> None:
        """Raises UsageError, InfrastructureError as `survey`."""
        self.cluster = _cluster(config.pool, kind_wanted(config))
        self.cluster.users += 1
        super().__init__(config, notify, self.cluster.links, self.cluster.survey)

    async def find_links(self) -> None:
        """Start actors on nodes and GPUs that are new."""
        await asyncio.to_thread(self.cluster.start_actors)

    async def close(self) -> None:
        """Close the pool; with the last one of this process the devices are given back."""
        self.cluster.users -= 1
        if not self.cluster.users:
            await asyncio.to_thread(self.cluster.close)


def _join(address: str) -> None:
    """Join the cluster at `address`; of none, start Ray on this machine. Raises InfrastructureError."""
    options = {} if address else {"include_dashboard": False}
    try:
        ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **options)
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise InfrastructureError(f"--pool ray://{address}: {_last_line(error)}") from error


def _live_nodes() -> list[str]:
    """The ids of the cluster's nodes."""
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
