"""`passagent similar`: what a search of a task would take from the library, and why."""

from __future__ import annotations

import json
from typing import Any

from passagent.config import load_config
from passagent.report.text import interval, table
from passagent.search.run_memory import used_for
from passagent.tasks import load_task


def similar(path: str, preset: str | None, settings: dict[str, Any], as_json: bool) -> None:
    """Print it. Raises UsageError, and PassagentError for a task whose graph cannot be read."""
    config, task = load_config(preset, settings), load_task(path)
    found = used_for(task, config).data()
    if as_json:
        print(json.dumps(found))
        return
    print(f"{task.name}, on {found['target']}; library: {found['library'] or 'off'}")
    rows = [["seed", *_cells(found["seed"])]] if found["seed"] else []
    rows += [["example", *_cells(one)] for one in found["examples"]]
    if rows:
        print(table(["use", "why", "operators", ">AS [95%]", "source"], rows, wrap=["why"]))
    else:
        print(f"no exemplar serves it; knowledge: {', '.join(found['knowledge']) or 'nothing'}")
    if found["excluded"]:
        print("the task is excluded: nothing of it is taken, and nothing of it is stored")


def _cells(one: dict[str, Any]) -> list[str]:
    score = (
        interval(one["as_score"], one["as_low"], one["as_high"]) if one["as_score"] else "not measured here"
    )
    return [one["why"], ", ".join(one["operators"]), score, f"{one['source']}: {one['task']}"]
