"""Inductor's own code as the candidate on the special values: what it is refused for is counted.

    python benchmarks/special_values_fairness.py TASK... --out FILE.json

Each task is a directory, or one of tasks. Timing is cut to the least, as nothing is read of it. A refusal is
either a fault of Inductor's or of the judgement: explain each in docs/evaluator.md.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from passagent.config import EvaluatorConfig
from passagent.confine.environment import device_name, evaluator_version
from passagent.errors import PassagentError
from passagent.evaluator.judging.referee import Referee
from passagent.tasks.reader import load_task


def main() -> None:
    """Evaluate each task, print a line for each subgraph that is not right, and keep all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiler", default="inductor")
    parser.add_argument("--most-s", type=float, default=3600.0, help="begin no further task after this long")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    config = EvaluatorConfig(
        device=args.device, warmups=0, trials=2, max_trials=2, budget_s=0.01, timeout_s=300.0
    )
    paths = [one for path in args.tasks for one in ([path] if is_task(path) else sorted(path.iterdir()))]
    rows, until = [], time.monotonic() + args.most_s
    with Referee(config) as referee:
        for path in paths:
            if time.monotonic() > until:
                break
            try:
                graphs = referee.evaluate(load_task(path), args.compiler).graphs
            except PassagentError as error:
                rows.append({"task": path.name, "status": "task_error", "error": str(error)})
                continue
            for graph in graphs:
                kept = {"dtype": graph.dtype, "status": graph.status, "error": graph.error}
                rows.append({"task": path.name, "subgraph": graph.name, **kept, "narrowed": graph.narrowed})
            for row in rows[-len(graphs) :]:
                if row["status"] != "ok":
                    print(f"{row['task']} {row['dtype']}: {row['status']}: {row['error']}", flush=True)
            if args.out is not None:
                head = {"device": device_name(args.device), "evaluator": evaluator_version()}
                args.out.write_text(json.dumps({**head, "rows": rows}, indent=1))
    statuses = [row["status"] for row in rows]
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    print(f"{len({row['task'] for row in rows})} tasks, {len(rows)} subgraphs: {counts}")


def is_task(path: Path) -> bool:
    """Whether a directory is a task, or a subgraph, and not one of tasks."""
    return (path / "graph_list.txt").exists() or (path / "model.py").exists()


if __name__ == "__main__":
    main()
