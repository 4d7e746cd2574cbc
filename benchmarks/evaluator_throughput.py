"""Subgraphs judged per minute, beside a process for each subgraph as PassBench has it.

    python benchmarks/evaluator_throughput.py TASKS... --device cuda --candidates 3

Candidates of the expert's are judged by a Referee with every layer of its protection, one after the other, as
a search would: `--candidates` of each task, the best AS so far as their bar. In turn with it, in
alternating order, a process is started for a subgraph and the same candidate (passbench_process.py); for
`--processes` of the candidate's subgraphs, drawn by a fixed seed, as what a process takes does not depend on
how many came before it. Both sides have empty caches of compiled kernels at the start. The clock of an
evaluation stops when the workers of the next one stand ready. What starting up takes is measured by one
candidate of another task, and reported beside.

Counted are the candidates that are right on all subgraphs. `first`: a task's first candidate, for which
references are drawn; `cut short`: those that stay under the bar for sure. `without passagent`: had the
rival's processes not to import it. `--budget` stops after so many seconds and reports what was measured until
then. Raw results go to benchmarks/results/evaluator-throughput-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from evaluator_repeatability import SEED, Budget, expert_candidates, keep

from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError
from passagent.evaluator.judging import judging, timed_checks
from passagent.evaluator.judging.judging import Judging
from passagent.evaluator.judging.recorder import Recorder
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.judging.workers import Workers
from passagent.evaluator.reference.baseline import Baseline
from passagent.evaluator.result import Candidate
from passagent.evaluator.runner.process import Worker
from passagent.evaluator.runner.worker_messages import Request
from passagent.tasks import load_task
from passagent.tasks.reader import Subgraph, Task

ROOT = Path(__file__).resolve().parents[1]
RIVAL = Path(__file__).with_name("passbench_process.py")
WARM_UP = ROOT / "examples/tasks/quick_gelu"
PROCESS_TIMEOUT_S = 180
TIMING = {"run", "lockstep", "device"}
COMPARING = ((judging, "judge_sets"), (timed_checks, "judge_timed"))
"""What the referee calls to compare outputs."""


@contextmanager
def watching(spent: Counter[str]) -> Iterator[None]:
    """Add to `spent` the seconds that an evaluation takes: by what the referee asks of its workers and waits
    for, for recording and building, for checks, for drawing references, for workers to stand ready, and for
    comparing outputs. Each without what is named within it.
    """
    within: list[float] = []

    def timed(function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **named)
            within.append(0.0)
            started = time.monotonic()
            try:
                return function(*args, **named)
            finally:
                took = time.monotonic() - started
                spent[name(*args)] += took - within.pop()
                if within:
                    within[-1] += took

        return call

    def request(_: Worker, asked: Request[Any], *__: Any) -> str:
        return "timing" if asked.op in TIMING else asked.op

    named: list[tuple[Any, str, Callable[..., str]]] = [(Worker, "ask", request)]
    named += [(Baseline, "_draw", lambda *_: "reference"), (Workers, "take", lambda *_: "a free worker")]
    named += [(Recorder, "_record", lambda *_: "recording"), (Recorder, "prepare", lambda *_: "building")]
    named += [(Judging, "_check", lambda *_: "checks"), (Judging, "_time_all", lambda *_: "at timing")]
    named += [(Workers, "settle", lambda *_: "workers made and ended")]
    named += [(module, name, lambda *_: "compare") for module, name in COMPARING]
    own = [(place, name, getattr(place, name)) for place, name, _ in named]
    for place, name, label in named:
        setattr(place, name, timed(getattr(place, name), label))
    try:
        yield
    finally:
        for place, name, function in own:
            setattr(place, name, function)


def ours(referee: Referee, task: Task, candidate: Candidate, bar: float = 0.0) -> dict[str, Any]:
    """One evaluation: seconds, what they were spent on, and how it ended."""
    spent: Counter[str] = Counter()
    started = time.monotonic()
    record: dict[str, Any] = {"subgraphs": len(task.subgraphs)}
    with watching(spent):
        try:
            evaluation = referee.evaluate(task, candidate, bar)
            record |= {"status": evaluation.status, "error": evaluation.error}
            record["stopped_early"] = evaluation.stopped_early
            record |= {"as_score": evaluation.as_score, "protections": evaluation.protections}
            record["speedups"] = [g.speedup.e2e if g.speedup else None for g in evaluation.graphs]
            record["environment"] = evaluation.environment
        except PassagentError as error:
            record |= {"status": "failed", "error": str(error)}
        referee.workers.settle()  # behind the making of the next workers
    record["seconds"] = time.monotonic() - started
    return record | {"spent": dict(spent)}


def rival(subgraph: Subgraph, candidate: Candidate, device: str, caches: Path) -> dict[str, Any]:
    """One process for one subgraph: its wall time and what it printed."""
    own = {"PASSAGENT_CACHE": str(caches / "passbench"), "TRITON_CACHE_DIR": str(caches / "passbench-triton")}
    with tempfile.TemporaryDirectory() as folder:
        candidate.write(folder)
        command = [sys.executable, str(RIVAL), str(subgraph.path), folder, "--device", device]
        started = time.monotonic()
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=os.environ | own,
                timeout=PROCESS_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"subgraph": subgraph.name, "seconds": time.monotonic() - started, "error": "timeout"}
    record = {"subgraph": subgraph.name, "seconds": time.monotonic() - started}
    if done.returncode != 0:
        return record | {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return record | {"report": json.loads(done.stdout.splitlines()[-1])}


def both(
    referee: Referee,
    task: Task,
    candidate: Candidate,
    chosen: list[Subgraph],
    caches: Path,
    rival_first: bool,
    bar: float,
) -> dict[str, Any]:
    """A candidate judged by both sides."""
    device = referee.config.device
    before = [rival(subgraph, candidate, device, caches) for subgraph in chosen if rival_first]
    record = {"task": task.name, "candidate": candidate.key, "ours": ours(referee, task, candidate, bar)}
    after = [rival(subgraph, candidate, device, caches) for subgraph in chosen if not rival_first]
    return record | {"rival": before + after}


def compare(args: argparse.Namespace, budget: Budget, caches: Path, data: dict[str, Any]) -> None:
    """Measure until everything is or the budget is spent; into `data`."""
    draw = random.Random(SEED)
    warm = load_task(WARM_UP)
    warm = replace(warm, subgraphs=warm.subgraphs[:1])
    (first,) = expert_candidates(warm, args.device, 1)
    data["cold_rival"] = rival(warm.subgraphs[0], first, args.device, caches)
    started = time.monotonic()
    torch.set_num_threads(1)  # as in a referee's own process
    config = EvaluatorConfig(device=args.device, dispatch=args.dispatch, reference=args.reference)
    with Referee(config) as referee:
        data["cold_ours"] = ours(referee, warm, first) | {"seconds": time.monotonic() - started}
        for path in args.tasks:
            task = load_task(path)
            task = replace(task, subgraphs=task.subgraphs[: args.subgraphs])
            try:
                candidates = expert_candidates(task, args.device, args.candidates)
            except PassagentError as error:
                candidates = []
                print(f"{task.name}: {error}")
            bar = 0.0
            for number, candidate in enumerate(candidates):
                if not budget.allows():
                    return
                chosen = draw.sample(task.subgraphs, min(args.processes, len(task.subgraphs)))
                with budget.step():
                    rival_first = len(data["candidates"]) % 2 == 1
                    record = both(referee, task, candidate, chosen, caches, rival_first, bar)
                bar = max(bar, record["ours"].get("as_score") or 0.0)
                data["candidates"].append(record | {"first": number == 0})


def rates(records: list[dict[str, Any]]) -> dict[str, float]:
    """Subgraphs per minute of both sides, and the ratio; `without`: had the rival not to import passagent."""
    graphs = sum(r["ours"]["subgraphs"] for r in records)
    seconds = sum(r["ours"]["seconds"] for r in records)
    processes = [one for r in records for one in r["rival"]]
    theirs = sum(one["seconds"] for one in processes)
    imports = sum(one["report"]["seconds"]["import_passagent_s"] for one in processes if "report" in one)
    found = {"subgraphs": graphs, "processes": len(processes), "ours": 60 * graphs / seconds}
    found |= {"rival": 60 * len(processes) / theirs, "without": 60 * len(processes) / (theirs - imports)}
    return found | {
        "ratio": found["ours"] / found["rival"],
        "ratio_without": found["ours"] / found["without"],
    }


def tables(data: dict[str, Any]) -> list[str]:
    """What was measured, in rows."""
    records = data["candidates"]
    counted = [r for r in records if r["ours"]["status"] == "ok" and r["rival"]]
    left_out = [r for r in records if r not in counted]
    cold = {"ours": data["cold_ours"], "rival": [data["cold_rival"]]}
    kinds = {
        "first candidate of a task": [r for r in counted if r["first"]],
        "later candidates": [r for r in counted if not r["first"]],
        "of them cut short": [r for r in counted if not r["first"] and r["ours"]["stopped_early"]],
        "all": counted,
        "all, with starting up": [*counted, cold] if counted else [],
    }
    data["rates"] = {name: rates(some) for name, some in kinds.items() if some}
    lines = [
        f"{'subgraphs per minute':28} {'ours':>7} {'(n)':>6} {'rival':>7} {'(n)':>6} {'ratio':>7} "
        f"{'ratio without passagent':>24}"
    ]
    for name, found in data["rates"].items():
        lines.append(
            f"{name:28} {found['ours']:>7.1f} {found['subgraphs']:>6} {found['rival']:>7.1f} "
            f"{found['processes']:>6} {found['ratio']:>7.1f} {found['ratio_without']:>24.1f}"
        )
    seconds = [data[name]["seconds"] for name in ("cold_ours", "cold_rival")]
    for name in ("first candidate of a task", "later candidates"):
        if took := [r["ours"]["seconds"] for r in kinds[name]]:
            lines.append(f"{name}: {statistics.median(took):.2f} s in the median of {len(took)}")
    lines.append(f"starting up: ours {seconds[0]:.1f} s, a process {seconds[1]:.1f} s")
    for r in left_out:
        lines.append(f"left out: {r['task']}: {r['ours']['status']}: {r['ours']['error']}")
    failed = [one for r in counted for one in r["rival"] if "report" not in one]
    lines += [f"process failed: {one['subgraph']}: {one['error']}" for one in failed]
    return [*lines, "", *_where(kinds["first candidate of a task"], kinds["later candidates"])]


def _where(first: list[dict[str, Any]], later: list[dict[str, Any]]) -> list[str]:
    """Where a subgraph's seconds go, ours by request and the rival's by step."""
    lines = [f"{'ms a subgraph':28} {'first':>9} {'later':>9}"]
    columns = []
    for records in (first, later):
        graphs = sum(r["ours"]["subgraphs"] for r in records) or 1
        spent: Counter[str] = Counter()
        for r in records:
            spent.update(r["ours"]["spent"])
        spent["rest"] = sum(r["ours"]["seconds"] for r in records) - sum(spent.values())
        columns.append({name: 1000 * value / graphs for name, value in spent.items()})
    lines += _rows("ours, ", columns)
    columns = []
    for records in (first, later):
        done = [one for r in records for one in r["rival"] if "report" in one]
        spent = Counter()
        for one in done:
            spent.update({name.removesuffix("_s"): s for name, s in one["report"]["seconds"].items()})
        spent["rest"] = sum(one["seconds"] for one in done) - sum(spent.values())
        columns.append({name: 1000 * value / (len(done) or 1) for name, value in spent.items()})
    return lines + _rows("rival, ", columns)


def _rows(prefix: str, columns: list[dict[str, float]]) -> list[str]:
    names = sorted({name for column in columns for name in column}, key=lambda n: -columns[-1].get(n, 0.0))
    return [
        f"{prefix + name:28} " + " ".join(f"{column.get(name, 0.0):>9.1f}" for column in columns)
        for name in names
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dispatch", default="direct", help="ours; a process calls as `direct` does")
    parser.add_argument("--reference", default="eager", help="what ours are timed beside, too: inductor")
    parser.add_argument("--candidates", type=int, default=3, help="of each task")
    parser.add_argument("--subgraphs", type=int, default=6, help="of each task, at most")
    parser.add_argument("--processes", type=int, default=1, help="the rival's, of each candidate")
    parser.add_argument("--budget", type=float, help="seconds")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data: dict[str, Any] = {"candidates": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PASSAGENT_CACHE"] = str(Path(folder) / "ours")
        compare(args, Budget(args.budget), Path(folder), data)
    print(*tables(data), sep="\n")
    for record in (data["cold_ours"], *(record["ours"] for record in data["candidates"])):
        data["environment"] = record.pop("environment", None) or data.get("environment")
    print("raw results:", keep("evaluator-throughput", args.device, args.out, data))


if __name__ == "__main__":
    try:
        main()
    except PassagentError as problem:
        sys.exit(f"error: {problem}")
