"""What the present estimator makes of the raw samples that evaluator_repeatability.py kept.

    python benchmarks/estimate_again.py benchmarks/results/evaluator-repeatability-*.json.gz --share 0.5

A/A and planted measurements together (what was planted is taken off), and the repeats, at the pace of a
task's first one; beside each repeated task the fastest and the slowest repeat's eager time on its calmest
tenth of blocks. `--share`: of each measurement only so many blocks, drawn at random, `--draws` times.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from passagent.evaluator.timing.estimate import line, log_ratios, ratio, typical_ns

FEWEST = 12
"""Blocks that are drawn, at least."""


def blocks(graph: dict[str, Any], side: str) -> list[list[int]]:
    """The samples of a side, block by block, ns."""
    ends = np.cumsum(graph["blocks"])[:-1]
    return [list(block) for block in np.split(np.array(graph[side]), ends)]


def estimate(
    graph: dict[str, Any], share: float, random: np.random.Generator, pace_ns: float | None = None
) -> float:
    """log(eager / compiled) of a share of a measurement's blocks, at the pace if one is given."""
    eager, compiled = blocks(graph, "eager_ns"), blocks(graph, "compiled_ns")
    count = max(min(FEWEST, len(eager)), round(share * len(eager)))
    chosen = random.permutation(len(eager))[:count] if share < 1 else range(len(eager))
    eager, compiled = [eager[i] for i in chosen], [compiled[i] for i in chosen]
    logs = log_ratios(eager, compiled)
    return math.log(ratio(logs, line(logs, eager, compiled, pace_ns)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--draws", type=int, default=20)
    args = parser.parse_args()
    for path in args.files:
        raw = path.read_bytes()
        print(path.name)
        tell(json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw), args.share, args.draws)


def tell(data: dict[str, Any], share: float, draws: int) -> None:
    """Print what one file comes to."""
    random = np.random.default_rng(0)
    errors = [
        estimate(graph, share, random) + math.log1p(record["planted"])
        for _ in range(draws if share < 1 else 1)
        for record in data["pairs"]
        for graph in record.get("graphs", [])
        if graph["speedup"]
    ]
    within = sum(abs(math.expm1(error)) <= 0.01 for error in errors) / len(errors)
    print(f"A/A and planted: {len(errors)}, within 1% {within:.0%}, sd {statistics.stdev(errors):.2%}")
    scores, calmest = defaultdict(list), defaultdict(list)
    paces: dict[tuple[str, str], float] = {}
    for record in data["repeats"]:
        graphs = [graph for graph in record.get("graphs", []) if graph["speedup"]]
        if graphs:
            for graph in graphs:
                paces.setdefault((record["task"], graph["name"]), typical_ns(blocks(graph, "eager_ns")))
            logs = [estimate(g, share, random, paces[record["task"], g["name"]]) for g in graphs]
            scores[record["task"]].append(statistics.mean(logs))
            first = [float(np.median(block)) for block in blocks(graphs[0], "eager_ns")]
            calmest[record["task"]].append(float(np.quantile(first, 0.1)))
    spreads = {task: statistics.stdev(logs) for task, logs in scores.items() if len(logs) > 1}
    for task, spread in spreads.items():
        low, high = min(calmest[task]) / 1e3, max(calmest[task]) / 1e3
        print(
            f"{task[:40]:40} {len(scores[task])} repeats, sd {spread:.2%}, eager {low:.1f} to {high:.1f} us"
        )
    print(f"pooled {math.sqrt(statistics.mean(s * s for s in spreads.values())):.2%}")


if __name__ == "__main__":
    main()
