"""Actors of a Ray cluster (extra `passagent[ray]`): a seat is the right to one device, and its actor.

An actor of a GPU asks Ray for a whole one (`num_gpus=1`), one of a CPU for a node of its own. Ray restarts an
actor that died, but repeats no call: what was lost is counted here. Evaluations run in the actor's referee
process, in sandboxed children, never in the actor itself.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from passagent.cluster.host import Host
from passagent.cluster.machine_facts import find_machine
from passagent.cluster.remote_owner import Silent, Unreachable
from passagent.errors import InfrastructureError, PassagentError, UsageError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
_token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
if "ray" not in sys.modules and ("RAY_AUTH_TOKEN" in os.environ or _token.is_file()):
    # `ray start` asks for a token where there is one, and Ray's clients send it only if they are told to;
    # a cluster that asks for none takes it, too
    os.environ.setdefault("RAY_AUTH_MODE", "token")
try:
    import ray
    from ray.exceptions import ActorUnavailableError, RayActorError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ModuleNotFoundError as missing:
    raise UsageError(f"--pool ray needs {missing.name}: pip install 'passagent[ray]'") from missing

ANSWER_S = 10.0
"""For an answer, beyond what the call itself may take, s."""

MakeHost = Callable[[str], Host]
"""Of a device, `cpu` or `cuda:0`: what an actor is made of."""


def make_host(device: str) -> Host:
    """The devices of the machine that an actor is on."""
    return Host(find_machine(device))


class DeviceActor:
    """A Host with one device."""

    def __init__(self, make: MakeHost, device: str) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's, of an actor without CPUs: 1
        self._host = make(device)
        self._where = {
            "node": ray.get_runtime_context().get_node_id(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            "host": platform.node(),
            "pid": os.getpid(),
        }

    async def call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """See Host.answer; `hello` says where it is, too."""
        found = await self._host.answer(name, body)
        return found | self._where if name == "hello" else found


def connect(address: str | None) -> bool:
    """Join the cluster at `address`, or start Ray on this machine; False if this process had joined before.

    Raises InfrastructureError.
    """
    if ray.is_initialized():
        return False
    own = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **own)
    except (RayError, ConnectionError, RuntimeError, ValueError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InfrastructureError(f"--pool ray://{address or ''}: {line[:300]}") from error
    return True


def live_nodes() -> list[str]:
    """The ids of the cluster's nodes."""
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def gpus() -> int:
    """Of the whole cluster, whoever has them now."""
    return int(ray.cluster_resources().get("GPU", 0))


def free_gpus() -> float:
    """Those of them that nobody has."""
    return float(ray.available_resources().get("GPU", 0))


def disconnect() -> None:
    """Leave the cluster, or stop the Ray that `connect` started."""
    ray.shutdown()


class Seat:
    """See remote_owner.Link."""

    def __init__(self, number: int, kind: str, make: MakeHost) -> None:
        self.name, self._kind, self._make = f"ray:{number}", kind, make
        self.incarnation: str | None = None
        self.hello: dict[str, Any] | None = None
        """What the actor says of its machine; None: it has no place yet."""
        self.node: str | None = None
        """Of a CPU: the node that it is to be on."""
        self.asked_at = time.monotonic()
        self.is_refused = False
        """Its device is unlike the others'."""
        self._actor: Any = None
        self._greeting: Any = None

    def take(self, node: str | None) -> None:
        """Ask Ray for an actor: on a node, or where a GPU is free."""
        self.node, self.hello, self.incarnation, self.asked_at = node, None, None, time.monotonic()
        how: dict[str, Any] = {"num_gpus": 1} if self._kind == "cuda" else {}
        if node is not None:
            how["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        made = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, **how)(DeviceActor)
        self._actor = made.remote(self._make, "cpu" if self._kind == "cpu" else "cuda:0")
        self._greeting = self._actor.call.remote("hello", {})

    @property
    def has_actor(self) -> bool:
        """Whether one was asked for and has not died for good."""
        return self._actor is not None

    def look(self, wait_s: float = 0.0) -> bool:
        """Whether it has a place now. Raises PassagentError for an actor that cannot be made."""
        if self.hello is None and self._greeting is not None:
            done, _ = ray.wait([self._greeting], timeout=wait_s)
            if done:
                greeting, self._greeting = self._greeting, None
                try:
                    self.hello = ray.get(greeting)
                except RayActorError as error:
                    self.leave()
                    raise PassagentError(f"{self.name}: no actor: {_last_line(error)}") from error
        return self.hello is not None

    def leave(self) -> None:
        """Give the device back."""
        if self._actor is not None:
            ray.kill(self._actor)
        self._actor = self._greeting = self.hello = self.incarnation = None

    async def call(self, name: str, body: dict[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
        """See Link."""
        if self._actor is None:
            raise Unreachable("it has no node now")
        try:
            async with asyncio.timeout(wait_s + ANSWER_S):
                return dict(await self._actor.call.remote(name, body))
        except TimeoutError as error:
            raise Silent(f"no answer within {wait_s + ANSWER_S:.0f} s") from error
        except ActorUnavailableError as error:
            if self.node is not None and self.node not in live_nodes():
                self.leave()
                raise Unreachable("its node is gone") from error
            raise Silent(_last_line(error)) from error
        except RayError as error:
            self.leave()
            raise Unreachable(f"its actor died: {_last_line(error)}") from error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
