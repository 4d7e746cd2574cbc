"""What a run gained over time, summed up in one row that each finished episode brings up to date."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.store.database import Store


@dataclass(frozen=True)
class Gains:
    """A row of `gains`."""

    run_id: str
    episodes: int
    """Finished."""
    best_as: float | None
    """The run's best AS when the last one ended."""
    marked_as: float | None
    """The best AS when progress was last counted."""
    stagnant: int
    """Episodes since then."""
    searched_s: float
    """Time searched when the last one ended."""
    gain: float
    """Weighted sum of the episodes' gains, ln(AS)."""
    hours: float
    """Weighted sum of the time between their ends, h."""


def of_run(store: Store, run_id: str) -> Gains | None:
    """The run's row; None before its first episode ended."""
    return store.one(Gains, "SELECT * FROM gains WHERE run_id = :run", {"run": run_id})


def save(store: Store, gains: Gains) -> None:
    """Store the row."""
    columns = list(vars(gains))
    store.execute(
        f"INSERT OR REPLACE INTO gains ({', '.join(columns)}) "
        f"VALUES ({', '.join(':' + name for name in columns)})",
        vars(gains),
    )
