"""`passagent tasks list`: the example tasks."""

from __future__ import annotations

import json

from passagent.report.text import table
from passagent.tasks import load_task
from passagent.tasks.examples import PREFIX, examples


def list_tasks(as_json: bool) -> None:
    """Print the example tasks: name, operators, subgraphs and their dtypes."""
    found = {f"{PREFIX}{name}": load_task(path) for name, path in examples().items()}
    if as_json:
        shown = [
            {
                "task": name,
                "path": str(task.path),
                "operators": task.operators,
                "subgraphs": len(task.subgraphs),
            }
            for name, task in found.items()
        ]
        print(json.dumps({"tasks": shown}))
        return
    rows = [[name, str(len(task.subgraphs)), ", ".join(task.operators)] for name, task in found.items()]
    print(table(["task", ">subgraphs", "operators"], rows, indent=""))
    print(f"run one with: passagent run {PREFIX}NAME")
