"""`passagent expert coverage`: what the built-in model can do for tasks."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from passagent.errors import PassagentError

if TYPE_CHECKING:
    from passagent.expert.coverage import TaskCoverage


def coverage(tasks: list[str], target: str, as_json: bool) -> None:
    """Print what the expert lowers of each task. Raises PassagentError if one cannot be read."""
    from passagent.expert.coverage import cover, totals
    from passagent.tasks.tasklist import find_tasks

    paths = find_tasks(tasks)
    found = []
    for number, path in enumerate(paths, start=1):
        result = cover(path, target)
        found.append(result)
        if not as_json:
            _print_task(result, number, len(paths))
    if as_json:
        shown = {
            "target": target,
            "tasks": [asdict(t) | {"covered": t.covered} for t in found],
            "operators_left": [asdict(t) for t in totals(found)],
            "share_covered": sum(t.covered for t in found) / len(found),
        }
        print(json.dumps(shown))
    else:
        _print_totals(found)
    broken = [t for t in found if t.error]
    if broken:
        first = broken[0]
        raise PassagentError(f"{len(broken)} of {len(found)} tasks could not be read, such as {first.error}")


def _print_task(task: TaskCoverage, number: int, count: int) -> None:
    if task.error:
        print(f"{number}/{count} {task.task}: not read: {task.error}", file=sys.stderr)
        return
    how = f"kernels in {task.kernels} of {task.graphs} graphs"
    how += f", views alone in {task.views}" if task.views else ""
    print(f"{number}/{count} {task.task}: {how}: {'; '.join(task.regions) or 'nothing'}", flush=True)
    for left in task.left:
        print(f"    stays with eager: {left.operator} ({left.count}): {left.why}")


def _print_totals(tasks: list[TaskCoverage]) -> None:
    from passagent.expert.coverage import totals
    from passagent.report.text import table

    rows = [[t.operator, str(t.tasks), str(t.count), t.why] for t in totals(tasks)]
    if rows:
        print()
        print(table(["stays with eager", "tasks", "times", "why"], rows, wrap=["why"]))
    covered, kernels = sum(t.covered for t in tasks), sum(t.covered and not t.views for t in tasks)
    print(
        f"\n{covered} of {len(tasks)} tasks covered ({100 * covered / len(tasks):.1f}%), "
        f"{kernels} of them by a kernel in every graph"
    )
