"""Hints that models wrote, with what showing them gained: for `passagent hints` and the page."""

from __future__ import annotations

from typing import Any

from passagent.experience.hint_library import Entry, HintLibrary
from passagent.experience.hint_trials import uplift
from passagent.report.text import percent


def hint_data(library: HintLibrary, entry: Entry) -> dict[str, Any]:
    """All that is known of a hint, as plain data."""
    hint, source = entry.learned.hint, entry.source
    return {
        "id": hint.id,
        "state": entry.learned.state,
        "why": entry.why,
        "advice": hint.advice,
        "trigger": hint.trigger,
        "context": hint.context.model_dump(),
        "confidence": entry.learned.confidence,
        "helps": entry.learned.helps,
        "harms": entry.learned.harms,
        "author": source.author,
        "source": hint.source,
        "version": entry.version,
        "written": entry.created_at,
        "uplift": uplift(library.trials(hint.id))._asdict(),
    }


def uplift_text(found: dict[str, Any]) -> str:
    """`+3.1% (0.4% to 6.0%)`."""
    if found["estimate"] is None:
        return "not known yet"
    if found["low"] is None:
        return percent(found["estimate"])
    return f"{percent(found['estimate'])} ({percent(found['low'])} to {percent(found['high'])})"
