"""`passagent report`: a run as one HTML file."""

from __future__ import annotations

import json
from pathlib import Path

from passagent.faults import os_fault
from passagent.page.one_file import one_file, write
from passagent.store import Store, runs


def report(name: str, html: str, runs_dir: str, as_json: bool) -> None:
    """Write the file. Raises UsageError if there is no such run, or the file cannot be written."""
    path = Path(html)
    with Store.open(runs_dir, create=False, to_look=True) as store:
        run = runs.find_run(store, name)
        text = one_file(store, run)
    try:
        write(path, text)
    except OSError as error:
        raise os_fault(error, path, "--html") from error
    count = len(text.encode())
    if as_json:
        print(json.dumps({"run": run.id, "path": str(path), "bytes": count}))
    else:
        print(f"run {run.id}: {path} ({count / 1e3:.0f} kB)")
