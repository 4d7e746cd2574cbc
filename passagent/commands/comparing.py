"""`passagent diff`: what two nodes differ in."""

from __future__ import annotations

import json

from passagent.report.difference import diff_data, diff_text
from passagent.report.text import console
from passagent.store import Store, nodes


def diff(first: int, second: int, runs_dir: str, as_json: bool) -> None:
    """Print what two nodes differ in. Raises UsageError if there is no such node."""
    with Store.open(runs_dir, create=False) as store:
        data = diff_data(store, nodes.get_node(store, first), nodes.get_node(store, second))
    if as_json:
        print(json.dumps(data))
    else:
        console(soft_wrap=True).print(diff_text(data))
