"""`passagent why`: how a node came to be."""

from __future__ import annotations

import json

from passagent.report.text import console
from passagent.report.why import why_data, why_text
from passagent.store import Store, nodes


def why(node_id: int, runs_dir: str, as_json: bool) -> None:
    """Print the chain of ancestors of a node. Raises UsageError if there is no such node."""
    with Store.open(runs_dir, create=False) as store:
        data = why_data(store, nodes.get_node(store, node_id))
        if as_json:
            print(json.dumps(data))
        else:
            console(soft_wrap=True).print(why_text(store, data))
