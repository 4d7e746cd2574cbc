"""`passagent gc`: what is not needed any more goes, never what a live run uses."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from passagent.evaluator.reference.leftovers import dead_scratch, unused_builds
from passagent.store import Store, runs, sessions
from passagent.system.faults import os_fault
from passagent.view.text import table

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
        live, kept = _live_runs(store), ""
        found = _clear(_directories_of_removed_runs(store), dry_run)
        found += _clear((Leftover("scratch", path, size_of(path)) for path in dead_scratch()), dry_run)
        found += _clear((Leftover("built kernel", path, size_of(path)) for path in unused_builds()), dry_run)
        free = store.rows(
            "SELECT freelist_count * page_size AS size FROM pragma_freelist_count, pragma_page_size"
        )
        pages = free[0]["size"]
        if pages and live:
            kept = f"the space in passagent.db is kept while a run is live: {', '.join(live)}"
        elif pages:
            found.append(Leftover("space in passagent.db", store.runs_dir, pages))
            if not dry_run:
                store.execute("VACUUM", {})
    total = sum(one.size for one in found)
    if as_json:
        shown = [{"kind": one.kind, "path": str(one.path), "bytes": one.size} for one in found]
        print(json.dumps({"dry_run": dry_run, "bytes": total, "kept": kept or None, "found": shown}))
        return
    rows = []
    for kind in sorted({one.kind for one in found}):
        sizes = [one.size for one in found if one.kind == kind]
        rows.append([kind, str(len(sizes)), _size(sum(sizes))])
    if rows:
        print(table(["what", ">count", ">size"], rows, indent=""))
    print(f"{'would free' if dry_run else 'freed'} {_size(total)}{f'; {kept}' if kept else ''}")


def _size(size: int) -> str:
    """`12 kB`, `3.4 MB`."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _clear(found: Iterable[Leftover], dry_run: bool) -> list[Leftover]:
    """What was found, removed unless `dry_run`. Raises PassagentError."""
    shown = []
    for one in list(found):
        try:
            if not dry_run:
                _remove(one)
        except OSError as error:
            raise os_fault(error, one.path) from error
        shown.append(one)
    return shown


def _live_runs(store: Store) -> list[str]:
    """Ids of the runs that a process works on."""
    return [run.id for run in runs.list_runs(store) if sessions.is_driven(store, run.id)]


def _directories_of_removed_runs(store: Store) -> Iterator[Leftover]:
    """Directories of runs that the database does not know any more."""
    known = {run.id for run in runs.list_runs(store)}
    for path in store.runs_dir.iterdir():
        if path.name not in known and _RUN.fullmatch(path.name) and path.is_dir():
            names = {entry.name for entry in path.iterdir()}
            if names and names <= _OF_A_RUN:
                yield Leftover("directory of a removed run", path, size_of(path))


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files under a directory; nothing for what another process removes."""
    if not path.is_dir():
        return _bytes_of(path)
    return sum(_bytes_of(Path(place, name)) for place, _, names in os.walk(path) for name in names)


def _bytes_of(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:
        return 0


def _remove(leftover: Leftover) -> None:
    """Remove it; one that is gone already is no error. Raises OSError."""
    if leftover.path.is_dir():
        shutil.rmtree(leftover.path, ignore_errors=True)
    else:
        leftover.path.unlink(missing_ok=True)
