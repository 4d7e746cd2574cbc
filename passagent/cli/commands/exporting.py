"""`passagent export`, and `check`, which reads what it or `tasks build` wrote."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from passagent.data.export.checks import check_directory
from passagent.data.export.making import Request, evaluation_tasks, make, reading_stores
from passagent.data.pipeline.inspection import RECORD
from passagent.errors import PassagentError, UsageError
from passagent.view.export_summary import summary_text
from passagent.view.text import counted


def export(request: Request, as_json: bool) -> None:
    """Write the data set. Raises UsageError, and PassagentError for what must not go out."""
    summary = make(request, shlex.join(["passagent", *sys.argv[1:]]))
    print(
        json.dumps({"out": request.out, **vars(summary)}) if as_json else summary_text(request.out, summary)
    )


def check(directory: str, against: list[str], runs_dirs: list[str], as_json: bool) -> None:
    """Compare what `export` or `tasks build` wrote with its record, evaluation tasks and its databases.

    Raises PassagentError where something is not in order, UsageError for another directory.
    """
    if (Path(directory) / RECORD).is_file():
        _check_built(directory, against, runs_dirs, as_json)
        return
    apart = evaluation_tasks(against)
    with reading_stores(runs_dirs) as stores:
        rows = check_directory(Path(directory), apart, stores)
    with_what = ["hashes", "secrets", *(["overlap"] if against else []), *(["database"] if runs_dirs else [])]
    if as_json:
        print(json.dumps({"directory": directory, "rows": rows, "checked": with_what}))
    else:
        print(f"{directory}: {counted(rows, 'row')} in order ({', '.join(with_what)})")


def _check_built(directory: str, against: list[str], runs_dirs: list[str], as_json: bool) -> None:
    """Check tasks that `tasks build` wrote: as recorded, and nothing of evaluation in training."""
    from passagent.data.pipeline import inspection

    if runs_dirs:
        raise UsageError(f"{directory}: tasks build made it of no runs; leave out --runs-dir")
    problems = inspection.check(Path(directory))
    problems += inspection.leaks([directory], against) if against else []
    if as_json:
        print(json.dumps({"directory": directory, "ok": not problems, "problems": problems}))
    else:
        print("\n".join(problems) or f"{directory}: in order; training and evaluation share nothing")
    if problems:
        raise PassagentError(f"{directory}: {counted(len(problems), 'problem')}: {problems[0]}")
