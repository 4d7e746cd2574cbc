"""`passagent runs rm`: runs at rest, with all that is theirs alone."""

from __future__ import annotations

import json
import shutil
import sys

from passagent.errors import UsageError
from passagent.search.going_on import runs_dir_flag
from passagent.search.wishes import driven
from passagent.store import Store, removal, runs, sessions


def remove_runs(names: list[str], yes: bool, runs_dir: str, as_json: bool) -> None:
    """Remove runs with all that is theirs alone, after asking. Raises UsageError if one is live."""
    with Store.open(runs_dir, create=False) as store:
        found = list({run.id: run for run in (runs.find_run(store, name) for name in names)}.values())
        for run in found:
            if sessions.is_driven(store, run.id):
                raise driven(store, run.id)
        if not yes and not _agrees([f"{run.id} ({run.task}, begun {run.created_at[:16]})" for run in found]):
            return
        removal.for_removal(store)
        removed = {}
        with store.transaction():
            for run in found:
                if sessions.is_driven(store, run.id):
                    raise UsageError(f"run {run.id} was taken up meanwhile; nothing was removed")
                removed[run.id] = removal.remove_run(store, run.id)
        for run in found:
            shutil.rmtree(store.runs_dir / run.id, ignore_errors=True)
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
