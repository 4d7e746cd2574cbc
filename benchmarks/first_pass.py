"""Today's first pass beside the best one that an earlier checkout's search found, on the same device.

    git worktree add ../earlier 31c4dd0
    python benchmarks/first_pass.py TASKS --earlier ../earlier --device cuda:0,cuda:1 --work DIR --until 120

For each task, with no language model, the earlier checkout searches for `--iters` episodes, as its own
defaults have it; `--each` searches share a device at a time, and none begins after `--until` seconds. When
all are over, today's evaluator judges both passes in turn (`passagent bench`), in each of `--dispatch`, with
a process for each device. What is done is kept in DIR: the same call again goes on.

Raw results go to benchmarks/results/first-pass-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from evaluator_repeatability import ROOT, keep

Row = dict[str, Any]
SIDES = {"first": "expert", "earlier": "pass_dir"}
"""As `bench` calls them."""


def passagent(tree: Path, device: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`passagent WORDS` of a checkout, which sees no other device."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])}
    if device.startswith("cuda:"):
        environment["CUDA_VISIBLE_DEVICES"] = device.removeprefix("cuda:")
    command = [sys.executable, "-m", "passagent", *words]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def search(tree: Path, task: Path, device: str, iters: int, work: Path) -> None:
    """A search of the checkout: its best pass in `work/passes`, what it came to in `work/searches`."""
    runs, out = work / "runs" / task.name, work / "passes" / task.name
    kind, begun = device.partition(":")[0], time.monotonic()
    words = ["--device", kind, "--iters", str(iters), "--runs-dir", str(runs), "--json"]
    done = passagent(tree, device, "run", str(task), *words)
    if done.returncode:
        print(f"{task.name}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}", flush=True)
        return
    run = json.loads(done.stdout)
    best = run["best"]
    row = {"seconds": round(time.monotonic() - begun, 1), "episodes": run["episodes"]}
    row |= {"evaluations": run["evaluations"], "as_score": best and best["as_score"]}
    if best:
        passagent(tree, device, "best", run["run"], "--out", str(out), "--runs-dir", str(runs))
        row["note"] = best["note"]
    (work / "searches" / f"{task.name}.json").write_text(json.dumps(row))
    print(f"{task.name}: earlier {row}", flush=True)


def searches(tree: Path, tasks: list[Path], devices: list[str], iters: int, work: Path, until: float) -> None:
    """One search after another on each of `devices`; none begins after `until` (of time.monotonic)."""
    waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)

    def run(device: str) -> None:
        while time.monotonic() < until:
            try:
                search(tree, waiting.get_nowait(), device, iters, work)
            except queue.Empty:
                return

    threads = [threading.Thread(target=run, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def judge(tasks: list[Path], devices: list[str], dispatch: str, work: Path) -> list[Row]:
    """Both passes of each task in turn, by today's evaluator: the rows of `bench`."""
    places = [work / dispatch / str(shard) for shard in range(len(devices))]

    def bench(shard: int) -> None:
        kind = devices[shard].partition(":")[0]
        words = [word for compiler in SIDES.values() for word in ("--compiler", compiler)]
        words += ["--pass-dir", str(work / "passes"), "--device", kind, "--dispatch", dispatch]
        words += ["--shard", f"{shard}/{len(devices)}", "--out", str(places[shard])]
        done = passagent(ROOT, devices[shard], "bench", *map(str, tasks), *words)
        if done.returncode:
            print(done.stderr[-500:], flush=True)

    threads = [threading.Thread(target=bench, args=(shard,)) for shard in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = [place / "results.jsonl" for place in places]
    return [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]


def compared(rows: list[Row]) -> dict[str, Row]:
    """Of each task and side: status, AS, the geometric mean of speedups, and how many subgraphs are right."""
    found: dict[str, Row] = {}
    names = {compiler: side for side, compiler in SIDES.items()}
    for row in rows:
        result = row["evaluation"]
        one = {key: result[key] for key in ("status", "as_score", "gmean_speedup")}
        one["right"] = sum(graph["status"] == "ok" for graph in result["graphs"])
        found.setdefault(row["task"], {})[names[row["compiler"]]] = one | {"of": len(result["graphs"])}
    return found


def summary(dispatch: str, found: dict[str, Row]) -> str:
    """The ratios of the tasks whose passes both have an AS, sorted, and their median."""
    both = [one for one in found.values() if all(one.get(side, {}).get("as_score") for side in SIDES)]
    ratios = sorted(one["first"]["as_score"] / one["earlier"]["as_score"] for one in both)
    if not ratios:
        return f"{dispatch}: nothing to compare"
    listed = " ".join(f"{ratio:.3f}" for ratio in ratios)
    return f"{dispatch}: first / earlier, median {statistics.median(ratios):.3f} of {len(ratios)}: {listed}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--earlier", type=Path, required=True, help="a checkout")
    parser.add_argument("--iters", type=int, default=10)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0,cuda:1")
    parser.add_argument("--each", type=int, default=1, help="searches that share a device")
    parser.add_argument("--dispatch", default="graph,direct")
    parser.add_argument("--until", type=float, default=1e9, help="no search begins after so many seconds")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    until = time.monotonic() + args.until
    work, devices = args.work.resolve(), args.device.split(",")
    (work / "searches").mkdir(parents=True, exist_ok=True)
    tasks = [task.resolve() for task in args.tasks]

    def searched(task: Path) -> Path:
        return work / "searches" / f"{task.name}.json"

    missing = [task for task in tasks if not searched(task).exists()]
    searches(args.earlier.resolve(), missing, devices * args.each, args.iters, work, until)
    ended = [task for task in tasks if searched(task).exists()]
    data: Row = {"tasks": {task.name: {"search": json.loads(searched(task).read_text())} for task in ended}}
    data["summary"] = []
    for dispatch in args.dispatch.split(","):
        rows = judge(ended, devices, dispatch, work)
        found = compared(rows)
        data["identity"] = rows[0]["identity"] if rows else None
        for task, one in found.items():
            data["tasks"][task][dispatch] = one
        data["summary"].append(summary(dispatch, found))
        print(data["summary"][-1], flush=True)
        keep("first-pass", args.device.partition(":")[0], args.out, data)


if __name__ == "__main__":
    main()
