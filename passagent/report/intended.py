"""The intents of a run for people: what was expected of each, and what was measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from passagent.report.text import printable
from passagent.search.intending import gains
from passagent.store import Store, intents


def intent_rows(store: Store, run_id: str) -> list[dict[str, Any]]:
    """The intents as plain data, in the order in which they were written; `measured` is in percent."""
    found = intents.of_run(store, run_id)
    return [asdict(one) | {"measured": one.measured, "untried": one.is_untried} for one in found]


def intents_text(store: Store, run_id: str) -> str:
    """Two lines for each intent."""
    lines = []
    for one in intents.of_run(store, run_id):
        lines.append(
            f"{one.id} island {one.island} episode {one.episode}: {gains(one)}: {printable(one.what)}"
        )
        lines.append(f"    why: {printable(one.why)}")
    return "\n".join(lines) or "no episode has written an intent"


def meant_by_nodes(store: Store, run_id: str) -> dict[int, str]:
    """Node to the intent that it was made for, in a line."""
    told = {
        one.id: f"intent {one.id}, {gains(one)}: {printable(one.what)}"
        for one in intents.of_run(store, run_id)
    }
    return {node: told[intent] for node, intent in intents.of_nodes(store, run_id).items()}
