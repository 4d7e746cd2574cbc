"""Run the expert on every example task and keep what came out.

    python benchmarks/example_searches.py --device cpu --iters 10

For each task: `passagent run`, then the best pass is judged again by `passagent eval` in a fresh process, and
that second measurement is what is reported. `s` is what the run took, `first` what passed from its process's
start until the first correct candidate was measured. The raw results (every evaluation's samples included) go
to benchmarks/results/examples-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evaluator_repeatability import keep

from passagent.store import Store

ROOT = Path(__file__).resolve().parents[1]


def passagent(*args: str) -> dict:
    """`passagent ARGS --json` as data; raises with the command's own error if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "passagent", *args, "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"passagent {' '.join(args)}: exit {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def first_correct(runs: Path, run_id: str, began: datetime.datetime) -> float | None:
    """Seconds from `began` until the run's first correct candidate was measured; None if there is none."""
    with Store.open(runs) as store:
        row = store.row(
            "SELECT min(evaluated_at) AS at FROM nodes WHERE run_id = :run AND status = 'ok'", {"run": run_id}
        )
    if row is None or row["at"] is None:
        return None
    return round((datetime.datetime.fromisoformat(row["at"]) - began).total_seconds(), 1)


def one(task: Path, device: str, iters: int, islands: int, runs: Path) -> dict:
    """Search on one task, then judge its best pass again."""
    began, started = datetime.datetime.now(datetime.UTC), time.monotonic()
    run = passagent(
        "run",
        str(task),
        "--library",
        "off",
        "--device",
        device,
        "--iters",
        str(iters),
        "--islands",
        str(islands),
        "--runs-dir",
        str(runs),
    )
    seconds = time.monotonic() - started
    best = runs / "best" / task.name
    for key in ("task_path", "runs_dir"):  # a path of the machine that measured tells nobody anything
        run.pop(key, None)
    (run.get("best") or {}).pop("path", None)
    entry = {"task": task.name, "run": run, "run_seconds": round(seconds, 1), "again": None}
    entry["first_seconds"] = first_correct(runs, run["run"], began)
    if run.get("best"):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "passagent",
                "best",
                run["run"],
                "--out",
                str(best),
                "--runs-dir",
                str(runs),
            ],
            check=True,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        entry["again"] = passagent("eval", str(task), "--pass-dir", str(best), "--device", device)
    return entry


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", type=Path, default=sorted((ROOT / "examples/tasks").glob("*/")))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iters", type=int, default=10)
    parser.add_argument("--islands", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    entries: list[dict] = []
    head = f"{'task':32} {'nodes':>5} {'best AS':>8} {'again':>8} {'status':12} {'graphs ok':>9}"
    print(f"{head} {'s':>6} {'first':>6}")
    with tempfile.TemporaryDirectory() as runs:
        for task in args.tasks:
            entry = one(task.resolve(), args.device, args.iters, args.islands, Path(runs))
            entries.append(entry)
            print(line(entry), flush=True)
            environment = next((e["again"]["environment"] for e in entries if e["again"]), {})
            data = {"environment": environment, "tasks": entries}
            keep("examples", args.device, args.out, data)  # after each task: what was measured is not lost


def line(entry: dict) -> str:
    """A task's row of the table."""
    again = entry["again"] or {"as_score": None, "status": "none", "graphs": []}
    correct = sum(graph["status"] == "ok" for graph in again["graphs"])
    found, score = (
        "-" if value is None else f"{value:.3f}"
        for value in ((entry["run"].get("best") or {}).get("as_score"), again["as_score"])
    )
    graphs = f"{correct:>4}/{len(again['graphs']):<4}"
    nodes, seconds, first = entry["run"]["nodes"], entry["run_seconds"], entry["first_seconds"] or 0.0
    times = f"{seconds:6.1f} {first:6.1f}"
    return f"{entry['task']:32} {nodes:5} {found:>8} {score:>8} {again['status']:12} {graphs} {times}"


if __name__ == "__main__":
    main()
