"""Does profiling disturb a measurement? One pass, evaluated in turn after nothing and after a deep profile.

    python benchmarks/profiled_between.py PASS_DIR TASK --device cuda [--pairs 5]

Each evaluation and each profile is a process of its own, as on the command line. Prints AS of both, and the
ratio of their geometric means with a bootstrap interval over the pairs. Raw results go to
benchmarks/results/profiled-between-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from evaluator_repeatability import keep

from passagent.sandbox.environment import describe


def ran(*words: str) -> dict[str, Any]:
    """What a command of passagent prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "passagent", *words, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pass_dir")
    parser.add_argument("task")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="the file of raw results; default: in benchmarks/results")
    given = parser.parse_args()
    where = ["--device", given.device]
    rows: list[dict[str, dict[str, float]]] = []
    for number in range(given.pairs):
        pair = {}
        for side in ("alone", "profiled") if number % 2 == 0 else ("profiled", "alone"):
            if side == "profiled":
                profile = ran("profile", given.pass_dir, given.task, "--deep", *where)
                print(f"profile: {profile['tier']}, {profile['seconds']} s, {profile['notes']}", flush=True)
            found = ran("eval", given.task, "--pass-dir", given.pass_dir, "--fresh", *where)
            pair[side] = {key: found[key] for key in ("as_score", "as_low", "as_high")}
        rows.append(pair)
        print("  ".join(f"{side} {one['as_score']:.4f}" for side, one in sorted(pair.items())), flush=True)
        write(given, rows)


def write(given: argparse.Namespace, rows: list[dict[str, dict[str, float]]]) -> None:
    """What was found so far: a machine may be taken away before the last pair."""
    logs = np.array([np.log(pair["profiled"]["as_score"] / pair["alone"]["as_score"]) for pair in rows])
    draws = np.random.default_rng(0).choice(logs, (10_000, len(logs))).mean(1)
    low, high = np.exp(np.percentile(draws, [2.5, 97.5])).tolist()
    ratio = float(np.exp(logs.mean()))
    print(
        f"AS after profiling / AS alone {ratio:.4f} ({low:.4f} to {high:.4f}), {len(rows)} pairs", flush=True
    )
    environment = describe(given.device.partition(":")[0], 1)
    data = {"environment": environment, "rows": rows, "ratio": ratio, "interval": [low, high]}
    keep("profiled-between", given.device, given.out, data)


if __name__ == "__main__":
    main()
