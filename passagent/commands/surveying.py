"""`passagent status`: how runs are doing."""

from __future__ import annotations

import json

from passagent.report.status import status_data, status_text
from passagent.store import Store, runs, sessions
from passagent.store.runs import Run


def status(name: str | None, runs_dir: str, as_json: bool) -> None:
    """Print how a run is doing; without a name all that are worked on, or the newest. Raises UsageError."""
    with Store.open(runs_dir, create=False) as store:
        found = [runs.find_run(store, name)] if name is not None else _current(store)
        data = [status_data(store, run) for run in found]
        if as_json:
            print(json.dumps(data[0] if name is not None else {"runs": data}))
        else:
            print("\n\n".join(status_text(store, of_run) for of_run in data))


def _current(store: Store) -> list[Run]:
    live = [run for run in runs.list_runs(store) if sessions.is_driven(store, run.id)]
    return live or [runs.find_run(store, "last")]
