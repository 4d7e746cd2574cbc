"""How many episodes a stop at the speed of light saves, and what of the gain it keeps, on recorded runs.

    passagent run TASK --iters 6 --islands 2 --runs-dir PLACE     # for each task, without a stop
    python benchmarks/sol_stop.py PLACE [--margin 0.1] [--tasks 20]

The rule of `--until sol` is applied to the episodes of each finished run in PLACE, the first `--tasks` of
them, in their order: an island with a candidate within `--margin` of the speed of light makes no further
episode, and the run ends when all rest. What a resting island leaves to others is not made here, so the
episodes are those of the islands that are not there yet. Gains are ln(AS) of the best candidate, 0 where none
is better than eager. A diagnosis is made again from each evaluation, with this machine's rates. `--join FILE`
takes the tasks of an earlier result in, too. Raw results go to
benchmarks/results/sol-stop-<device>-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluator_repeatability import keep

from passagent.evaluator.hardware.machine import Machine, measure_machine
from passagent.evaluator.result import Evaluation
from passagent.experience.diagnosis import diagnose
from passagent.sandbox.environment import describe
from passagent.store import Store, evaluations, nodes, runs
from passagent.store.runs import Run


def replayed(store: Store, run: Run, machine: Machine, margin: float) -> dict[str, Any]:
    """The run's episodes and gain, with the rule and without it."""
    rows = []
    for node in nodes.of_run(store, run.id):
        if node.number < 1 or node.evaluation_id is None:
            continue
        found = Evaluation.model_validate(evaluations.get_evaluation(store, node.evaluation_id))
        rows.append((node.number, node.island, node.as_score or 0.0, diagnose(found, machine).headroom))
    rows.sort(key=lambda row: row[0])
    resting: set[int] = set()
    spent, best, whole, lowest = 0, 1.0, 1.0, math.inf
    for number in range(1, run.iters + 1):
        island = (number - 1) % run.islands
        of_episode = [row for row in rows if row[0] == number]
        whole = max([whole, *(score for _, _, score, _ in of_episode)])
        if island in resting:
            continue
        spent += 1
        best = max([best, *(score for _, _, score, _ in of_episode)])
        headrooms = [headroom for *_, headroom in of_episode if headroom is not None]
        lowest = min([lowest, *headrooms])
        if any(headroom <= 1 + margin for headroom in headrooms):
            resting.add(island)
    return {
        "task": run.task,
        "episodes": run.iters,
        "spent": spent,
        "log_as": round(math.log(whole), 4),
        "log_as_kept": round(math.log(best), 4),
        "least_headroom": None if lowest == math.inf else round(lowest, 3),
        "candidates": [list(row) for row in rows],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("place", type=Path)
    parser.add_argument("--margin", type=float, nargs="*", default=[0.1, 0.5, 1.0, 2.0, 3.0])
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--join", type=Path, help="an earlier result, of other tasks and the same margins")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = []
    earlier = json.loads(args.join.read_text())["results"] if args.join else []
    before = {one["margin"]: one["rows"] for one in earlier}
    with Store.open(args.place, create=False) as store:
        done = [run for run in runs.list_runs(store) if run.state == "finished"][-args.tasks :]
        device = done[0].device
        machine = measure_machine(device)
        for margin in args.margin:
            rows = before.get(margin, []) + [replayed(store, run, machine, margin) for run in done]
            rows = rows[: args.tasks]
            episodes, spent = sum(row["episodes"] for row in rows), sum(row["spent"] for row in rows)
            gain, kept = sum(row["log_as"] for row in rows), sum(row["log_as_kept"] for row in rows)
            figures = {
                "margin": margin,
                "tasks": len(rows),
                "episodes_share": round(spent / episodes, 3),
                "gain_share": round(kept / gain, 3) if gain else None,
            }
            print(figures, flush=True)
            results.append(figures | {"rows": rows})
    data = {"environment": describe(device, 1), "machine": asdict(machine), "results": results}
    print(keep("sol-stop", device, args.out, data))


if __name__ == "__main__":
    main()
