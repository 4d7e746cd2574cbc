"""Run the expert on every example task and keep what came out.

    python benchmarks/examples.py --device cpu --iters 10

For each task: `passagent run`, then the best pass is judged again by `passagent eval` in a fresh process, and
that second measurement is what is reported. The raw results (every evaluation's samples included) go to
benchmarks/results/examples-<device>-<date>.json.
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


def one(task: Path, device: str, iters: int, islands: int, runs: Path) -> dict:
    """Search on one task, then judge its best pass again."""
    started = time.monotonic()
    run = passagent(
        "run",
        str(task),
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
    entry = {"task": task.name, "run": run, "run_seconds": round(seconds, 1), "again": None}
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
    entries = []
    print(f"{'task':32} {'nodes':>5} {'best AS':>8} {'again':>8} {'status':12} {'graphs ok':>9} {'s':>6}")
    with tempfile.TemporaryDirectory() as runs:
        for task in args.tasks:
            entry = one(task.resolve(), args.device, args.iters, args.islands, Path(runs))
            entries.append(entry)
            again = entry["again"] or {"as_score": None, "status": "none", "graphs": []}
            correct = sum(graph["status"] == "ok" for graph in again["graphs"])
            score = "-" if again["as_score"] is None else f"{again['as_score']:.3f}"
            best = (entry["run"].get("best") or {}).get("as_score")
            found = "-" if best is None else f"{best:.3f}"
            print(
                f"{task.name:32} {entry['run'].get('nodes', 0):5} {found:>8} {score:>8} "
                f"{again['status']:12} {correct:>4}/{len(again['graphs']):<4} {entry['run_seconds']:6.1f}",
                flush=True,
            )
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    ).stdout.strip()
    today = datetime.date.today().isoformat()
    device = args.device.replace(":", "")
    out = args.out or ROOT / "benchmarks/results" / f"examples-{device}-{today}.json"
    environment = next((e["again"]["environment"] for e in entries if e["again"]), {})
    head = {"command": " ".join(sys.argv), "commit": commit, "date": today, "environment": environment}
    out.write_text(json.dumps(head | {"tasks": entries}, indent=1) + "\n")
    print(f"raw results: {out}")


if __name__ == "__main__":
    main()
