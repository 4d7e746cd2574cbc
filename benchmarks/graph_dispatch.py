"""The expert's first passes and TorchInductor's code where host time is gone, beside eager.

    python benchmarks/graph_dispatch.py TASKS --budget 460 --jobs 16 --out FILE
    python benchmarks/graph_dispatch.py TASKS --export BEFORE.json    # in an older checkout
    python benchmarks/graph_dispatch.py TASKS --budget 460 --before BEFORE.json --out FILE
    python benchmarks/graph_dispatch.py TASKS --device cpu --subgraphs 40 --out FILE

On a GPU each side of a subgraph is captured as a CUDA graph of 20 calls, and replays of all sides alternate;
their inputs are the same and warm. Inductor is drawn twice, as its own tuning chooses another configuration
each time, and the faster draw counts. With `--before` a second expert's passes, exported from an older
checkout, run in the same process. On the CPU the evaluator measures (`--dispatch graph`), Inductor beside.

Subgraphs are chosen by a fixed seed: of each task up to three, of different sizes. First `--jobs` processes
compile all sides; then one other process measures. A subgraph that fails is reported, and the run goes on.
The results are written every 20 s.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from graph_sides import DRAWS, SLOWER, Asked, Helper, resampled

from passagent.errors import PassagentError
from passagent.tasks import load_task
from passagent.tasks.reader import Subgraph
from passagent.tasks.tasklist import find_tasks

SEED = 0
EACH = 3
"""Subgraphs of a task, at most."""
MOST_BYTES = 1 << 28
"""Of a subgraph's inputs."""
CLASSES = {"under 1 MB": (0, 1e6), "1-16 MB": (1e6, 16e6), "over 16 MB": (16e6, math.inf)}
"""By bytes of inputs."""
LONGEST_S = 90.0
"""That one subgraph may take to compile, or to be measured."""
PREPARING = 0.5
"""Share of the budget until which subgraphs are compiled ahead."""
Row = dict[str, Any]


def input_bytes(subgraph: Subgraph) -> int:
    """Of its tensors."""
    import torch

    metas = [meta for meta in subgraph.inputs if not meta.is_python_scalar]
    return sum(meta.numel * getattr(torch, meta.dtype).itemsize for meta in metas)


def chosen(paths: list[Path], count: int) -> list[Asked]:
    """Subgraphs of tasks in an order drawn by SEED; of each the smallest, the largest and the middle one."""
    paths = sorted(find_tasks([str(path) for path in paths]))
    random.Random(SEED).shuffle(paths)
    rows: list[Asked] = []
    for path in paths:
        fitting = [s for s in load_task(path).subgraphs if input_bytes(s) <= MOST_BYTES]
        fitting.sort(key=lambda s: (input_bytes(s), s.name))
        steps = [round(k * (len(fitting) - 1) / (EACH - 1)) for k in range(EACH)] if fitting else []
        for position in dict.fromkeys(steps):
            found = fitting[position]
            rows.append(Asked(str(path), found.name, {}, {"input_bytes": input_bytes(found)}))
        if len(rows) >= count:
            break
    return rows[:count]


def named(task: str) -> str:
    """A task's name, and of what: regions of two models may share theirs."""
    return "/".join(Path(task).parts[-2:])


def expert_passes(task: str, target: str) -> dict[str, Any]:
    """The passes that the expert writes for a task, by file, and the operators that it refused."""
    from passagent.expert.choices import default
    from passagent.expert.expert_model import candidate

    try:
        files, authored = candidate(task, target, default(target))
    except Exception as error:  # reported, as everything that fails here
        return {"files": {}, "refused": {"expert": f"{type(error).__name__}: {error}"}}
    return {"files": files, "refused": authored.refused}


def export(rows: list[Asked], target: str, path: Path) -> None:
    """Write the expert's passes of all tasks into a file."""
    tasks = dict.fromkeys(row.task for row in rows)
    found = {named(task): expert_passes(task, target) for task in tasks}
    path.write_text(json.dumps(found, indent=1))
    print(f"{path}: passes for {sum(bool(f['files']) for f in found.values())} of {len(found)} tasks")


def authored(args: argparse.Namespace, rows: list[Asked], target: str) -> dict[str, dict[str, Any]]:
    """By side and task: the expert's passes, written by processes side by side, and those of `--before`."""
    scratch = args.out.with_suffix(".passes")
    scratch.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(row.task for row in rows))
    jobs = max(1, min(args.jobs, len(names)))
    command = [sys.executable, __file__, "--subgraphs", "1000000", "--device", args.device]
    shares = [names[k::jobs] for k in range(jobs)]
    running = [
        subprocess.Popen(
            [*command, *share, "--export", str(scratch / f"{k}.json")], stdout=subprocess.DEVNULL
        )
        for k, share in enumerate(shares)
    ]
    found: dict[str, Any] = {}
    for k, process in enumerate(running):
        if process.wait():
            raise PassagentError(f"writing the expert's passes failed with exit code {process.returncode}")
        found |= json.loads((scratch / f"{k}.json").read_text())
        (scratch / f"{k}.json").unlink()
    scratch.rmdir()
    sides = {"expert": found}
    if args.before:
        sides["before"] = json.loads(args.before.read_text())
    return sides


class Run:
    """Rows as they come, and the file that they are kept in."""

    def __init__(self, args: argparse.Namespace, rows: list[Asked]) -> None:
        self.args, self.rows = args, rows
        self.begun = time.monotonic()
        self.facts: Row = {}
        self._kept = 0.0

    def left(self, share: float = 1.0) -> float:
        """Seconds of the budget, or of a share of it."""
        return float(share * self.args.budget - (time.monotonic() - self.begun))

    def keep(self, now: bool = False) -> None:
        """Write the file, at most every 20 s."""
        if now or time.monotonic() - self._kept > 20:
            done = [row.row for row in self.rows if "us" in row.row or "error" in row.row]
            head = {"date": datetime.date.today().isoformat(), "device": self.args.device, **self.facts}
            head |= {"subgraphs": len(self.rows), "seconds": round(time.monotonic() - self.begun, 1)}
            data = head | {"summary": summary(done), "rows": done}
            self.args.out.write_text(json.dumps(data, indent=1) + "\n")
            self._kept = time.monotonic()


def prepare(run: Run) -> None:
    """Compile ahead, in several processes."""
    waiting: queue.SimpleQueue[Asked] = queue.SimpleQueue()
    for row in run.rows:
        waiting.put(row)
    failed: list[str] = []

    def work() -> None:
        helper = Helper(share=1)
        try:
            while run.left(PREPARING) > 0:
                row = waiting.get_nowait()
                answer = helper.ask("prepare", row, max(1.0, min(LONGEST_S, run.left(PREPARING))))
                if "error" in answer:
                    failed.append(f"{row.subgraph}: {answer['error']}")
        except queue.Empty:
            pass
        finally:
            helper.close()

    threads = [threading.Thread(target=work) for _ in range(run.args.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"compiled {len(run.rows) - waiting.qsize()} subgraphs after {run.args.budget - run.left():.0f} s")
    print(*(f"  not compiled ahead: {line}" for line in failed), sep="\n", flush=True)


def measure_cuda(run: Run) -> None:
    """Compile, then measure one by one."""
    prepare(run)
    helper = Helper(share=os.cpu_count() or 1)
    run.facts = helper.ask("facts", None, LONGEST_S)
    for row in run.rows:
        if run.left() < 3:
            break
        row.row |= helper.ask("measure", row, min(LONGEST_S, run.left()))
        print(told(row.row), flush=True)
        run.keep()
    helper.close()


def measure_cpu(run: Run) -> None:
    """The evaluator measures, Inductor beside each candidate."""
    from dataclasses import replace

    from passagent.config import EvaluatorConfig
    from passagent.evaluator.judging.referee import Referee
    from passagent.evaluator.result import Candidate

    config = EvaluatorConfig(device=run.args.device, dispatch="graph", reference="inductor")
    with Referee(config) as referee:
        for row in run.rows:
            files = row.passes["expert"]
            if run.left() < 3:
                break
            task = load_task(Path(row.task))
            task = replace(task, subgraphs=[s for s in task.subgraphs if s.name == row.subgraph])
            try:
                evaluation = referee.evaluate(task, Candidate(files) if files else "eager")
            except PassagentError as error:
                row.row["error"] = str(error)
                continue
            [graph] = evaluation.graphs
            row.row |= {"t": {"expert": graph.passes_from_t}, "replaced": {"expert": int(bool(files))}}
            if graph.speedup is None or graph.vs_reference is None:
                row.row["error"] = graph.error or f"status {graph.status}"
            else:
                eager = 1.0  # the evaluator gives ratios
                ours = eager / graph.speedup.e2e
                row.row["us"] = {"eager": eager, "expert": ours, DRAWS[0]: ours * graph.vs_reference.e2e}
            print(told(row.row), flush=True)
            run.keep()


def ratios(row: Row) -> dict[str, float]:
    """Of one subgraph; a side that leaves it alone takes eager's time."""
    us = row["us"]
    theirs = min(us[name] for name in DRAWS if name in us)
    found = {"eager / inductor": us["eager"] / theirs}
    for name in ("expert", "before"):
        if name in row["replaced"] or name == "expert":
            own = us.get(name, us["eager"])
            found |= {f"eager / {name}": us["eager"] / own, f"inductor / {name}": theirs / own}
    return found


def told(row: Row) -> str:
    """A line for a person."""
    name = f"{row['task'][:48]:48} {row['input_bytes'] / 1e6:9.2f} MB"
    if "error" in row:
        return f"{name} {row['error']}"
    return f"{name} " + ", ".join(f"{key} {value:.2f}" for key, value in ratios(row).items())


def summary(rows: list[Row]) -> dict[str, Any]:
    """The table by size, and the subgraphs on which Inductor is more than 10% faster."""
    timed = [row for row in rows if "us" in row]
    table: dict[str, Any] = {}
    for name, (low, high) in {"all": (0, math.inf), **CLASSES}.items():
        inside = [row for row in timed if low <= row["input_bytes"] < high]
        groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in inside:
            for key, value in ratios(row).items():
                groups[key][row["task"]].append(math.log(value))
        means = {key: [round(x, 4) for x in resampled(list(by.values()))] for key, by in groups.items()}
        alone = sum(not row["replaced"].get("expert") for row in inside)
        table[name] = {"subgraphs": len(inside), "left alone": alone, **means}
    slower = [row for row in timed if ratios(row)["inductor / expert"] * SLOWER < 1]
    exact = {
        side: sum(row["t"].get(side) is not None and row["t"][side] <= -5 for row in timed)
        for side in ("expert", "before", *DRAWS)
    }
    wrong = [
        f"{row['task']}/{row['subgraph']}: t {row['t'].get('expert')}"
        for row in timed
        if row["replaced"].get("expert")
        and (row["t"].get("expert") is None or row["t"]["expert"] > -5)
        and not row.get("as_exact", {}).get("expert", False)
    ]
    return {
        "tasks": len({row["task"] for row in timed}),
        "failed": [f"{row['task']}/{row['subgraph']}: {row['error']}" for row in rows if "error" in row],
        "agrees from t = -5": exact,
        "expert is wrong at t = -5": wrong,
        "table": table,
        "inductor is more than 10% faster": [
            {
                "task": row["task"],
                "subgraph": row["subgraph"],
                "inductor / expert": round(ratios(row)["inductor / expert"], 3),
                "kernels": row.get("kernels"),
                "not lowered": row.get("refused"),
                "profile": row.get("profile"),
            }
            for row in sorted(slower, key=lambda row: ratios(row)["inductor / expert"])
        ],
    }


def show(data: dict[str, Any]) -> None:
    """The summary, for a person."""
    for name, found in data["table"].items():
        means = [f"{k} {v[0]:.3f} ({v[1]:.2f}-{v[2]:.2f})" for k, v in found.items() if isinstance(v, list)]
        print(f"{name}: {found['subgraphs']} subgraphs, {found['left alone']} left alone; {'; '.join(means)}")
    for row in data["inductor is more than 10% faster"]:
        print(f"  {row['inductor / expert']:.2f} {row['task']} kernels {row['kernels']} {row['not lowered']}")
    print("agrees from t = -5:", data["agrees from t = -5"], "failed:", len(data["failed"]))
    print(*data["failed"], *data["expert is wrong at t = -5"], sep="\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--subgraphs", type=int, default=122)
    parser.add_argument("--budget", type=float, default=460.0, help="seconds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile")
    parser.add_argument("--export", type=Path, help="only write the expert's passes there")
    parser.add_argument("--before", type=Path, help="passes that --export wrote")
    parser.add_argument("--out", type=Path, default=Path("graph-dispatch.json"))
    args = parser.parse_args()
    target = args.device.partition(":")[0]
    rows = chosen(args.tasks, args.subgraphs)
    if args.export:
        export(rows, target, args.export)
        return
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # of each process
    run = Run(args, rows)
    sides = authored(args, rows, target)
    for row in rows:
        task = named(row.task)
        row.passes = {side: found.get(task, {}).get("files", {}) for side, found in sides.items()}
        refused = sides["expert"].get(task, {}).get("refused", {})
        row.row |= {"task": task, "subgraph": row.subgraph, "refused": refused}
    (measure_cuda if target == "cuda" else measure_cpu)(run)
    run.keep(now=True)
    show(summary([row.row for row in rows if "us" in row.row or "error" in row.row]))
    print(args.out)


if __name__ == "__main__":
    try:
        main()
    except PassagentError as problem:
        sys.exit(f"error: {problem}")
