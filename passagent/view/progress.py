"""Progress of a search, a benchmark or a collection: lines, and on a terminal its state beneath them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from passagent import events
from passagent.data.collect import campaign, trials
from passagent.events import Event
from passagent.store import Store, runs
from passagent.store.runs import SEEDS, Run
from passagent.system.faults import os_fault
from passagent.view.event_lines import PROGRESS, event_line
from passagent.view.text import clock, console, number, thousands, width

if TYPE_CHECKING:
    from rich.console import RenderableType

    from passagent.data.collect.campaign import Collection
    from passagent.data.collect.trials import Outcome, Summary, Trial

STATUS_EVERY_S = 30.0
"""Between two status lines of a collection, where there is no terminal, s."""


class Screen:
    """Lines on a stream; on a terminal a state beneath them, redrawn four times a second."""

    def __init__(self, stream: TextIO | None, render: Callable[[], RenderableType]) -> None:
        """Open the screen on `stream` (default: stdout). `render` gives the state as it is now."""
        self._stream = stream or sys.stdout
        self._started = time.monotonic()
        self.is_terminal = self._stream.isatty()
        if self.is_terminal:
            from rich.live import Live

            self._live = Live(console=console(self._stream), get_renderable=render, transient=True)
            self._live.start()

    @property
    def elapsed_s(self) -> float:
        """The time since the screen was opened, s."""
        return time.monotonic() - self._started

    def print(self, line: str) -> None:
        """Print a line at once. Raises PassagentError: an OSError would be taken for one of a file."""
        if self.is_terminal:
            from rich.text import Text

            self._live.console.print(Text(line))
            return
        try:
            print(line, file=self._stream, flush=True)
        except OSError as error:
            raise os_fault(error, Path(self._stream.name)) from error

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.is_terminal:
            self._live.stop()


@dataclass
class IslandRow:
    """A line of the live table."""

    role: str
    best_as: float | None = None
    nodes: int = 0
    episode: int | None = None
    last: str = ""
    """What happened last, in a word."""


class SearchProgress(Screen):
    """A line for each node, migration and trouble; on a terminal a table of the islands for most of these."""

    def __init__(self, store: Store, run: Run, stream: TextIO | None = None) -> None:
        self.store, self.run = store, run
        self.rows = {island.island: IslandRow(island.role) for island in runs.islands(store, run.id)}
        self.roles = {number: row.role for number, row in self.rows.items()}
        self.done_here = 0
        """Episodes finished in this session."""
        self._count()
        super().__init__(stream, self.render)

    def on_event(self, event: Event) -> None:
        """Take an event in, and print it where the table does not show it."""
        self._update(event)
        in_table = events.EpisodeBegun | events.EpisodeContinued | events.Judged
        if not isinstance(event, PROGRESS) or (self.is_terminal and isinstance(event, in_table)):
            return
        standing = f"{self.episodes}/{self.iters} done"
        if isinstance(event, events.Judged):
            standing = f"best {number(self.best_as)}, {thousands(self.tokens)} tokens"
        elif getattr(event, "island", None) == SEEDS:
            standing = ""
        line = event_line(event, self.roles, standing)
        self.say(line if self.is_terminal else f"[{clock(self.searched_s):>5}] {line}")

    def say(self, text: str) -> None:
        """Print a line."""
        self.print(text)

    @property
    def searched_s(self) -> float:
        """The time of all sessions together, s."""
        return self.run.elapsed_s + self.elapsed_s

    @property
    def best_as(self) -> float | None:
        """The best AS of all islands and the seeds."""
        return max((row.best_as for row in self.rows.values() if row.best_as is not None), default=None)

    def _row(self, island: int) -> IslandRow:
        return self.rows.setdefault(island, IslandRow("seed"))

    def _update(self, event: Event) -> None:
        match event:
            case events.EpisodeBegun() | events.EpisodeContinued():
                self._count()
                row = self._row(event.island)
                row.episode, row.last = event.episode, "thinking"
            case events.Replied():
                self._row(event.island).last = "editing"
            case events.Proposed() | events.EvaluationBegun():
                self._row(event.island).last = "evaluating"
            case events.Judged():
                self._row(event.island).last = event.status
                self._count()
            case events.Migrated():
                self._row(event.to_island).last = "migrant"
            case events.EpisodeEnded() if event.island != SEEDS:
                self.done_here += 1
                self._count()

    def _count(self) -> None:
        """Look up what counts for the whole run."""
        islands = runs.all_islands(self.store, self.run.id)
        for island in islands:
            row = self._row(island.island)
            row.best_as, row.nodes = island.best_as, island.nodes
        self.episodes = sum(island.episodes for island in islands if island.island != SEEDS)
        run = runs.get_run(self.store, self.run.id)
        self.iters, self.tokens = run.iters, run.tokens

    def render(self) -> RenderableType:
        """Return the table as it is now."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("island", "role", "episode", "best AS", "last", "nodes"):
            table.add_column(name, justify="left" if name in ("role", "last") else "right")
        for island, row in sorted(self.rows.items()):
            place = "-" if island == SEEDS else str(island)
            cells = [str(row.episode or "-"), number(row.best_as), row.last, str(row.nodes)]
            table.add_row(place, row.role, *cells)
        remaining = "-"
        if self.done_here:
            remaining = clock(max(0, self.iters - self.episodes) * self.elapsed_s / self.done_here)
        foot = (
            f"{self.episodes}/{self.iters} episodes  best AS {number(self.best_as)}  "
            f"{thousands(self.tokens)} tokens  elapsed {clock(self.searched_s)}  ETA {remaining}"
        )
        head = f"run {self.run.id}: {self.run.task}, {self.run.model}, {self.run.device}"
        return Group(Text(head), table, Text(foot))


class CollectProgress(Screen, campaign.Watch):
    """A line for each trial; beneath them, or now and then, one for all. See Watch of a collection."""

    def __init__(self, model: str, before: list[Outcome], total: int, stream: TextIO) -> None:
        """Show `total` trials; `before`: those that were finished before."""
        self.model, self.outcomes, self.total, self._before = model, before, total, len(before)
        self._status, self._printed_at = "", time.monotonic()
        super().__init__(stream, lambda: self._status)

    def event(self, trial: Trial, event: Event) -> None:
        """See Watch.event."""
        if isinstance(event, events.Noted):
            self.say(f"{trial}: {event.message}")

    def say(self, text: str) -> None:
        """See Watch.say."""
        self.print(f"        note: {text}")

    def tick(self, collection: Collection) -> None:
        """See Watch.tick."""
        now = time.monotonic()
        if not self.is_terminal and now - self._printed_at < STATUS_EVERY_S:
            return
        spent, finished = collection.progress(), len(self.outcomes) - self._before
        remaining = [] if collection.left_s is None else [max(0.0, collection.left_s)]
        if finished:
            remaining.append(self.elapsed_s / finished * (self.total - len(self.outcomes)))
        self._printed_at = now
        self._status = status_line(
            trials.summarise(self.outcomes, self.model),
            self.total,
            spent.tokens,
            spent.cost,
            min(remaining, default=None),
        )
        if not self.is_terminal:
            self.print(f"[{clock(self.elapsed_s):>5}] {self._status}")

    def ended(self, outcome: Outcome, error: str | None) -> None:
        """See Watch.ended. A trial that a person or the budget stopped is not shown."""
        if error is not None:
            self.print(f"{'':7} {outcome.task} trial {outcome.trial}: failed: {error}")
        if error is not None or outcome.state != "finished":
            return
        self.outcomes.append(outcome)
        tail = (
            f" trial {outcome.trial}: AS {number(outcome.best_as)}, {outcome.steps} steps, "
            f"{outcome.evaluations} evaluated, {thousands(outcome.tokens)} tokens"
        )
        front = f"[{clock(self.elapsed_s):>5}] {len(self.outcomes)}/{self.total} "
        room = max(6, width() - len(front) - len(tail))
        name = outcome.task
        self.print(front + (name if len(name) <= room else f"{name[: room - 3]}...") + tail)


def status_line(summary: Summary, total: int, tokens: int, cost: float, left_s: float | None) -> str:
    """Write where a collection stands, in less than 80 characters for up to 9,999 trials."""
    remaining = "" if left_s is None else f", {clock(left_s)} left"
    return (
        f"{summary.runs}/{total} done, {summary.kept} kept, AS {number(summary.as_score, 2)}, "
        f"{thousands(tokens)} tokens, ${cost:.2f}{remaining}"
    )
