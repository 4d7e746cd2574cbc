"""What special values cost: seconds of an evaluation with them and without, first and later candidates.

    python benchmarks/special_values_cost.py TASKS... --device cuda --most-s 300

Each task is cut to its first subgraph of each dtype, two at most. Two of the expert's candidates are judged
one after the other as in a search, by a referee that draws special values and by one that does not, in turn.
A pair of referees serves all tasks; a first task that warms them does not count. Printed: the ratio of the
seconds, as a median over the tasks, and of their sums. Kernels are built before.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from before_after import cut_task
from evaluator_repeatability import expert_candidates

from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError
from passagent.evaluator.judging.referee import Referee
from passagent.sandbox.environment import describe
from passagent.tasks import load_task

BAR = 0.5
"""The score to beat: all are above it, and timed as in a search."""


def main() -> None:
    """Measure, print, and keep every row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dispatch", default="direct")
    parser.add_argument(
        "--most-s", type=float, default=math.inf, help="begin no further task after this long"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = EvaluatorConfig(device=args.device, dispatch=args.dispatch)
        sides = {
            special: stack.enter_context(Referee(config.model_copy(update={"special_values": special})))
            for special in (True, False)
        }
        for number, path in enumerate(args.tasks):
            if time.monotonic() - began > args.most_s:
                break
            task = load_task(cut_task(path, place / path.name))
            candidates = expert_candidates(task, args.device, 2)
            for candidate in candidates:
                sides[True].outline(task, candidate)  # its kernels are built for both
            for special in (True, False) if number % 2 else (False, True):
                for turn, candidate in enumerate(candidates):
                    row = {"task": path.name, "special": special, "turn": turn, "counts": number > 0}
                    try:
                        evaluation = sides[special].evaluate(task, candidate, BAR)
                        row |= {"seconds": evaluation.seconds, "status": evaluation.status}
                    except PassagentError as error:
                        row |= {"seconds": None, "status": str(error)}
                    rows.append(row)
                    print(row, flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps({"machine": describe(args.device, 1), "rows": rows}, indent=1))
    for turn, name in enumerate(("first", "later")):
        print(summary(name, [row for row in rows if row["counts"] and row["turn"] == turn]))


def summary(name: str, rows: list[dict[str, Any]]) -> str:
    """The seconds of evaluations that ended alike on both sides, in a line."""
    by_task: dict[str, dict[bool, dict[str, Any]]] = {}
    for row in rows:
        by_task.setdefault(row["task"], {})[row["special"]] = row
    pairs = [
        (both[True]["seconds"], both[False]["seconds"])
        for both in by_task.values()
        if len(both) == 2 and all(row["status"] == "ok" for row in both.values())
    ]
    if not pairs:
        return f"{name}: none"
    median = statistics.median(one / other for one, other in pairs)
    whole = sum(one for one, _ in pairs) / sum(other for _, other in pairs)
    return f"{name} of {len(pairs)} tasks: median {median:.3f}, of the sums {whole:.3f}"


if __name__ == "__main__":
    main()
