"""`passagent hints`: what models noted after episodes, and what showing it gains."""

from __future__ import annotations

import json

from passagent.experience.hint_library import HintLibrary
from passagent.report.hint_report import hint_data, uplift_text
from passagent.report.text import percent, printable, table


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


def show(hint: str, path: str | None, as_json: bool) -> None:
    """Print all that is known of a hint. Raises UsageError."""
    with HintLibrary.open(path, create=False) as library:
        entry = library.entry(hint)
        found = hint_data(library, entry)
        rows = library.rows(
            "SELECT run, episode, task, label, family, device, shown, propensity, used, gain, low, high "
            "FROM outcomes WHERE hint = :hint ORDER BY rowid",
            {"hint": hint},
        )
    outcomes = [dict(row) for row in rows]
    if as_json:
        print(json.dumps(found | {"outcomes": outcomes}))
        return
    for name, value in found.items():
        if name != "uplift":
            print(f"{name + ':':<12}{printable(str(value))}")
    one = found["uplift"]
    print(f"uplift:     {uplift_text(one)}, {one['shown']} episodes with it, {one['held']} held out")
    cells = [
        [
            row["run"].rpartition(" ")[2],
            str(row["episode"]),
            row["label"],
            row["family"],
            "shown" if row["shown"] else "held out",
            f"{row['propensity']:.2f}",
            percent(row["gain"]) if row["gain"] is not None else "under way",
        ]
        for row in outcomes
    ]
    if cells:
        print(table(["run", ">episode", "diagnosis", "operators", "", ">propensity", ">gain"], cells))
