"""`passagent export`, and `check`, which reads what it or `tasks build` wrote."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from passagent.dataset.checking import check_directory
from passagent.dataset.making import Request, evaluation_tasks, make
from passagent.errors import PassagentError, UsageError
from passagent.pipeline.task_directories import RECORD
from passagent.report.export_summary import summary_text
from passagent.report.text import counted
from passagent.store import Store
from passagent.store.database import DATABASE


def runs_dir_of(runs_dir: str, database: str | None) -> str:
    """The runs directory that is meant. Raises UsageError."""
    if database is None:
        return runs_dir
    path = Path(database)
    if path.name != DATABASE:
        raise UsageError(f"{path}: a database of passagent is a file named {DATABASE}")
    return str(path.parent)


def export(request: Request, as_json: bool) -> None:
    """Write the data set. Raises UsageError, and PassagentError for what must not go out."""
    summary = make(request, shlex.join(["passagent", *sys.argv[1:]]))
    print(
        json.dumps({"out": request.out, **vars(summary)}) if as_json else summary_text(request.out, summary)
    )


def check(directory: str, against: list[str], runs_dir: str | None, as_json: bool) -> None:
    """Compare what `export` or `tasks build` wrote with its record, evaluation tasks and its database.

    Raises PassagentError where something is not in order, UsageError for another directory.
    """
    if (Path(directory) / RECORD).is_file():
        _check_built(directory, against, runs_dir, as_json)
        return
    apart = evaluation_tasks(against)
    if runs_dir is None:
        rows = check_directory(Path(directory), apart, None)
    else:
        with Store.open(runs_dir, create=False) as store, store.reading():
            rows = check_directory(Path(directory), apart, store)
    with_what = ["hashes", "secrets", *(["overlap"] if against else []), *(["database"] if runs_dir else [])]
    if as_json:
        print(json.dumps({"directory": directory, "rows": rows, "checked": with_what}))
    else:
        print(f"{directory}: {counted(rows, 'row')} in order ({', '.join(with_what)})")


def _check_built(directory: str, against: list[str], runs_dir: str | None, as_json: bool) -> None:
    """Check tasks that `tasks build` wrote: as recorded, and nothing of evaluation in training."""
    from passagent.pipeline import inspection

    if runs_dir is not None:
        raise UsageError(f"{directory}: tasks build made it of no runs; leave out --runs-dir and --db")
    problems = inspection.check(Path(directory))
    problems += inspection.leaks([directory], against) if against else []
    if as_json:
        print(json.dumps({"directory": directory, "ok": not problems, "problems": problems}))
    else:
        print("\n".join(problems) or f"{directory}: in order; training and evaluation share nothing")
    if problems:
        raise PassagentError(f"{directory}: {counted(len(problems), 'problem')}: {problems[0]}")
