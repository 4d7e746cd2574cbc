"""`passagent tasks import`: problems of other suites as tasks."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from passagent.errors import PassagentError

if TYPE_CHECKING:
    from passagent.suites.import_problems import How
    from passagent.suites.outcomes import Row


def import_tasks(
    suite: str, place: str, levels: list[int], out: str, how: How, most_refused: float, as_json: bool
) -> None:
    """Import a suite's problems into `out`, and print what came of them.

    Raises PassagentError where a larger share than `most_refused` became no task, UsageError.
    """
    from passagent.suites.import_problems import import_problems
    from passagent.suites.problems import find_problems

    problems = find_problems(suite, place, levels)
    rows = []
    for row in import_problems(problems, Path(out), how):
        rows.append(row)
        print(_told(row, len(rows), len(problems)), file=sys.stderr, flush=True)
    refused = [row for row in rows if row.reason is not None]
    if as_json:
        print(json.dumps({"path": out, "problems": [row.model_dump() for row in rows]}))
    else:
        print(_table(rows))
        print(f"wrote {sum(len(row.tasks) for row in rows)} tasks below {out}")
    if len(refused) > most_refused * len(rows):
        share = f"{len(refused)} of {len(rows)}"
        raise PassagentError(
            f"{share} problems became no task, such as {refused[0].name}: {refused[0].message}"
        )


def _told(row: Row, number: int, count: int) -> str:
    """One line about a problem, for people who wait."""
    cut = "".join(f", {name} cut from {was} to {now}" for name, (was, now) in row.cut.items())
    left = f", {row.left_out} calls left out" if row.left_out else ""
    weak = f" ({', '.join(row.weak)})" if row.weak else ""
    done = f"{row.operators} operators{cut}{left}{weak}"
    return f"{number}/{count} {row.name}: " + (f"{row.reason}: {row.message}" if row.reason else done)


def _table(rows: list[Row]) -> str:
    from passagent.report.text import table

    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    lines = []
    for name, own in groups.items():
        reasons = Counter(row.reason for row in own if row.reason)
        exact = sum(row.is_exact for row in own if not row.reason)
        shown = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "none"
        made = len(own) - sum(reasons.values())
        lines.append(
            [name, str(len(own)), str(made), str(exact), str(sum(len(row.tasks) for row in own)), shown]
        )
    return table(
        ["group", ">problems", ">converted", ">exact", ">tasks", "refused"],
        lines,
        drop=["exact"],
        wrap=["refused"],
    )
