"""`passagent export`: a data set out of a database, and `check`, `stats` and `show` of one."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from passagent.dataset import lengths, preferences
from passagent.dataset.building import build
from passagent.dataset.card import card
from passagent.dataset.checking import check_directory
from passagent.dataset.columns import read_episodes
from passagent.dataset.formats import find_format
from passagent.dataset.formats.parquet import check_pyarrow, write_parquet
from passagent.dataset.overlap import EvaluationTasks
from passagent.dataset.selection import Chosen, Selection, failures, select
from passagent.dataset.writing import CARD, Writer, new_directory, provenance, read_manifest, texts
from passagent.errors import UsageError
from passagent.report.export import stats_text, summary_text
from passagent.report.text import console, counted
from passagent.store import Store
from passagent.store.database import DATABASE
from passagent.tasks import load_task
from passagent.tasks.tasklist import find_tasks

FAILURES = "failures_"
"""What the names of their files begin with."""


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    form: str
    out: str
    selection: Selection
    runs_dir: str = "runs"
    against: list[str] = field(default_factory=list)
    with_failures: bool = False
    with_pairs: bool = False
    parquet: bool = False
    tokenizer: str | None = None


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
    form = find_format(request.form)
    if request.parquet and not form.is_table:
        raise UsageError(f"--parquet: rows of {form.name} are no table")
    if request.parquet:
        check_pyarrow()
    if request.with_pairs and form.name != "trl":
        raise UsageError("--pairs is for --format trl: other trainers have no common form for preferences")
    count, counted_by = lengths.counter(request.tokenizer)
    apart = _evaluation_tasks(request.against)
    with Store.open(request.runs_dir, create=False) as store, store.reading():
        episodes = read_episodes(store)
        chosen = select(episodes, request.selection)
        wrong = failures(episodes) if request.with_failures else []
        if wrong:  # each is in one of the two
            chosen = [one for one in chosen if one.columns["as_score"] is not None]
        if not chosen:
            raise UsageError(
                f"{request.runs_dir}: none of its {counted(len(episodes), 'finished episode')} is chosen; "
                "see what there is with passagent runs, and loosen --keep"
            )
        apart.check(_origin(one) for one in [*chosen, *wrong])
        with new_directory(Path(request.out)) as directory:
            writer = Writer(directory, form, count, counted_by)
            for example in build(store, chosen):
                writer.add(example)
            for example in build(store, wrong):
                writer.add(example, FAILURES)
            if request.with_pairs:
                for pair in preferences.pairs(chosen, episodes):
                    better, worse = build(store, pair)
                    if row := preferences.row(better, worse):
                        writer.add_row(better, row, preferences.FILE)
            asked = {
                "command": shlex.join(["passagent", *sys.argv[1:]]),
                "selection": request.selection.words
                | ({"against": request.against} if request.against else {}),
                "parquet": request.parquet,
            }
            summary = writer.finish(asked)
            if request.parquet:
                for name in summary.files:
                    write_parquet(directory / name, (directory / name).with_suffix(".parquet"))
            tasks = Counter(one.columns["task"] for one in chosen)
            (directory / CARD).write_text(card(form, summary, asked, tasks), encoding="utf-8")
    print(
        json.dumps({"out": request.out, **vars(summary)}) if as_json else summary_text(request.out, summary)
    )


def _evaluation_tasks(words: list[str]) -> EvaluationTasks:
    return EvaluationTasks(load_task(path) for path in (find_tasks(words) if words else []))


def _origin(one: Chosen) -> dict[str, Any]:
    return {
        "task": one.columns["task"],
        "task_key": one.columns["task_key"],
        "operators": one.columns["operators"].split(),
        "subgraphs": one.told.subgraphs,
    }


def check(directory: str, against: list[str], runs_dir: str | None, as_json: bool) -> None:
    """Hold an export against its provenance, evaluation tasks and its database. Raises PassagentError."""
    apart = _evaluation_tasks(against)
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
