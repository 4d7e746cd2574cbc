"""A data set out of databases: chosen, checked at the door, written, with a card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from passagent.data.dataset import lengths, preferences
from passagent.data.dataset.building import build
from passagent.data.dataset.card import card
from passagent.data.dataset.columns import read_episodes
from passagent.data.dataset.formats import find_format
from passagent.data.dataset.formats.parquet import check_pyarrow, write_parquet
from passagent.data.dataset.overlap import EvaluationTasks
from passagent.data.dataset.selection import Chosen, Selection, failures, select
from passagent.data.dataset.writing import CARD, Summary, Writer, new_directory
from passagent.errors import UsageError
from passagent.store import Store
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
    runs_dirs: Sequence[str] = ("runs",)
    against: list[str] = field(default_factory=list)
    with_failures: bool = False
    with_pairs: bool = False
    parquet: bool = False
    tokenizer: str | None = None


def make(request: Request, command: str) -> Summary:
    """Write the data set; `command`: what asked for it, for its card.

    Raises UsageError, and PassagentError for what must not go out.
    """
    form = find_format(request.form)
    if request.parquet and not form.is_table:
        raise UsageError(f"--parquet: rows of {form.name} are no table")
    if request.parquet:
        check_pyarrow()
    if request.with_pairs and form.name != "trl":
        raise UsageError("--pairs is for --format trl: other trainers have no common form for preferences")
    count, counted_by = lengths.counter(request.tokenizer)
    apart = evaluation_tasks(request.against)
    with reading_stores(request.runs_dirs) as stores:
        episodes = read_episodes(stores)
        chosen = select(episodes, request.selection)
        wrong = failures(episodes) if request.with_failures else []
        if wrong:  # each is in one of the two
            chosen = [one for one in chosen if one.columns["as_score"] is not None]
        if not chosen:
            raise UsageError(
                f"{', '.join(request.runs_dirs)}: finished episodes: {len(episodes)}, "
                "none of them is chosen; see what there is with passagent runs, and loosen --keep"
            )
        apart.check(_origin(one) for one in [*chosen, *wrong])
        with new_directory(Path(request.out)) as directory:
            writer = Writer(directory, form, count, counted_by)
            for example in build(chosen):
                writer.add(example)
            for example in build(wrong):
                writer.add(example, FAILURES)
            if request.with_pairs:
                for pair in preferences.pairs(chosen, episodes):
                    better, worse = build(pair)
                    if row := preferences.row(better, worse):
                        writer.add_row(better, row, preferences.FILE)
            asked = {
                "command": command,
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
    return summary


@contextmanager
def reading_stores(runs_dirs: Sequence[str]) -> Iterator[list[Store]]:
    """Open the databases in `runs_dirs`, each of which stays in one state meanwhile. Raises UsageError."""
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(runs_dir, create=False)) for runs_dir in runs_dirs]
        for store in stores:
            stack.enter_context(store.reading())
        yield stores


def evaluation_tasks(words: list[str]) -> EvaluationTasks:
    """Tasks that nothing may be shared with. Raises UsageError, TaskError."""
    return EvaluationTasks(load_task(path) for path in (find_tasks(words) if words else []))


def _origin(one: Chosen) -> dict[str, Any]:
    return {
        "task": one.columns["task"],
        "task_key": one.columns["task_key"],
        "operators": one.columns["operators"].split(),
        "subgraphs": one.told.subgraphs,
    }
