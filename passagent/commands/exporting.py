"""`passagent export`, and `check`, `stats` and `show`, which read what it wrote: one file for the four."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from passagent.dataset.checking import check_directory
from passagent.dataset.making import Request, evaluation_tasks, make, reading_stores
from passagent.dataset.writing import provenance, read_manifest, texts
from passagent.errors import UsageError
from passagent.report.export_summary import stats_text, summary_text
from passagent.report.text import console, counted


def export(request: Request, as_json: bool) -> None:
    """Write the data set. Raises UsageError, and PassagentError for what must not go out."""
    summary = make(request, shlex.join(["passagent", *sys.argv[1:]]))
    print(
        json.dumps({"out": request.out, **vars(summary)}) if as_json else summary_text(request.out, summary)
    )


def check(directory: str, against: list[str], runs_dirs: list[str], as_json: bool) -> None:
    """Hold an export against its provenance, evaluation tasks and its databases. Raises PassagentError."""
    apart = evaluation_tasks(against)
    with reading_stores(runs_dirs) as stores:
        rows = check_directory(Path(directory), apart, stores)
    with_what = ["hashes", "secrets", *(["overlap"] if against else []), *(["database"] if runs_dirs else [])]
    if as_json:
        print(json.dumps({"directory": directory, "rows": rows, "checked": with_what}))
    else:
        print(f"{directory}: {counted(rows, 'row')} in order ({', '.join(with_what)})")


def stats(directory: str, as_json: bool) -> None:
    """Print what an export holds. Raises UsageError."""
    manifest = read_manifest(Path(directory))
    print(json.dumps(manifest) if as_json else stats_text(directory, manifest, provenance(Path(directory))))


def show(directory: str, number: int, as_json: bool) -> None:
    """Print row `number` (from 1) as a person reads it. Raises UsageError."""
    from passagent.report.exported import print_row

    path = Path(directory)
    manifest = read_manifest(path)
    found = _nth(texts(path, provenance(path)), number)
    if found is None or found[1] is None:
        raise UsageError(f"{directory}: has no row {number}; it has 1 to {manifest['rows']}")
    row, text = found
    if as_json:
        print(json.dumps({"provenance": row, "row": json.loads(text)}))
    else:
        print_row(row, json.loads(text), console(soft_wrap=True))


def _nth(rows: Iterable[Any], number: int) -> Any:
    return next(islice(rows, number - 1, None), None) if number > 0 else None
