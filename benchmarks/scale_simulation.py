"""What a search needs beyond one machine, by a discrete-event simulation that is fed with measured times.

    python benchmarks/scale_simulation.py

An agent thinks (a model call), has its candidate judged, writes it down, and begins again. A device has
owners, each of which judges one candidate at a time: host work (recording, builds, the referee's own), steps
that share the device (loading, checks) and timing, which has it alone for half a second at a time,
first come, first served (passagent/evaluator/hardware/leases.py). The store is one server: a controller's own
work for an iteration, as measured. Host cores are not modelled. What it is fed with:

- stages of the evaluations in evaluator-throughput-cuda-*.json.gz, on an H100
- iterations a second of one controller and of two on one file: search-overhead-cpu-2026-11-23.json
- bytes of a node: store-size-cpu-2026-11-29.json

A model's seconds are not measured here: `--think` are assumed, log-normally spread (sigma 0.5). The check is
a search that was really run with a model of 20 s and evaluations of 3 s (search-busy-2026-11-21.json).
Raw results go to benchmarks/results/scale-simulation-<date>.json; docs/cluster.md says what follows.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import itertools
import json
import random
import statistics
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluator_repeatability import ROOT, keep

from passagent.sandbox.environment import describe

RESULTS = ROOT / "benchmarks/results"
SLICE_S = 0.5
HOURS = 4.0
"""Simulated time of each setting, after half an hour that does not count."""
ENOUGH = 0.9
"""Of the steps an hour that agents make if no device is ever waited for: so many agents share a device."""
SHARED = ("checks", "audit", "float64")
"""What workers do on the device beside timing. `checks` holds the referee's comparisons, too, which need no
device."""
NETWORK_OVERHEAD = 2048
"""Bytes of a request and its answer beside what they carry."""

Process = Generator[Callable[[Callable[[], None]], None], None, None]


class Clock:
    """Simulated time, and the processes in it. A process yields what it waits for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def start(self, process: Process) -> None:
        """Go on with a process until it waits, and when that is over."""
        wait = next(process, None)
        if wait is not None:
            wait(lambda: self.start(process))

    def sleep(self, seconds: float) -> Callable[[Callable[[], None]], None]:
        """Wait for so long."""
        return lambda then: heapq.heappush(self._events, (self.now + seconds, next(self._order), then))

    def run(self, until: float) -> None:
        """Let it be `until`."""
        while self._events and self._events[0][0] <= until:
            self.now, _, then = heapq.heappop(self._events)
            then()
        self.now = until


@dataclass
class Lease:
    """A device, or anything that is had alone or shared, first come, first served."""

    clock: Clock
    queue: deque[tuple[bool, Callable[[], None]]] = field(default_factory=deque)
    sharing: int = 0
    is_alone: bool = False
    alone_s: float = 0.0
    _since: float = 0.0

    def take(self, alone: bool) -> Callable[[Callable[[], None]], None]:
        """Wait for it."""

        def wait(then: Callable[[], None]) -> None:
            self.queue.append((alone, then))
            self._next()

        return wait

    def give(self, alone: bool) -> None:
        """It is over."""
        if alone:
            self.is_alone, self.alone_s = False, self.alone_s + self.clock.now - self._since
        else:
            self.sharing -= 1
        self._next()

    def _next(self) -> None:
        while self.queue and not self.is_alone and not (self.queue[0][0] and self.sharing):
            alone, then = self.queue.popleft()
            if alone:
                self.is_alone, self._since = True, self.clock.now
            else:
                self.sharing += 1
            self.clock.sleep(0.0)(then)


@dataclass(frozen=True)
class Stages:
    """Seconds of an evaluation."""

    host: float
    shared: float
    timing: float


@dataclass
class Cluster:
    """Devices, their owners, and the store."""

    clock: Clock
    devices: list[Lease]
    free: deque[int]
    """The devices of owners that wait for work."""
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    steps: int = 0
    owned_s: float = 0.0

    def owner(self) -> Callable[[Callable[[], None]], None]:
        """Wait until an owner is free."""

        def wait(then: Callable[[], None]) -> None:
            self.waiting.append(then)
            self.match()

        return wait

    def match(self) -> None:
        """Give work to the owners that are free."""
        for _ in range(min(len(self.waiting), len(self.free))):
            self.clock.sleep(0.0)(self.waiting.popleft())
            self.handed.append(self.free.popleft())

    handed: deque[int] = field(default_factory=deque)

    def judge(self, stages: Stages) -> Process:
        """An evaluation by an owner: half the host's work before, half after the device."""
        yield self.owner()
        number = self.handed.popleft()
        device, begun = self.devices[number], self.clock.now
        yield self.clock.sleep(stages.host)
        yield device.take(alone=False)
        yield self.clock.sleep(stages.shared)
        device.give(alone=False)
        left = stages.timing
        while left > 0:
            part = min(SLICE_S, left)
            yield device.take(alone=True)
            yield self.clock.sleep(part)
            device.give(alone=True)
            left -= part
        self.owned_s += self.clock.now - begun
        self.free.append(number)
        self.match()


def agent(
    cluster: Cluster, store: Lease, write_s: float, think: Iterator[float], of: Iterator[Stages]
) -> Process:
    """Thinks, is judged, writes, for ever."""
    clock = cluster.clock
    while True:
        yield clock.sleep(next(think))
        yield from cluster.judge(next(of))
        yield store.take(alone=True)
        yield clock.sleep(write_s)
        store.give(alone=True)
        cluster.steps += 1


def simulate(
    agents: int,
    devices: int,
    owners: int,
    think_s: float,
    measured: list[Stages],
    write_s: float = 0.0,
    spread: float = 0.5,
    seconds: float = 3600 * HOURS,
    warm_s: float = 1800.0,
    seed: int = 0,
) -> dict[str, float]:
    """Steps an hour, and how busy timing, owners and the store are, of agents with so many devices."""
    chance = random.Random(seed)
    clock = Clock()
    numbers = [device for _ in range(owners) for device in range(devices)]
    cluster = Cluster(clock, [Lease(clock) for _ in range(devices)], deque(numbers))
    store = Lease(clock)

    def think() -> Iterator[float]:
        while True:
            yield think_s * chance.lognormvariate(-(spread**2) / 2, spread) if spread else think_s

    def evaluations() -> Iterator[Stages]:
        while True:
            yield chance.choice(measured)

    for _ in range(agents):
        clock.start(agent(cluster, store, write_s, think(), evaluations()))
    clock.run(warm_s)
    before = cluster.steps, sum(one.alone_s for one in cluster.devices), cluster.owned_s, store.alone_s
    clock.run(warm_s + seconds)
    after = cluster.steps, sum(one.alone_s for one in cluster.devices), cluster.owned_s, store.alone_s
    steps, timing, owned, written = (now - then for now, then in zip(after, before, strict=True))
    return {
        "steps_an_hour": steps * 3600 / seconds,
        "timing_busy": timing / seconds / devices,
        "owners_busy": owned / seconds / len(numbers),
        "store_busy": written / seconds,
    }


def most_agents(owners: int, think_s: float, measured: list[Stages]) -> dict[str, Any]:
    """How many agents share a device until a step takes longer by a tenth than without waiting."""
    alone_s = think_s + statistics.fmean(one.host + one.shared + one.timing for one in measured)
    agents, last = 0, dict[str, float]()
    while True:
        found = simulate(agents + 1, 1, owners, think_s, measured)
        if agents and found["steps_an_hour"] < ENOUGH * (agents + 1) * 3600 / alone_s:
            return {"owners": owners, "think_s": think_s, "agents": agents, **last}
        agents, last = agents + 1, found


def stages() -> list[Stages]:
    """Of the evaluations that were measured, a task's first ones among them."""
    found = []
    for path in sorted(RESULTS.glob("evaluator-throughput-cuda-*.json.gz")):
        with gzip.open(path, "rt") as file:
            rows = [row["ours"] for row in json.load(file)["candidates"]]
        for row in rows:
            if row["status"] == "ok":
                timing = row["spent"].get("timing", 0.0)
                shared = sum(row["spent"].get(key, 0.0) for key in SHARED)
                found.append(Stages(max(0.0, row["seconds"] - shared - timing), shared, timing))
    return found


def read(name: str) -> Any:
    """A raw result."""
    return json.loads((RESULTS / name).read_text())


def controller() -> dict[str, float]:
    """Iterations a second of one process, and of two on one file, at 100,000 nodes: medians."""
    window = 100
    sizes = read("search-overhead-cpu-2026-11-23.json")["sizes"]["100000"]
    one = [window / block["wall_s"] for run in sizes for block in run["blocks"]]
    two = [
        window / block for run in sizes for block in run.get("together", {}).get("2", {}).get("blocks", [])
    ]
    return {"one": statistics.median(one), "two": statistics.median(two)}


def campaign(steps: int, measured: list[Stages], write_s: float, args: argparse.Namespace) -> dict[str, Any]:
    """What so many steps cost: device hours at the pace of a device that is never idle, bytes."""
    node_bytes = read("store-size-cpu-2026-11-29.json")["bytes_a_node"]
    overhead = read("search-overhead-cpu-2026-11-23.json")["disk"]
    files = overhead["files"] / overhead["nodes"]
    rates = {n: simulate(50, 1, n, 1.0, measured)["steps_an_hour"] for n in (1, 2, 4)}
    return {
        "steps": steps,
        "device_hours": {f"{n} owners": steps / rate for n, rate in rates.items()},
        "steps_an_hour_of_a_device": rates,
        "timing_hours": steps * statistics.fmean(one.timing for one in measured) / 3600,
        "controller_hours": steps * write_s / 3600,
        "disk_gb": steps * (node_bytes + files) / 1e9,
        "network_gb": steps * (node_bytes + 3 * files + NETWORK_OVERHEAD) / 1e9,
        "agents_for_a_week": {
            str(think): steps / (168 * 3600) * (think + statistics.fmean(map(whole, measured)))
            for think in args.think
        },
    }


def whole(one: Stages) -> float:
    """Seconds of an evaluation."""
    return one.host + one.shared + one.timing


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--think", type=float, nargs="*", default=[5.0, 20.0, 60.0], help="of a model call, s"
    )
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    measured, rates = stages(), controller()
    write_s = 1 / rates["one"]
    busy = read("search-busy-2026-11-21.json")["busy"]
    check = simulate(8, 1, 1, 20.0, [Stages(0, 0, 3.0)], spread=0.0, warm_s=0.0, seconds=busy["wall_s"])
    print(f"a search that was run: device busy {busy['busy']:.3f}, simulated {check['timing_busy']:.3f}")
    mean = {
        key: statistics.fmean(getattr(one, key) for one in measured) for key in ("host", "shared", "timing")
    }
    print(f"{len(measured)} evaluations: " + ", ".join(f"{key} {s:.2f} s" for key, s in mean.items()))
    agents = [most_agents(owners, think, measured) for think in args.think for owners in (1, 2, 4)]
    for row in agents:
        print(
            f"model {row['think_s']:4.0f} s, {row['owners']} owners: {row['agents']:3} agents a device, "
            f"{row['steps_an_hour']:6.0f} steps an hour, timing {row['timing_busy']:.0%} of the time"
        )
    store = []
    for count in (1000, 2000, 4000, 6000):
        found = simulate(count, count, 1, 20.0, measured, write_s, seconds=240, warm_s=120)
        store.append({"agents": count, **found})
        steps, share = found["steps_an_hour"], found["store_busy"]
        print(f"{count} agents, a device each: {steps:8.0f} steps an hour, store {share:.0%} busy")
    cost = campaign(args.tasks * args.trials * args.steps, measured, write_s, args)
    print(json.dumps(cost, indent=1))
    data = {
        "environment": describe("cpu", 1),
        "fed with": {"evaluations": len(measured), "mean_s": mean, "iterations_a_second": rates},
        "check": {"measured": busy["busy"], "simulated": check["timing_busy"]},
        "agents a device": agents,
        "store": store,
        "campaign": cost,
    }
    print(keep("scale", "simulation", args.out, data))


if __name__ == "__main__":
    main()
