"""KernelBench's levels 1 and 2: the expert's first pass beside eager, torch.compile and its CUDA-graph mode.

    python benchmarks/kernelbench_table.py ~/KernelBench --device cuda:0,cuda:1 --each 2 --work DIR

The problems are imported, a level on each device in turn, then `passagent bench --suite kernelbench` measures
them in shards, `--each` on a device, which take turns to time. With `--seconds` the shards are stopped then;
the same call again goes on. No language model takes part, and the problems stay in DIR.

Raw results go to benchmarks/results/kernelbench-table-<device>-<date>.json: the table, and of each problem
and compiler the status, the speedup over eager and eager's time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evaluator_repeatability import ROOT, keep

Row = dict[str, Any]


def start(device: str, log: Path, *words: str) -> subprocess.Popen[bytes]:
    """`passagent WORDS` in a process that sees one device; what it says goes to `log`."""
    environment = dict(os.environ)
    if device.startswith("cuda:"):
        environment["CUDA_VISIBLE_DEVICES"] = device.removeprefix("cuda:")
    command = [sys.executable, "-m", "passagent", *words]
    with log.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)


def finished(processes: list[subprocess.Popen[bytes]], until: float) -> None:
    """Wait for all; at `until` (of time.monotonic) they are asked to stop, and keep what they have."""
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    for process in processes:
        process.wait()


def convert(suite: str, devices: list[str], levels: list[str], jobs: int, most: int, work: Path) -> None:
    """The tasks of each level in `work/tasks/LEVEL`."""
    running = []
    for number, level in enumerate(levels):
        device = devices[number % len(devices)]
        words = ["--level", level, "--device", device.partition(":")[0], "--max-input", str(most)]
        words += ["--jobs", str(jobs), "--out", str(work / "tasks" / level)]
        log = work / f"import-{level}.log"
        running.append(start(device, log, "tasks", "import", "kernelbench", suite, *words))
    finished(running, float("inf"))


def brief(row: Row) -> Row:
    """What is kept of a measurement."""
    found = {"task": row["task"], "compiler": row["compiler"]}
    if row["left"]:
        return found | {"left": True}
    if row["error"] or not row["evaluation"]:
        return found | {"error": (row["error"] or "")[:200]}
    graphs = row["evaluation"]["graphs"]
    status = next((graph["status"] for graph in graphs if graph["status"] != "ok"), "ok")
    found |= {"status": status, "as_score": row["evaluation"]["as_score"]}
    found["eager_ms"] = [graph["eager_ms"] for graph in graphs]
    found["speedup"] = [graph["speedup"] and graph["speedup"]["e2e"] for graph in graphs]
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", help="a checkout of KernelBench")
    parser.add_argument("--level", default="1,2")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0,cuda:1")
    parser.add_argument("--each", type=int, default=1, help="shards that share a device")
    parser.add_argument("--jobs", type=int, default=2, help="of an import")
    parser.add_argument("--max-input", type=int, default=64, help="MiB")
    parser.add_argument("--budget", type=float, default=0.2, help="seconds of timing a subgraph")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="until the shards are stopped")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    work, devices, levels = args.work.resolve(), args.device.split(","), args.level.split(",")
    work.mkdir(parents=True, exist_ok=True)
    convert(str(Path(args.suite).resolve()), devices, levels, args.jobs, args.max_input, work)
    kind = devices[0].partition(":")[0]
    tasks = [str(path) for level in levels for path in sorted((work / "tasks" / level).glob("level*/"))]
    places = [work / f"shard-{number}" for number in range(len(devices) * args.each)]
    common = ["--suite", "kernelbench", "--device", kind, "--set", f"evaluator.budget_s={args.budget}"]
    running = []
    for number, place in enumerate(places):
        words = ["--shard", f"{number}/{len(places)}", "--out", str(place)]
        log = work / f"shard-{number}.log"
        running.append(start(devices[number % len(devices)], log, "bench", *tasks, *common, *words))
    finished(running, until)
    whole = work / f"all-{time.time_ns()}"
    shards = [str(place) for place in places if (place / "results.jsonl").exists()]
    merging = [
        *shards,
        "--merge",
        "--suite",
        "kernelbench",
        "--root",
        str(work / "tasks"),
        "--out",
        str(whole),
    ]
    command = [sys.executable, "-m", "passagent", "bench", *merging, "--json"]
    merged = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(merged.stderr)
    table = json.loads(merged.stdout)["suite"]
    for line in table:
        mean, fast = line["gmean"]["value"], line["fast"]["1"]["value"]
        of = f"{line['compiler']} / {line['base']}, {line['level']}, {line['problems']} problems"
        print(f"{of}: {mean if mean is None else format(mean, '.3f')}, fast_1 {fast:.2f}")
    rows = [json.loads(line) for line in (whole / "results.jsonl").read_text().splitlines()]
    data = {"identity": {key: value for key, value in rows[0]["identity"].items() if key != "host"}}
    data |= {
        "max_input_mib": args.max_input,
        "tasks": len(tasks),
        "table": json.loads(merged.stdout)["suite"],
    }
    print(f"raw results: {keep('kernelbench-table', kind, args.out, data | {'rows': [*map(brief, rows)]})}")


if __name__ == "__main__":
    main()
