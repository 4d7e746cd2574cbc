"""`passagent hints`: what models noted after episodes, and what showing it gains."""

from __future__ import annotations

import json

from passagent.experience.hint_library import HintLibrary
from passagent.report.hint_report import hint_data, uplift_text
from passagent.report.text import printable, table


def list_hints(path: str | None, as_json: bool) -> None:
    """Print the learned hints of the library at `path`, the oldest first. Raises UsageError."""
    with HintLibrary.open(path, create=False) as library:
        found = [hint_data(library, entry) for entry in library.entries()]
    if as_json:
        print(json.dumps({"library": str(library.path), "hints": found}))
        return
    rows = [
        [
            one["id"],
            one["state"],
            f"{one['uplift']['shown']} + {one['uplift']['held']}",
            uplift_text(one["uplift"]),
            printable(one["advice"]),
        ]
        for one in found
    ]
    print(table(["hint", "state", ">shown + held out", ">uplift (95%)", "advice"], rows, wrap=["advice"]))
