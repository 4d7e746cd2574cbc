"""The state of a running search as a person sees it: what the store holds, kept up to date by events."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from passagent import events
from passagent.events import Event
from passagent.store import Store, runs
from passagent.store.runs import SEEDS, Run


@dataclass
class IslandRow:
    """One line of the table."""

    role: str
    best_as: float | None
    evaluations: int
    episode: int | None = None
    last: str = ""
    """What happened last, in a word or two."""


@dataclass
class Board:
    """A run in progress."""

    store: Store
    run: Run
    rows: list[IslandRow]
    episodes: int = 0
    iters: int = 0
    tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    done_here: int = 0
    """Episodes finished in this session."""
    seeds: IslandRow = field(default_factory=lambda: IslandRow("seed", None, 0))
    """What the expert makes before the islands begin."""

    @classmethod
    def of(cls, store: Store, run: Run) -> Board:
        """The board of a run as stored."""
        rows = [IslandRow(island.role, None, 0) for island in runs.islands(store, run.id)]
        board = cls(store, run, rows)
        board._count()
        return board

    @property
    def elapsed_s(self) -> float:
        """All sessions together, s."""
        return self.run.elapsed_s + time.monotonic() - self.started

    @property
    def eta_s(self) -> float | None:
        """Time until all episodes are done, at this session's pace, s; None before the first."""
        if not self.done_here:
            return None
        pace = (time.monotonic() - self.started) / self.done_here
        return max(0, self.iters - self.episodes) * pace

    @property
    def best_as(self) -> float | None:
        """Of all islands, and of the seeds."""
        rows = [*self.rows, self.seeds]
        return max((row.best_as for row in rows if row.best_as is not None), default=None)

    def row(self, island: int) -> IslandRow:
        """An island's line, or that of the seeds."""
        return self.seeds if island == SEEDS else self.rows[island]

    def update(self, event: Event) -> None:
        """Take an event in; what counts for the whole run is looked up."""
        match event:
            case events.EpisodeBegun() | events.EpisodeContinued():
                self._count()
                row = self.row(event.island)
                row.episode, row.last = event.episode, "thinking"
            case events.Replied():
                self.row(event.island).last = "editing"
            case events.Proposed() | events.EvaluationBegun():
                self.row(event.island).last = "evaluating"
            case events.Judged():
                self.row(event.island).last = event.status
                self._count()
            case events.Migrated():
                self.rows[event.to_island].last = "migrant"
            case events.EpisodeEnded() if event.island != SEEDS:
                self.done_here += 1
                self._count()

    def _count(self) -> None:
        """Bring the counts up to date."""
        islands = runs.all_islands(self.store, self.run.id)
        for island in islands:
            row = self.row(island.island)
            row.best_as, row.evaluations = island.best_as, island.nodes
        self.episodes = sum(island.episodes for island in islands if island.island != SEEDS)
        run = runs.get_run(self.store, self.run.id)
        self.iters, self.tokens = run.iters, run.tokens
