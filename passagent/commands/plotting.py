"""`passagent plot`: a picture of a run."""

from __future__ import annotations

import json
from pathlib import Path

from passagent.report.run_pictures import draw
from passagent.store import Store, runs


def plot(name: str, picture: str, out: str, runs_dir: str, as_json: bool) -> None:
    """Draw it. Raises UsageError if there is no such run, or the file cannot be written."""
    path = Path(out)
    with Store.open(runs_dir, create=False, to_look=True) as store:
        run = runs.find_run(store, name)
        draw(store, run, picture, path)
    if as_json:
        print(json.dumps({"run": run.id, "picture": picture, "path": str(path)}))
    else:
        print(f"run {run.id}: {path}")
