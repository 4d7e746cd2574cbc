"""The expert's AS of two trees of passagent on the same tasks, in turn on the same machine.

    git archive COMMIT passagent configs | tar -x -C DIR
    python benchmarks/before_after.py TASK... --before DIR --dispatch graph direct --device cuda

Each task is cut to its first subgraph of each dtype, two at most, and measured by `passagent bench
--compiler expert` of either tree, in an order that changes from task to task. Printed: AS of both, the
geometric mean of after / before with its 95% interval over the tasks, and the seconds of the evaluations.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from passagent.sandbox.environment import describe

SUBGRAPHS = 2
"""Of each task, of different dtypes."""
RESAMPLES = 2000


def main() -> None:
    """Measure, print, and keep every row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--before", type=Path, required=True, help="directory that holds passagent/")
    parser.add_argument("--dispatch", nargs="+", default=["graph", "direct"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--most-s", type=float, default=math.inf, help="begin no further task after this long"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    trees = {"before": args.before.resolve(), "after": Path(__file__).resolve().parents[1]}
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        for number, task in enumerate(args.tasks):
            if time.monotonic() - began > args.most_s:
                break
            cut = cut_task(task, Path(name) / task.name)
            for dispatch in args.dispatch:
                for tree in list(trees) if number % 2 else list(trees)[::-1]:
                    row = measured(trees[tree], cut, dispatch, args.device, Path(name) / "out")
                    rows.append({"tree": tree, "dispatch": dispatch, "task": task.name} | row)
                    print(f"{task.name[:40]:40} {dispatch:7} {tree:7} AS {row['as_score']}", flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps({"machine": describe(args.device, 1), "rows": rows}, indent=1))
    for dispatch in args.dispatch:
        print(summary(dispatch, rows))


def cut_task(task: Path, copy: Path) -> Path:
    """A copy of the task with its first subgraph of each dtype, SUBGRAPHS at most."""
    shutil.copytree(task, copy)
    names = (copy / "graph_list.txt").read_text().split()
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(name.rpartition("__")[2], name)
    (copy / "graph_list.txt").write_text("\n".join(list(first.values())[:SUBGRAPHS]) + "\n")
    return copy


def measured(tree: Path, task: Path, dispatch: str, device: str, out: Path) -> dict[str, Any]:
    """AS, seconds and subgraphs of the expert's first pass, by `tree`; the error in their place."""
    shutil.rmtree(out, ignore_errors=True)
    options = ["--compiler", "expert", "--dispatch", dispatch, "--device", device, "--out", str(out)]
    before = os.environ.get("PYTHONPATH", "")
    ended = subprocess.run(
        [sys.executable, "-m", "passagent", "bench", str(task), *options],
        env=os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{before}"},
        cwd=task,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in (out / "results.jsonl").open()] if out.exists() else []
    found = next((line["evaluation"] for line in lines if line.get("evaluation")), None)
    if found is None:
        return {"as_score": None, "error": (ended.stderr or ended.stdout)[-500:]}
    fields = ("name", "status", "speedup", "eager_ms", "compiled_ms")
    graphs = [{name: graph[name] for name in fields} for graph in found["graphs"]]
    return {"as_score": found["as_score"], "seconds": found["seconds"], "graphs": graphs}


def summary(dispatch: str, rows: list[dict[str, Any]]) -> str:
    """One line: the tasks that both trees measured."""
    scores: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["dispatch"] == dispatch and row["as_score"]:
            scores.setdefault(row["task"], {})[row["tree"]] = row
    pairs = [both for both in scores.values() if len(both) == 2]
    if not pairs:
        return f"{dispatch}: no task was measured by both trees"
    logs = [math.log(both["after"]["as_score"] / both["before"]["as_score"]) for both in pairs]
    rng = random.Random(1)
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, mid, high = map(math.exp, (means[RESAMPLES // 40], statistics.fmean(logs), means[-RESAMPLES // 40]))
    mean = {
        tree: math.exp(statistics.fmean(math.log(both[tree]["as_score"]) for both in pairs))
        for tree in ("before", "after")
    }
    seconds = {tree: sum(both[tree]["seconds"] for both in pairs) for tree in mean}
    return (
        f"{dispatch}, {len(pairs)} tasks: AS {mean['before']:.3f} before, {mean['after']:.3f} after, "
        f"{mid:.3f} ({low:.3f} to {high:.3f}); {seconds['before']:.0f} s and {seconds['after']:.0f} s"
    )


if __name__ == "__main__":
    main()
