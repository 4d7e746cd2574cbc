"""`passagent tail`: a run's events as they happen."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from passagent.events import event_of
from passagent.report.run_summary import shown_state
from passagent.report.tail import event_text
from passagent.search import happenings
from passagent.search.happenings import Happening
from passagent.store import Store, runs, sessions

POLL_S = 0.25
"""Between two looks, s."""


def tail(name: str, count: int, follow: bool, runs_dir: str, as_json: bool) -> None:
    """Print the run's last `count` events, and with `follow` those to come until no process works on it."""
    with Store.open(runs_dir, create=False) as store:
        run = runs.find_run(store, name)
        roles = {island.island: island.role for island in runs.islands(store, run.id)}
        found, seen = happenings.newest(store, run.id, count)
        _show(found, roles, as_json)
        while follow:
            # asked before looking: what the process did before it left is seen, too
            is_live = sessions.is_driven(store, run.id)
            _show(happenings.since(store, run.id, seen), roles, as_json)
            if not is_live:
                break
            time.sleep(POLL_S)
        if follow and not as_json:
            run = runs.get_run(store, run.id)
            print(f"run {run.id} is {shown_state(store, run)}: {run.stop_reason or 'no process works on it'}")


def _show(found: Iterable[Happening], roles: dict[int, str], as_json: bool) -> None:
    for one in found:
        if as_json:
            print(json.dumps(event_of(one).as_json()), flush=True)
        else:
            print(event_text(event_of(one), roles), flush=True)
