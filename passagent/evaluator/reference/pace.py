"""At which pace of the machine a speedup is stated.

How fast a host is changes by tens of per cents, on a virtual machine from one minute to the next. Where eager
waits for the host and a candidate for the GPU, their ratio goes with it. So the first measurement of a
subgraph on a machine keeps what eager takes, and later ones are stated for the pace at which it takes as long
(estimate.Line). Kept in the user's own cache, where no candidate can write.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from passagent.sandbox import cache
from passagent.sandbox.environment import device_name
from passagent.tasks.reader import Subgraph


def kept_ns(subgraph: Subgraph, device: str, dispatch: str) -> float | None:
    """Eager's time end to end, ns; None before there was a measurement, and on the CPU, where both sides
    wait for the same.
    """
    if device == "cpu":
        return None
    ns = cache.kept(_path(subgraph, device, dispatch), lambda data: float(data["eager_ns"]))
    return ns if ns is not None and ns > 0 else None


def keep(subgraph: Subgraph, device: str, dispatch: str, eager_ns: float) -> float | None:
    """Keep this, if the disk can take it and there is none yet. What counts from now on."""
    if device == "cpu":
        return None
    ns = kept_ns(subgraph, device, dispatch)
    if ns is not None:
        return ns
    cache.keep(_path(subgraph, device, dispatch), {"eager_ns": eager_ns})
    return eager_ns


def _path(subgraph: Subgraph, device: str, dispatch: str) -> Path:
    machine = [platform.node(), device_name("cpu"), device_name(device), str(torch.__version__)]
    return cache.kept_file("pace", [*machine, dispatch, subgraph.source, repr(subgraph.inputs)])
