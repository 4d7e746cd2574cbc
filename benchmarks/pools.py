"""What the pools cost: efficiency on jobs of 2 s over four slots, and the overhead of an evaluation.

    python benchmarks/pools.py                             # local and HTTP
    .envs/cluster/bin/python benchmarks/pools.py           # Ray, too (checks/environments.py makes it)

The referees sleep (tests/stub_worker.py); queue, contents, calls and the pool are the real thing. HTTP: four
worker processes on 127.0.0.1. Ray: one node of Ray's own harness with four pretended GPUs. Efficiency is the
time that the jobs take divided by four, over the time until all are done; overhead is the time of an
evaluation whose referee answers at once, one after the other, of which each has a candidate of its own.

Raw results go to benchmarks/results/pools-cpu-<date>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep
from search_overhead import ROOT

TESTS = ROOT / "tests"
sys.path.insert(0, str(TESTS))
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])

import stub_worker  # noqa: E402
import tiny_search  # noqa: E402

from passagent.config import EvaluatorConfig  # noqa: E402
from passagent.evaluator.fleet.http_fleet import TOKEN_FILE  # noqa: E402
from passagent.evaluator.fleet.opening import open_pool  # noqa: E402
from passagent.evaluator.hardware.devices import Device  # noqa: E402
from passagent.evaluator.result import Candidate  # noqa: E402
from passagent.evaluator.service import pool  # noqa: E402

SLOTS = 4


@contextmanager
def local(place: Path, seconds: float) -> Iterator[Callable[[], pool.EvaluatorPool]]:
    """This process's own pool."""
    pool._owner = lambda device, config, cores, ahead, tell: stub_worker.StubOwner(device, config, cores)
    devices = [Device("cpu", f"pools-{os.getpid()}-{number}", "stub") for number in range(SLOTS)]
    yield lambda: pool.EvaluatorPool(EvaluatorConfig(), devices)


@contextmanager
def http(place: Path, seconds: float) -> Iterator[Callable[[], pool.EvaluatorPool]]:
    """Four workers."""
    places = [place / f"worker{number}-{seconds}" for number in range(SLOTS)]
    for one in places:
        one.mkdir()
    workers = [stub_worker.StubWorker(one, seconds=seconds) for one in places]
    os.environ[TOKEN_FILE] = str(places[0] / "token")
    try:
        names = ",".join(one.address for one in workers)
        yield lambda: open_pool(EvaluatorConfig(pool=names))
    finally:
        for one in workers:
            one.kill()


@contextmanager
def on_ray(place: Path, seconds: float) -> Iterator[Callable[[], pool.EvaluatorPool]]:
    """Four actors."""
    from ray.cluster_utils import Cluster

    from passagent.evaluator.fleet import ray_fleet

    ray_fleet.make_host = stub_worker.make_host
    head = {"num_cpus": 1, "num_gpus": SLOTS, "include_dashboard": False, "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield lambda: open_pool(EvaluatorConfig(pool=f"ray://{made.address}", device="cuda"))
    finally:
        made.shutdown()


async def efficiency(evaluators: pool.EvaluatorPool, task: Path, jobs: int, seconds: float) -> float:
    """Ideal time over the time that it took, once every slot has had a job."""
    await asyncio.gather(*(evaluators.evaluate(task, one) for one in candidates("warm", SLOTS)))
    begun = time.perf_counter()
    await asyncio.gather(*(evaluators.evaluate(task, one) for one in candidates("job", jobs)))
    return jobs * seconds / SLOTS / (time.perf_counter() - begun)


async def overhead_ms(evaluators: pool.EvaluatorPool, task: Path, count: int) -> dict[str, float]:
    """Of an evaluation that takes no time, ms."""
    await asyncio.gather(*(evaluators.evaluate(task, one) for one in candidates("warm", SLOTS)))
    taken = []
    for one in candidates("quick", count):
        begun = time.perf_counter()
        await evaluators.evaluate(task, one)
        taken.append(1e3 * (time.perf_counter() - begun))
    return {"median": statistics.median(taken), "p90": statistics.quantiles(taken, n=10)[-1]}


def candidates(name: str, count: int) -> list[Candidate]:
    return [Candidate(tiny_search.candidate_files(f"{name} {number}")) for number in range(count)]


async def measured(
    opened: Callable[[], pool.EvaluatorPool], work: Callable[[pool.EvaluatorPool], Any]
) -> Any:
    """What work on a pool gives."""
    evaluators = opened()
    try:
        return await work(evaluators)
    finally:
        await evaluators.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--quick", type=int, default=200, help="evaluations that take no time")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kinds: dict[str, Any] = {"local": local, "http": http}
    kinds |= {"ray": on_ray} if util.find_spec("ray") else {}
    versions = {name: metadata.version(name) for name in ("torch", *(("ray",) if "ray" in kinds else ()))}
    data: dict[str, Any] = {
        "arguments": {"jobs": args.jobs, "seconds": args.seconds, "quick": args.quick, "slots": SLOTS},
        "machine": {
            "cores": os.cpu_count(),
            "load_1m": os.getloadavg()[0],
            "python": platform.python_version(),
        },
        "versions": versions,
        "pools": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        os.environ |= {"STUB_LOG": str(place / "log"), "XDG_RUNTIME_DIR": scratch}
        task = tiny_search.write_task(place / "task")
        for name, kind in kinds.items():
            found: dict[str, Any] = {}
            os.environ["STUB_SECONDS"] = str(args.seconds)
            with kind(place, args.seconds) as opened:
                work = lambda one: efficiency(one, task, args.jobs, args.seconds)  # noqa: E731
                found["efficiency"] = asyncio.run(measured(opened, work))
            os.environ["STUB_SECONDS"] = "0"
            with kind(place, 0.0) as opened:
                found["overhead_ms"] = asyncio.run(
                    measured(opened, lambda one: overhead_ms(one, task, args.quick))
                )
            data["pools"][name] = found
            print(
                f"{name:6} efficiency {found['efficiency']:.3f}, overhead {found['overhead_ms']}", flush=True
            )
    print(keep("pools", "cpu", args.out, data))


if __name__ == "__main__":
    main()
