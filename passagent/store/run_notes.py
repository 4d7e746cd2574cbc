"""What a person noted about a run. No model reads it."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.errors import UsageError
from passagent.redaction import redact
from passagent.store.database import Store, now

MAX_NOTE = 2000
"""Characters of a note."""


@dataclass(frozen=True)
class RunNote:
    """A row of `run_notes`."""

    id: int
    run_id: str
    text: str
    created_at: str

    def data(self) -> dict[str, str]:
        """As plain data."""
        return {"text": self.text, "at": self.created_at}


def add_note(store: Store, run_id: str, text: str) -> None:
    """Keep a note, without secrets. Raises UsageError for an empty and a very long one."""
    text = redact(" ".join(text.split()))
    if not 0 < len(text) <= MAX_NOTE:
        raise UsageError(f"a note has 1 to {MAX_NOTE} characters, not {len(text)}")
    store.execute(
        "INSERT INTO run_notes (run_id, text, created_at) VALUES (:run, :text, :at)",
        {"run": run_id, "text": text, "at": now()},
    )


def notes_of(store: Store, run_id: str) -> list[RunNote]:
    """The notes of a run, the oldest first."""
    return store.all(RunNote, "SELECT * FROM run_notes WHERE run_id = :run ORDER BY id", {"run": run_id})
