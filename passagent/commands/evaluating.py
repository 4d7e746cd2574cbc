"""`passagent eval` and `passagent tasks check`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from passagent.config import load_config
from passagent.errors import PassagentError
from passagent.evaluator.result import Candidate


def evaluate(
    task_path: str,
    pass_dir: str | None,
    preset: str | None,
    settings: dict[str, object],
    as_json: bool,
) -> None:
    """Judge a pass_dir (default: the task's own) and print the evaluation. Raises PassagentError."""
    from passagent.evaluator import evaluate as judge
    from passagent.report.evaluation import evaluation_text
    from passagent.tasks import load_task

    task = load_task(task_path)
    config = load_config(preset, settings)
    candidate = Candidate.from_dir(pass_dir or Path(task_path) / "pass_dir")
    evaluation = judge(task, candidate, config.evaluator)
    print(evaluation.model_dump_json() if as_json else evaluation_text(evaluation))


def check_tasks(path: str, device: str, as_json: bool) -> None:
    """Print what is wrong with a task's subgraphs. Raises PassagentError if any is not in order."""
    from passagent.report.text import table
    from passagent.tasks.check import check_task

    results = check_task(path, device)
    bad = [result for result in results if not result.ok]
    if as_json:
        print(
            json.dumps({"task": path, "ok": not bad, "graphs": [asdict(r) | {"ok": r.ok} for r in results]})
        )
    else:
        rows = [
            [r.name, *("yes" if flag else "no" for flag in (r.runnable, r.serialisable, r.analysable))]
            for r in results
        ]
        print(table(["graph", "runnable", "serialisable", "analysable"], rows))
        for result in bad:
            for problem in result.problems:
                print(problem)
    if bad:
        raise PassagentError(
            f"{path}: {len(bad)} of {len(results)} subgraphs are not in order: {bad[0].name}"
        )
