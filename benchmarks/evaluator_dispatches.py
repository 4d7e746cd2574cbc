"""Each way to run in turn: eager against itself, then the expert's first pass and Inductor beside it.

    python benchmarks/evaluator_dispatches.py TASKS... --device cuda --subgraphs 40 --budget 500

A/A: eager judged in a candidate's place, on the first subgraph of each task; 1.00 is the truth. Then on the
same subgraphs the expert's first pass and `inductor` are judged by the same referee. Each of the three ways
(`direct`, `dynamo`, `graph`) has its share of `--budget`; what is not reached is left out and counted.

Of each subgraph `per_pair` is the speedup by each pair of workers alone, and `block_sd` the standard
deviation of the logarithms of its blocks' speedups within a pair. The raw results go to
benchmarks/results/evaluator-dispatches-<device>-<date>.json. `--tell FILES` measures nothing, and tells of
results made before, such as those of two devices, together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from evaluator_repeatability import expert_candidates, first_subgraphs, keep
from graph_sides import resampled

from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import GraphResult, Subject
from passagent.evaluator.timing import estimate
from passagent.tasks.reader import Task

DISPATCHES = ("direct", "dynamo", "graph")
COMPILERS = ("expert", "inductor")


def by_pair(graph: GraphResult) -> dict[str, Any]:
    """The speedup by each pair of workers, and how blocks differ within one."""
    sides = [map(round, np.multiply(ms, 1e6)) for ms in (graph.eager_samples_ms, graph.compiled_samples_ms)]
    eager, compiled = ([list(itertools.islice(side, n)) for n in graph.blocks] for side in sides)
    ends = np.cumsum(graph.pairs)[:-1]
    parts = np.split(estimate.log_ratios(eager, compiled), ends)
    within = math.sqrt(float(np.mean([part.var(ddof=1) for part in parts])))
    return {"per_pair": [round(estimate.ratio(part), 5) for part in parts], "block_sd": round(within, 5)}


def judged(referee: Referee, task: Task, subject: Subject) -> dict[str, Any]:
    """One evaluation of a task of one subgraph, in figures."""
    name = subject if isinstance(subject, str) else "expert"
    found: dict[str, Any] = {"task": task.name, "subgraph": task.subgraphs[0].name, "subject": name}
    begun = time.monotonic()
    try:
        evaluation = referee.evaluate(task, subject)
    except PassagentError as error:
        return found | {"status": "failed", "error": str(error)}
    [graph] = evaluation.graphs
    found |= {"status": evaluation.status, "as": evaluation.as_score, "unstable": graph.unstable}
    if graph.speedup is not None:
        found |= {"speedup": graph.speedup.e2e, "low": graph.speedup.low, "high": graph.speedup.high}
        found |= by_pair(graph)
    return found | {"error": graph.error, "seconds": round(time.monotonic() - begun, 2)}


def measured(dispatch: str, tasks: list[Task], device: str, until: float) -> list[dict[str, Any]]:
    """A/A on all tasks, then the expert and Inductor, as far as the time goes."""
    rows: list[dict[str, Any]] = []
    with Referee(EvaluatorConfig(device=device, dispatch=dispatch)) as referee:
        for task in tasks:
            if time.monotonic() < until:
                rows.append(judged(referee, task, "eager"))
        for task in tasks:
            for subject in (*expert_candidates(task, device, 1), "inductor"):
                if time.monotonic() < until:
                    rows.append(judged(referee, task, subject))  # type: ignore[arg-type]
    return rows


def lines(dispatch: str, rows: list[dict[str, Any]]) -> list[str]:
    """What is told of one way to run."""
    own = [row for row in rows if row["subject"] == "eager" and "speedup" in row]
    speedups = np.array([row["speedup"] for row in own])
    one, two = (int((abs(speedups - 1) <= most).sum()) for most in (0.01, 0.02))
    told = [f"{dispatch}: eager against itself within 1% on {one} of {len(own)}, within 2% on {two}"]
    if len(own) > 1:
        logs, inside = 100 * np.log(speedups), sum(row["low"] <= 1 <= row["high"] for row in own)
        told += [
            f"  log ratio {logs.mean():+.2f}%, sd {logs.std(ddof=1):.2f}%, 1.00 in the interval of {inside}",
            f"  {np.median([row['seconds'] for row in own]):.1f} s a subgraph (median)",
        ]
        if parts := [row for row in own if len(row.get("per_pair", ())) > 1 and "block_sd" in row]:
            pairs = 100 * np.median([np.log(row["per_pair"]).std(ddof=1) for row in parts])
            blocks = 100 * np.median([row["block_sd"] for row in parts])
            told.append(f"  sd from pair to pair {pairs:.1f}%, of blocks within one {blocks:.1f}% (medians)")
    scored = [
        {row["task"]: row["as"] for row in rows if row["subject"] == subject and row.get("as") is not None}
        for subject in COMPILERS
    ]
    for subject, of in zip(COMPILERS, scored, strict=True):
        told += [f"  {subject}: AS {with_interval(list(of.values()))}"] if of else []
    if ratios := [scored[0][task] / scored[1][task] for task in scored[0].keys() & scored[1].keys()]:
        ahead = sum(ratio > 1 for ratio in ratios)
        told.append(f"  expert / inductor: {with_interval(ratios)}, the expert ahead in {ahead}")
    return told


def with_interval(values: list[float]) -> str:
    """Geometric mean, its 95% interval by resampling, and how many."""
    mean, low, high = resampled([[math.log(value)] for value in sorted(values)])
    return f"{mean:.3f} [{low:.3f}, {high:.3f}] over {len(values)} subgraphs"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", type=Path)
    parser.add_argument("--tell", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--subgraphs", type=int, default=40)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds")
    parser.add_argument("--dispatch", nargs="+", choices=DISPATCHES, default=DISPATCHES)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.tell:
        before = [json.loads(file.read_text()) for file in args.tell]
        for dispatch in DISPATCHES:
            if rows := [row for one in before for row in one.get(dispatch, [])]:
                print(*lines(dispatch, rows), sep="\n")
        return
    tasks = first_subgraphs(args.tasks, args.subgraphs)
    data: dict[str, Any] = {}
    for dispatch in args.dispatch:
        until = time.monotonic() + args.budget / len(args.dispatch)
        data[dispatch] = measured(dispatch, tasks, args.device, until)
        path = keep("evaluator-dispatches", args.device, args.out, data)  # what is measured is kept
        print(*lines(dispatch, data[dispatch]), sep="\n", flush=True)
    print(path)


if __name__ == "__main__":
    try:
        main()
    except PassagentError as problem:
        sys.exit(f"error: {problem}")
