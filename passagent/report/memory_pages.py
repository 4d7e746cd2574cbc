"""The context memory of a run's islands for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from passagent.report.text import printable
from passagent.store import Store, context_memory


def page_rows(store: Store, run_id: str) -> list[dict[str, Any]]:
    """The pages as plain data, in the order of their episodes."""
    return [asdict(page) for page in context_memory.pages(store, run_id)]


def pages_text(store: Store, run_id: str) -> str:
    """Each page under a line that says whose it is."""
    shown = [
        f"island {one.island}, after episode {one.episode}:\n"
        + "\n".join(f"  {printable(line)}" for line in one.page.splitlines())
        for one in context_memory.pages(store, run_id)
    ]
    return "\n\n".join(shown) or "no page was written: no island stagnated, or nobody is asked"
