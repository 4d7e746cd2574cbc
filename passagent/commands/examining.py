"""`passagent doctor`: whether a run's mechanisms did what they are for."""

from __future__ import annotations

import json

from passagent.errors import PassagentError
from passagent.report.doctor import examine, findings_text
from passagent.store import Store, runs


def doctor(name: str, runs_dir: str, as_json: bool) -> None:
    """Print what the checks found. Raises PassagentError if one failed."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        found = examine(store, run)
    if as_json:
        print(json.dumps({"run": run.id, "findings": [one._asdict() for one in found]}))
    else:
        print(findings_text(run, found))
    failed = [one.check for one in found if one.verdict == "fail"]
    if failed:
        raise PassagentError(
            f"run {run.id}: {len(failed)} of {len(found)} checks failed: {', '.join(failed)}"
        )
