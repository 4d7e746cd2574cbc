"""`passagent gc` and `passagent runs rm`: what is not needed any more goes, never what a live run uses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from passagent.errors import UsageError
from passagent.evaluator.reference.leftovers import dead_scratch, unused_builds
from passagent.faults import os_fault
from passagent.report.text import table
from passagent.search.going_on import runs_dir_flag
from passagent.store import Store, leftovers, looking, removal, runs
from passagent.store.leftovers import Leftover, size_of


def gc(dry_run: bool, runs_dir: str, as_json: bool) -> None:
    """Remove what nothing needs, or with `dry_run` say what that is. Raises PassagentError."""
    with Store.open(runs_dir, create=False) as store:
        live, kept = leftovers.live_runs(store), ""
        found = _clear(leftovers.directories_of_removed_runs(store), dry_run)
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
                leftovers.remove(one)
        except OSError as error:
            raise os_fault(error, one.path) from error
        shown.append(one)
    return shown


def remove_runs(names: list[str], yes: bool, runs_dir: str, as_json: bool) -> None:
    """Remove runs with all that is theirs alone, after asking. Raises UsageError if one is live."""
    with Store.open(runs_dir, create=False) as store:
        found = list({run.id: run for run in (runs.find_run(store, name) for name in names)}.values())
        for run in found:
            working = looking.processes(store, run)
            if working:
                raise UsageError(
                    f"run {run.id} is live (pid {working[0].pid} on {working[0].host}): "
                    f"passagent stop {run.id}{runs_dir_flag(store)} first"
                )
        if not yes and not _agrees([f"{run.id} ({run.task}, begun {run.created_at[:16]})" for run in found]):
            return
        removal.for_removal(store)
        removed = {}
        with store.transaction():
            for run in found:
                if looking.processes(store, runs.get_run(store, run.id)):
                    raise UsageError(f"run {run.id} was taken up meanwhile; nothing was removed")
                removed[run.id] = removal.remove_run(store, run.id)
        for run in found:
            leftovers.remove(Leftover("run", store.runs_dir / run.id, 0))
        if as_json:
            print(json.dumps({"removed": {name: one._asdict() for name, one in removed.items()}}))
            return
        for name, one in removed.items():
            hints = f", {one.hints} hints distilled from it" if one.hints else ""
            counts = f"{one.nodes} nodes, {one.evaluations} evaluations, {one.messages} messages"
            print(f"removed run {name}: {counts}{hints}")
        print(f"passagent gc{runs_dir_flag(store)} frees the space")


def _agrees(shown: list[str]) -> bool:
    """Whether the person at the terminal agrees. Raises UsageError where there is no terminal."""
    if not sys.stdin.isatty():
        raise UsageError("passagent runs rm asks before it removes; without a terminal say --yes")
    print(f"remove {', '.join(shown)} for good? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
