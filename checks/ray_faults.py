"""Programs on a Ray cluster of Ray's own harness, for test_cluster.py: run by an interpreter that has Ray.

`nodes TASK RUNS_DIR ITERS`: a search on three nodes, of which one is removed at 20 judged candidates and one
is added at 30. `killed TASK RUNS_DIR ITERS`: the search is killed at 20, and gone on with. `gpus`: four
pretended GPUs, and five who want one. Each prints what it saw as JSON, last.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
sys.path.insert(0, str(TESTS))

from pool_search import done  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

SMALL = {"num_cpus": 1, "object_store_memory": 100 << 20}
PATIENCE_S = 240.0


def cluster(nodes: int, **head: Any) -> tuple[Cluster, list[Any]]:
    made = Cluster(initialize_head=True, head_node_args=SMALL | {"include_dashboard": False} | head)
    return made, [made.add_node(**SMALL) for _ in range(nodes - 1)]


def search(address: str, task: str, runs_dir: str, iters: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(TESTS / "pool_search.py"),
        task,
        runs_dir,
        iters,
        "4",
        f"ray://{address}",
    ]
    log = open(Path(runs_dir).with_suffix(".log"), "a")  # noqa: SIM115
    return subprocess.Popen(command, stdout=log, stderr=log, text=True)


def wait(condition: Any, what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def judged(runs_dir: str, process: subprocess.Popen[str], count: int) -> None:
    wait(
        lambda: done(Path(runs_dir)) >= count or process.poll() is not None,
        f"{count} candidates are not judged",
    )
    assert process.poll() is None, Path(runs_dir).with_suffix(".log").read_text()[-3000:]


def with_nodes(task: str, runs_dir: str, iters: str) -> dict[str, Any]:
    made, others = cluster(3)
    process = search(made.address, task, runs_dir, iters)
    judged(runs_dir, process, 20)
    made.remove_node(others[0], allow_graceful=False)
    judged(runs_dir, process, 30)
    made.add_node(**SMALL)
    process.wait(PATIENCE_S)
    made.shutdown()
    return {"code": process.returncode}


def actors() -> list[int]:
    """Processes of actors, by what Ray calls them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes()
                ours = f"RAY_GCS={os.getpid()}".encode() in (entry / "environ").read_bytes()
            except OSError:
                continue
            if ours and b"ray::DeviceActor" in title:
                found.append(int(entry.name))
    return found


def killed(task: str, runs_dir: str, iters: str) -> dict[str, Any]:
    os.environ["RAY_GCS"] = str(os.getpid())  # marks what is started below
    made, _ = cluster(3)
    process = search(made.address, task, runs_dir, iters)
    judged(runs_dir, process, 20)
    before = len(actors())
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed_at = time.monotonic()
    wait(lambda: not actors() or time.monotonic() - killed_at > 60, "")
    left = actors()
    process = search(made.address, task, runs_dir, iters)
    process.wait(PATIENCE_S)
    made.shutdown()
    return {"code": process.returncode, "before": before, "left": left}


def gpus() -> dict[str, Any]:
    import stub_worker

    from passagent.config import EvaluatorConfig
    from passagent.evaluator.fleet import ray_fleet, remote_owner
    from passagent.evaluator.fleet.opening import open_pool
    from passagent.evaluator.fleet.remote_owner import Silent, called

    made, _ = cluster(1, num_gpus=4)
    ray_fleet.make_host = stub_worker.make_host
    remote_owner.ANSWER_S = 3.0

    async def work() -> dict[str, Any]:
        pool = open_pool(EvaluatorConfig(pool=f"ray://{made.address}", device="cuda"), lambda _: None)
        fleet: Any = pool._fleet
        links = fleet.cluster.links
        answers = [await called(link, "hello", {}) for link in links]
        fifth = ray_fleet.RayLink(4, "cuda", None)
        with suppress(Silent):
            await called(fifth, "hello", {})
        waited = not fifth.is_wanted
        links[0].leave()
        while not fifth.is_wanted:
            with suppress(Silent):
                answer = await called(fifth, "hello", {})
        fifth.leave()
        await pool.close()
        four = sorted(one["host"] for one in answers)
        return {"owners": len(fleet.owners), "four": four, "fifth_waited": waited, "fifth": answer["host"]}

    found = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    made.shutdown()
    return found


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    print(json.dumps({"nodes": with_nodes, "killed": killed, "gpus": gpus}[what](*rest)))
