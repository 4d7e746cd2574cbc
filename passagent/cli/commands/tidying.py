"""`passagent gc`: what is not needed any more goes, never what a live run uses."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from passagent.evaluator.reference.leftovers import dead_scratch, unused_builds
from passagent.store import Store, runs, sessions
from passagent.system.faults import os_fault
from passagent.view.text import print_answer, table

_RUN = re.compile(r"[0-9a-f]{8}")
_OF_A_RUN = {"run.log", "best", "best.new", "devices.json"}


class Leftover(NamedTuple):
    """A file or directory that can go."""

    kind: str
    path: Path
    size: int
    """Bytes."""


def gc(dry_run: bool, runs_dir: str, as_json: bool) -> None:
    """Remove what nothing needs, or with `dry_run` say what that is. Raises PassagentError."""
    with Store.open(runs_dir, create=False) as store:
        live, reason = [run.id for run in runs.list_runs(store) if sessions.is_driven(store, run.id)], ""
        removed = _clear(_directories_of_removed_runs(store), dry_run)
        removed += _clear((Leftover("scratch", path, size_of(path)) for path in dead_scratch()), dry_run)
        removed += _clear(
            (Leftover("built kernel", path, size_of(path)) for path in unused_builds()), dry_run
        )
        free = store.rows(
            "SELECT freelist_count * page_size AS size FROM pragma_freelist_count, pragma_page_size"
        )
        pages = free[0]["size"]
        if pages and live:
            reason = f"the space in passagent.db is kept while a run is live: {', '.join(live)}"
        elif pages:
            removed.append(Leftover("space in passagent.db", store.runs_dir, pages))
            if not dry_run:
                store.execute("VACUUM", {})
    total = sum(leftover.size for leftover in removed)
    rows = []
    for kind in sorted({leftover.kind for leftover in removed}):
        sizes = [leftover.size for leftover in removed if leftover.kind == kind]
        rows.append([kind, str(len(sizes)), _size(sum(sizes))])
    lines = [table(["what", ">count", ">size"], rows, indent="")] if rows else []
    lines.append(f"{'would free' if dry_run else 'freed'} {_size(total)}{f'; {reason}' if reason else ''}")
    listed = [{"kind": of.kind, "path": str(of.path), "bytes": of.size} for of in removed]
    data = {"dry_run": dry_run, "bytes": total, "kept": reason or None, "found": listed}
    print_answer(as_json, data, lambda: "\n".join(lines))


def _size(size: int) -> str:
    """`12 kB`, `3.4 MB`."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _clear(leftovers: Iterable[Leftover], dry_run: bool) -> list[Leftover]:
    """Remove the leftovers unless `dry_run`, and return them; one that is gone already is no error.

    Raises PassagentError.
    """
    removed = list(leftovers)
    for leftover in () if dry_run else removed:
        try:
            if leftover.path.is_dir():
                shutil.rmtree(leftover.path, ignore_errors=True)
            else:
                leftover.path.unlink(missing_ok=True)
        except OSError as error:
            raise os_fault(error, leftover.path) from error
    return removed


def _directories_of_removed_runs(store: Store) -> Iterator[Leftover]:
    """Directories of runs that the database does not know any more."""
    run_ids = {run.id for run in runs.list_runs(store)}
    for path in store.runs_dir.iterdir():
        if path.name not in run_ids and _RUN.fullmatch(path.name) and path.is_dir():
            names = {entry.name for entry in path.iterdir()}
            if names and names <= _OF_A_RUN:
                yield Leftover("directory of a removed run", path, size_of(path))


def size_of(path: Path) -> int:
    """Return the bytes of a file or of all files in a directory; 0 for what another process removes."""
    if path.is_dir():
        return sum(size_of(Path(place, name)) for place, _, names in os.walk(path) for name in names)
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
