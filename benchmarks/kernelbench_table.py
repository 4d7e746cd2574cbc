"""KernelBench's levels 1 and 2: the expert's first pass beside eager, torch.compile and its CUDA-graph mode.

    python benchmarks/kernelbench_table.py ~/KernelBench --device cuda:0,cuda:1 --each 2 --work DIR

The problems are imported, a level on each device in turn, then `passagent bench --suite kernelbench` measures
them in shards, `--each` on a device, which take turns to time. With `--seconds` the shards are stopped then;
the same call again goes on. No language model takes part, and the problems stay in DIR.

`--earlier FILE` is a result of before, whose problems are told beside these.

Raw results go to benchmarks/results/kernelbench-table-<device>-<date>.json: the table, and of each problem
and compiler the status, the speedups over eager (by the wall and by the device's own time) and eager's time.
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

from passagent.evaluator.score import geometric_mean

Row = dict[str, Any]
PAIR = ("expert", "inductor")


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
    for name, time_of in (("speedup", "e2e"), ("device_speedup", "device")):
        found[name] = [graph["speedup"] and graph["speedup"][time_of] for graph in graphs]
    return found


def beside(rows: list[Row], earlier: list[Row]) -> Row:
    """Geometric means then and now, over the problems that the expert and `inductor` got right both times."""
    found: Row = {}
    for key in ("device_speedup", "speedup"):
        known: list[dict[tuple[str, str], float]] = [{}, {}]
        for some, seen in zip((earlier, rows), known, strict=True):
            for row in some:
                if row.get("left") or (row.get("status") == "ok" and all(row[key])):
                    seen[row["task"], row["compiler"]] = 1.0 if row.get("left") else geometric_mean(row[key])
        both = [
            t for t, c in known[0] if c == "expert" and all((t, c) in seen for seen in known for c in PAIR)
        ]
        found["problems"] = len(both)
        for name, seen in zip(("then", "now"), known, strict=True):
            means = [geometric_mean([seen[task, compiler] for task in both]) for compiler in PAIR]
            found[f"{key}, {name}"] = {**dict(zip(PAIR, means, strict=True)), "ratio": means[0] / means[1]}
    return found


def by_device(rows: list[Row]) -> Row:
    """Geometric means of the speedups in the device's own time, by compiler and level; `expert / ...` where
    both are right. What is left to eager counts as 1.
    """
    known: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.get("left"):
            known.setdefault(row["compiler"], {})[row["task"]] = 1.0
        elif row.get("status") == "ok" and all(row["device_speedup"]):
            known.setdefault(row["compiler"], {})[row["task"]] = geometric_mean(row["device_speedup"])
    found: Row = {}
    for level in ("level1", "level2"):
        own = {c: {t: v for t, v in seen.items() if t.startswith(level)} for c, seen in known.items()}
        for name, seen in own.items():
            found[f"{name} / eager, {level}"] = geometric_mean(list(seen.values())) if seen else None
            shared = [own["expert"][t] / v for t, v in seen.items() if t in own.get("expert", {})]
            if name != "expert" and shared:
                found[f"expert / {name}, {level}"] = geometric_mean(shared)
    return found


def told(
    work: Path, places: list[Path], kind: str, out: Path | None, facts: Row, earlier: Path | None
) -> None:
    """Put the shards together, print the table and keep it."""
    files = [place / "results.jsonl" for place in places if (place / "results.jsonl").exists()]
    ends = ["--suite", "kernelbench", "--root", str(work / "tasks"), "--json"]
    command = [sys.executable, "-m", "passagent", "bench", *[str(file.parent) for file in files], *ends]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(printed.stderr)
    table = json.loads(printed.stdout)["suite"]
    for line in table:
        mean, fast = line["gmean"]["value"], line["fast"]["1"]["value"]
        of = f"{line['compiler']} / {line['base']}, {line['level']}, {line['problems']} problems"
        print(f"{of}: {mean if mean is None else format(mean, '.3f')}, fast_1 {fast:.2f}")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    data = {"identity": {key: value for key, value in rows[0]["identity"].items() if key != "host"}}
    brief_rows = [*map(brief, rows)]
    data |= facts | {"table": table, "by_device": by_device(brief_rows), "rows": brief_rows}
    if earlier is not None:
        data["beside"] = beside(brief_rows, json.loads(earlier.read_text())["rows"])
        print(json.dumps(data["beside"], indent=2))
    for name, mean in data["by_device"].items():
        print(f"by the device's time, {name}: {mean if mean is None else format(mean, '.3f')}")
    print(f"raw results: {keep('kernelbench-table', kind, out, data)}")


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
    parser.add_argument("--earlier", type=Path)
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
    compilers = ["inductor", *["torch:inductor:reduce-overhead"] * (kind == "cuda"), "expert"]
    common += [word for name in compilers for word in ("--compiler", name)]
    running = []
    for number, place in enumerate(places):
        words = ["--shard", f"{number}/{len(places)}", "--out", str(place)]
        log = work / f"shard-{number}.log"
        running.append(start(devices[number % len(devices)], log, "bench", *tasks, *common, *words))
    finished(running, until)
    told(work, places, kind, args.out, {"max_input_mib": args.max_input, "tasks": len(tasks)}, args.earlier)


if __name__ == "__main__":
    main()
