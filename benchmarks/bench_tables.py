"""One table of several files that `passagent bench` wrote, and what the expert gains by kind of task.

    python benchmarks/bench_tables.py benchmarks/results/bench-cuda-*.jsonl.gz

Rows are told apart by compiler and dispatch; of a task measured twice the later row counts. `common` is the
same over the tasks that all of them measured; compilers with the same dispatch are held against each other
subgraph by subgraph, end to end and in time on the device; eager's rows are an A/A. The kind of a task is the
first of KINDS of which its name has a word.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
from collections import defaultdict
from itertools import combinations
from pathlib import Path

from passagent.data.bench.results import Row
from passagent.data.bench.summary import Summary, summarise
from passagent.view.bench_table import bench_table, cell

KINDS = {
    "attention": ("scaled_dot_product", "multi_head"),
    "normalisation": ("layer_norm", "group_norm", "batch_norm", "instance_norm", "rsqrt", "normalize"),
    "softmax": ("softmax",),
    "convolution and what follows": ("conv",),
    "matrix product and what follows": ("linear", "matmul", "bmm", "einsum"),
    "pooling and resampling": ("pool", "interpolate"),
    "embedding": ("embedding",),
    "reduction": ("sum", "mean", "norm", "max", "min", "cumsum"),
    "pointwise": ("elu", "sigmoid", "tanh", "mul", "add", "sub", "div", "exp", "pow", "eq", "ge"),
}
OTHER = "views and copies"
NEAR = (0.01, 0.02, 0.05)


def read(paths: list[Path]) -> dict[tuple[str, str], dict[str, Row]]:
    """Rows with an evaluation, by (compiler, dispatch) and task."""
    found: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for path in paths:
        data = path.read_bytes()
        for text in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
            row = Row.model_validate(json.loads(text))
            if row.evaluation is not None and row.error is None:
                found[row.compiler, row.evaluation.dispatch][row.task] = row
    return found


def kind(task: str) -> str:
    """What a task is mostly about, by its name."""
    words = task.partition("_")[2]
    return next((name for name, parts in KINDS.items() if any(part in words for part in parts)), OTHER)


def line(compiler: str, rows: list[Row], asked: int) -> Summary:
    """A line of the table."""
    return summarise(compiler, [row.evaluation for row in rows if row.evaluation is not None], asked)


def beside(a: dict[str, Row], b: dict[str, Row]) -> str:
    """How much faster `a` is than `b` where both have a speedup, and on how many subgraphs slower."""
    speeds = [
        {
            (task, g.name): g.speedup
            for task, row in rows.items()
            if row.evaluation
            for g in row.evaluation.graphs
        }
        for rows in (a, b)
    ]
    both = [(one, other) for key, one in speeds[0].items() if one and (other := speeds[1].get(key))]
    told = []
    for what in ("e2e", "device"):
        ratios = [
            mine / theirs for x, y in both if (mine := getattr(x, what)) and (theirs := getattr(y, what))
        ]
        slower = sum(ratio < 1 for ratio in ratios)
        told.append(f"{what} {statistics.geometric_mean(ratios):.3f} (under 1 on {slower} of {len(ratios)})")
    return ", ".join(told)


def against_itself(rows: dict[str, Row]) -> str:
    """Of eager judged in a candidate's place, where 1 is the truth: how many speedups lie how near."""
    logs = [
        abs(math.log(g.speedup.e2e))
        for row in rows.values()
        if row.evaluation
        for g in row.evaluation.graphs
        if g.speedup
    ]
    shares = [f"{sum(one <= limit for one in logs) / len(logs):.1%} within {limit:.0%}" for limit in NEAR]
    spread = math.sqrt(statistics.fmean(one * one for one in logs))
    return f"{len(logs)} subgraphs: {', '.join(shares)}, root mean square of the log {spread:.2%}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--asked", type=int, help="tasks that were to be measured")
    args = parser.parse_args()
    found = read(args.files)
    print(
        bench_table(
            [line(name, [*rows.values()], args.asked or len(rows)) for (name, _), rows in found.items()]
        ).markdown()
    )
    common = set.intersection(*(set(rows) for rows in found.values()))
    if common and any(set(rows) != common for rows in found.values()):
        print(f"common: {len(common)} tasks\n")
        chosen = [(name, [rows[task] for task in sorted(common)]) for (name, _), rows in found.items()]
        print(bench_table([line(name, rows, len(common)) for name, rows in chosen]).markdown())
    for (name, dispatch), rows in found.items():
        if name == "eager":
            print(f"eager against itself, {dispatch}, {against_itself(rows)}\n")
    for (a, dispatch), (b, other) in combinations(found, 2):
        if dispatch == other:
            print(f"{a} / {b}, {dispatch}: {beside(found[a, dispatch], found[b, dispatch])}\n")
    for (compiler, dispatch), by_task in found.items():
        kinds: dict[str, list[Row]] = defaultdict(list)
        for task, row in by_task.items():
            kinds[kind(task)].append(row)
        print(
            f"{compiler}, {dispatch}, by kind of task\n\n| kind | tasks | G-mean | AS |\n|---|---:|---:|---:|"
        )
        for name in [*KINDS, OTHER]:
            if kinds[name]:
                one = line(compiler, kinds[name], len(kinds[name]))
                print(f"| {name} | {one.tasks} | {cell(one, 'gmean_speedup')} | {cell(one, 'as_score')} |")
        print()


if __name__ == "__main__":
    main()
