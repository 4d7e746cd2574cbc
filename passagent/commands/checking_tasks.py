"""`passagent tasks check`: whether a task's subgraphs are in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from passagent.confine.environment import import_path
from passagent.errors import MachineFault, PassagentError, TaskError
from passagent.machine_memory import memory_kills
from passagent.report.text import table
from passagent.tasks.examples import locate
from passagent.tasks.reader import subgraph_places


def check_tasks(path: str, device: str, as_json: bool) -> None:
    """Print what is wrong with a task's subgraphs. Raises PassagentError if any is not in order."""
    results = _check_beside(path, device)
    bad = [result for result in results if not result["ok"]]
    if as_json:
        print(json.dumps({"task": path, "ok": not bad, "graphs": results}))
    else:
        columns = ["runnable", "serialisable", "analysable"]
        rows = [[r["name"], *("yes" if r[column] else "no" for column in columns)] for r in results]
        print(table(["graph", *columns], rows, drop=["analysable", "serialisable"]))
        for result in bad:
            for problem in result["problems"]:
                print(problem)
        for result in results:
            for weakness in result["weak"]:
                print(f"{result['name']}: a result on it says little: {weakness}")
    if bad:
        raise PassagentError(
            f"{path}: {len(bad)} of {len(results)} subgraphs are not in order: {bad[0]['name']}"
        )


def _check_beside(path: str, device: str) -> list[dict[str, Any]]:
    """The CheckResult of each subgraph as plain data, and `ok`, from a process beside this one.

    Raises TaskError for a subgraph that ends that process, as one does that takes all memory.
    """
    root, kills = locate(path), memory_kills()
    places = subgraph_places(root)
    command = [sys.executable, "-m", "passagent.tasks.constraints", str(root), device]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | import_path(), check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if found and "fault" in found[-1]:
        raise MachineFault(found[-1]["fault"])
    if len(found) < len(places):
        too_large = "needs more memory than there is; use a smaller task"
        ended = too_large if memory_kills() > kills else "ends the process that runs it"
        raise TaskError(f"{places[len(found)][0]}: {ended}")
    return found
