"""Today's first pass beside the best one that an earlier checkout's search found, on the same device.

    git worktree add ../earlier 31c4dd0
    python benchmarks/first_pass.py TASKS --earlier ../earlier --device cuda:0,cuda:1 --budget 500 --out FILE

For each task, with no language model: a search of `--iters` episodes by the earlier checkout, as its own
defaults have it; and today's first candidate, one evaluation. Then today's evaluator judges both passes, in
fresh processes, in each of `--dispatch`. `--each` searches share a device at a time, evaluations too; they
wait for one another's measurements by the lock of their own checkout, so the two halves never overlap.
Searches begin until `--share` of the budget is spent.

Raw results go to benchmarks/results/first-pass-<device>-<date>.json: of each task both AS, the geometric
mean of speedups, the status, and what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluator_repeatability import ROOT, keep

from passagent.confine.environment import describe

Row = dict[str, Any]
SIDES = ("first", "earlier")
ONE_S = 300.0
"""That a search or an evaluation may take."""


def passagent(tree: Path, device: str, *words: str) -> Row:
    """`passagent WORDS --json` of a checkout, as data, or `{"failed": its last line}`."""
    path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    visible = {"CUDA_VISIBLE_DEVICES": device.removeprefix("cuda:")} if device.startswith("cuda:") else {}
    command = [sys.executable, "-m", "passagent", *words, "--json"]
    environment = os.environ | {"PYTHONPATH": path} | visible
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=ONE_S,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {ONE_S:.0f} s"}
    try:
        return json.loads(done.stdout)  # type: ignore[no-any-return]
    except json.JSONDecodeError:
        return {"failed": (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]}


def search(tree: Path, task: Path, device: str, runs: Path, words: list[str]) -> Row:
    """The best pass of a search of a checkout, in `runs/best`; `pass` says whether there is one."""
    kind = device.partition(":")[0]
    began = time.monotonic()
    run = passagent(tree, device, "run", str(task), "--device", kind, "--runs-dir", str(runs), *words)
    row: Row = {"seconds": round(time.monotonic() - began, 1), "pass": None}
    if "failed" in run:
        return row | {"failed": run["failed"]}
    row |= {"episodes": run["episodes"], "evaluations": run["evaluations"]}
    best = run.get("best")
    if best:
        out = runs / "best"
        passagent(tree, device, "best", run["run"], "--out", str(out), "--runs-dir", str(runs))
        row |= {"pass": str(out), "then": best["as_score"], "note": best["note"]}
    return row


def judged(task: Path, device: str, found: Row, dispatch: str, runs: Path) -> Row:
    """Today's evaluation of a pass that was found; one that leaves the task alone has eager's time."""
    if not found["pass"]:
        return {"status": "no pass", "as_score": 1.0 if "failed" not in found else None}
    kind = device.partition(":")[0]
    words = ["--pass-dir", found["pass"], "--device", kind, "--dispatch", dispatch, "--runs-dir", str(runs)]
    result = passagent(ROOT, device, "eval", str(task), "--fresh", *words)
    if "failed" in result:
        return {"status": "error", "as_score": None, "failed": result["failed"]}
    wrong = [graph for graph in result["graphs"] if graph["status"] != "ok"]
    row = {key: result[key] for key in ("status", "as_score", "gmean_speedup")}
    return row | {"subgraphs": len(result["graphs"]), "wrong": [graph["name"] for graph in wrong]}


def over_devices(jobs: list[Row], devices: list[str], work: Callable[[Row, str], None], until: float) -> None:
    """`work` on each job on the next free device; none begins after `until` (of time.monotonic)."""
    waiting: queue.SimpleQueue[Row] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)

    def run(device: str) -> None:
        while time.monotonic() < until:
            try:
                work(waiting.get_nowait(), device)
            except queue.Empty:
                return

    threads = [threading.Thread(target=run, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def as_row(job: Row) -> Row:
    """What is kept of a task: no path of this machine."""
    sides = {side: job[side] | {"pass": bool(job[side]["pass"])} for side in SIDES}
    return {key: value for key, value in job.items() if key != "path"} | sides


def table(rows: list[Row], dispatch: str) -> list[str]:
    """Ratios of today's AS to the earlier one's, of the tasks that have both, and their median."""
    pairs = [(row[dispatch]["first"]["as_score"], row[dispatch]["earlier"]["as_score"]) for row in rows]
    ratios = sorted(first / earlier for first, earlier in pairs if first and earlier)
    if not ratios:
        return [f"{dispatch}: nothing to compare"]
    listed = " ".join(f"{ratio:.3f}" for ratio in ratios)
    return [f"{dispatch}: first / earlier, median {statistics.median(ratios):.3f} of {len(ratios)}: {listed}"]


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
    parser.add_argument("--dispatch", default="direct,graph")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--share", type=float, default=0.6, help="of the budget for searches")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began = time.monotonic()
    devices = args.device.split(",") * args.each
    dispatches = args.dispatch.split(",")
    kind = args.device.partition(":")[0]
    head, lock = {"environment": describe(kind, 1)}, threading.Lock()
    with tempfile.TemporaryDirectory() as scratch:
        jobs = [{"path": task.resolve(), "task": task.name} for task in args.tasks]

        def searched(job: Row, device: str) -> None:
            """One episode of the earlier search after another."""
            runs = Path(scratch) / "earlier" / job["task"]
            words = ["--iters", str(args.iters)]
            job["earlier"] = search(args.earlier.resolve(), job["path"], device, runs, words)
            print("earlier", job["task"], job["earlier"].get("then"), job["earlier"]["seconds"], flush=True)

        def compared(job: Row, device: str) -> None:
            """Today's first pass, and both judged."""
            runs = Path(scratch) / "today" / job["task"]
            words = ["--iters", "1", "--islands", "1", "--max-evals", "1", "--library", "off"]
            job["first"] = search(ROOT, job["path"], device, runs, words)
            for dispatch in dispatches:
                sides = {side: judged(job["path"], device, job[side], dispatch, runs) for side in SIDES}
                job[dispatch] = sides
            scores = [[job[dispatch][side]["as_score"] for side in SIDES] for dispatch in dispatches]
            print("today", job["task"], scores, flush=True)
            with lock:  # after each task: what was measured is not lost
                rows = [as_row(one) for one in jobs if dispatches[-1] in one]
                lines = [line for name in dispatches for line in table(rows, name)]
                keep("first-pass", kind, args.out, head | {"summary": lines, "tasks": rows})

        over_devices(jobs, devices, searched, began + args.share * args.budget)
        found = [job for job in jobs if "earlier" in job]
        over_devices(found, devices, compared, began + args.budget)
        for dispatch in dispatches:
            print(*table([job for job in found if dispatches[-1] in job], dispatch))


if __name__ == "__main__":
    main()
