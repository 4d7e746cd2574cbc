"""The state of a running search as a person sees it: what the store holds, kept up to date by events."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from passagent.search.events import (
    EpisodeDone,
    EpisodeStarted,
    Event,
    Migrated,
    ModelReplied,
    NodeDone,
    NodeStarted,
)
from passagent.store import Store, nodes, runs
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

    run: Run
    rows: list[IslandRow]
    episodes: int
    tokens: int
    started: float = field(default_factory=time.monotonic)
    done_here: int = 0
    """Episodes finished in this session."""
    seeds: IslandRow = field(default_factory=lambda: IslandRow("seed", None, 0))
    """What the expert makes before the islands begin."""

    @classmethod
    def of(cls, store: Store, run: Run) -> Board:
        """The board of a run as stored."""
        counts = nodes.counts(store, run.id)
        islands = runs.islands(store, run.id)
        rows = [
            IslandRow(island.role, island.best_as, sum(counts.get(island.island, {}).values()))
            for island in islands
        ]
        return cls(run, rows, sum(island.episodes for island in islands), run.tokens)

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
        return max(0, self.run.iters - self.episodes) * pace

    @property
    def best_as(self) -> float | None:
        """Of all islands, and of the seeds."""
        rows = [*self.rows, self.seeds]
        return max((row.best_as for row in rows if row.best_as is not None), default=None)

    def row(self, island: int) -> IslandRow:
        """An island's line, or that of the seeds."""
        return self.seeds if island == SEEDS else self.rows[island]

    def update(self, event: Event) -> None:
        """Take an event in."""
        match event:
            case EpisodeStarted(episode):
                row = self.row(episode.island)
                row.episode, row.last = episode.number, "thinking"
            case ModelReplied(episode, tokens_in, tokens_out):
                self.tokens += tokens_in + tokens_out
                self.row(episode.island).last = "editing"
            case NodeStarted(node):
                self.row(node.island).last = "evaluating"
            case NodeDone(node):
                row = self.row(node.island)
                row.evaluations += 1
                row.last = node.status or ""
                if node.status == "ok" and node.as_score is not None:
                    row.best_as = max(node.as_score, row.best_as or node.as_score)
            case Migrated(_, to_island, _):
                self.rows[to_island].last = "migrant"
            case EpisodeDone(episode) if episode.island != SEEDS:
                self.episodes += 1
                self.done_here += 1
