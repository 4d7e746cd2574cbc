"""`passagent hints`: the hints that episodes are shown, and what showing learned ones gains."""

from __future__ import annotations

import json
import textwrap

from passagent.store import Store
from passagent.view.hint_report import hint_data, uplift_text
from passagent.view.text import printable, width


def list_hints(runs_dir: str, as_json: bool) -> None:
    """Print the learned hints of a runs directory, the newest first, and the curated ones."""
    with Store.open(runs_dir, create=False) as store:
        found = hint_data(store)
    if as_json:
        print(json.dumps(found))
        return
    print(f"uplift of learned hints: {uplift_text(found['uplift'])}")
    for hint in found["hints"]:
        line = f"{hint['id']}: {hint['origin']}; shown {hint['shown']}"
        if hint["uplift"]:
            line += f", held out {hint['uplift']['held_out']}, uplift {uplift_text(hint['uplift'])}"
        print(f"\n{line}\n{textwrap.indent(textwrap.fill(printable(hint['advice']), width() - 2), '  ')}")
