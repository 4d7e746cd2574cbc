"""Progress of a search or a collection in lines; on a terminal a search's state beneath them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from passagent.agent.prompt import short_note
from passagent.data.collect import campaign
from passagent.sandbox.faults import os_fault
from passagent.store import Store, events, runs
from passagent.store.events import Event
from passagent.store.locks import process_text
from passagent.store.runs import SEEDS, Run
from passagent.view.run_summary import status_data, status_text
from passagent.view.text import clock, console, number, percent, printable, thousands, width

if TYPE_CHECKING:
    from rich.console import RenderableType

    from passagent.data.collect.trials import Outcome, Trial


class Screen:
    """Lines on a stream; on a terminal a state beneath them, redrawn four times a second."""

    def __init__(self, stream: TextIO, render: Callable[[], RenderableType] | None = None) -> None:
        """Open the screen on `stream`. `render` gives the state as it is now; None: there is none."""
        self._stream = stream
        self._started = time.monotonic()
        self.is_terminal = render is not None and stream.isatty()
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

    def say(self, text: str) -> None:
        """Print a remark."""
        self.print(text)

    def left_text(self, done: int, to_do: int) -> str:
        """Write the time that `to_do` takes at the pace of what is `done` since the screen was opened."""
        return f", {clock(self.elapsed_s / done * to_do)} left" if done and to_do else ""

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.is_terminal:
            self._live.stop()


class SearchProgress(Screen):
    """A line for each node, migration and trouble; on a terminal the run's status for most of these."""

    def __init__(self, store: Store, run: Run, stream: TextIO) -> None:
        self.store, self.run = store, run
        self.roles = {island.island: island.role for island in runs.islands(store, run.id)}
        self._status = ""
        super().__init__(stream, self.render)
        self._look(run)

    def on_event(self, event: Event) -> None:
        """Take an event in, and print it where the status does not show it."""
        run = runs.get_run(self.store, self.run.id)
        self._look(run)
        in_table = events.EpisodeBegun | events.EpisodeContinued | events.Judged
        if not isinstance(event, PROGRESS) or (self.is_terminal and isinstance(event, in_table)):
            return
        islands = runs.all_islands(self.store, run.id)
        episodes = sum(island.episodes for island in islands if island.island != SEEDS)
        standing = f"{episodes}/{run.iters} done"
        if isinstance(event, events.Judged):
            best = max((island.best_as for island in islands if island.best_as is not None), default=None)
            standing = f"best {number(best)}, {thousands(run.tokens)} tokens"
        elif getattr(event, "island", None) == SEEDS:
            standing = ""
        line = event_line(event, self.roles, standing)
        self.say(line if self.is_terminal else f"[{clock(self.searched_s):>5}] {line}")

    @property
    def searched_s(self) -> float:
        """The time of all sessions together, s."""
        return self.run.elapsed_s + self.elapsed_s

    def _look(self, run: Run) -> None:
        """Keep the status for the terminal, which another thread draws."""
        if self.is_terminal:
            self._status = status_text(self.store, status_data(self.store, run, counting=False))

    def render(self) -> RenderableType:
        """Return the status as it was at the last event, and the time since the search began."""
        from rich.text import Text

        return Text(f"{self._status}\nelapsed {clock(self.searched_s)}")


class CollectProgress(Screen, campaign.Watch):
    """A line for each trial. See Watch of a collection."""

    def __init__(self, before: int, total: int, stream: TextIO) -> None:
        """Show `total` trials; `before`: so many were finished before."""
        self.count, self.total, self._before, self._cost = before, total, before, 0.0
        super().__init__(stream)

    def event(self, trial: Trial, event: Event) -> None:
        """Print what a conversation notes."""
        if isinstance(event, events.Noted):
            self.say(f"{trial}: {event.message}")

    def say(self, text: str) -> None:
        """Print a remark."""
        self.print(f"        note: {text}")

    def ended(self, outcome: Outcome, error: str | None) -> None:
        """Print a result. A trial that a person or the budget stopped is not shown."""
        if error is not None:
            self.print(f"{'':7} {outcome.task} trial {outcome.trial}: failed: {error}")
        if error is not None or outcome.state != "finished":
            return
        self.count += 1
        self._cost += outcome.cost
        tail = (
            f" trial {outcome.trial}: AS {number(outcome.best_as)}, {outcome.steps} steps, "
            f"{outcome.evaluations} evaluated, {thousands(outcome.tokens)} tokens"
            f"{f', ${self._cost:.2f} so far' if self._cost else ''}"
            f"{self.left_text(self.count - self._before, self.total - self.count)}"
        )
        front = f"[{clock(self.elapsed_s):>5}] {self.count}/{self.total} "
        room = max(6, width() - len(front) - len(tail))
        name = outcome.task
        self.print(front + (name if len(name) <= room else f"{name[: room - 3]}...") + tail)


PROGRESS = (
    events.EpisodeBegun, events.EpisodeContinued, events.Judged, events.Migrated, events.MeasuredAgain,
    events.Noted,
)  # fmt: skip
"""Events that a running search prints."""


def event_line(event: Event, roles: Mapping[int, str], standing: str = "") -> str:
    """Write where an event happened and what it was; `standing` of the run follows a score or a beginning.

    roles: names of the islands.
    """
    island = getattr(event, "island", None)
    where = "" if island is None else "seeds " if island == SEEDS else f"island {island} ({roles[island]}) "
    return printable(where + _said(event, f" ({standing})" if standing else ""))


def _said(event: Event, standing: str) -> str:
    """Write what happened, without when and where."""
    match event:
        case events.Joined():
            changes = f": {'; '.join(event.changes)}" if event.changes else ""
            return f"{process_text(event.owner)} joined, passagent {event.version}{changes}"
        case events.Left():
            return f"{process_text(event.owner)} left: {event.left_because}"
        case events.EpisodeBegun() | events.EpisodeContinued():
            start = "the task"
            if event.parent is not None:
                start = f"node {event.parent} (AS {number(event.parent_as)})"
            again = ", continued" if isinstance(event, events.EpisodeContinued) else ""
            return f"episode {event.episode} from {start}, {event.model}{again}{standing}"
        case events.EpisodeEnded():
            result = "nothing correct"
            if event.best_node is not None:
                result = f"best node {event.best_node}, AS {number(event.best_as)}"
                if event.parent_status == "ok":
                    result += f", {percent(event.gain)} over node {event.parent}"
            return f"episode {event.episode} ended ({event.end_reason}, {event.steps} steps): {result}"
        case events.Replied():
            tokens = f"{thousands(event.input_tokens or 0)} in, {thousands(event.output_tokens or 0)} out"
            cost = "" if event.cost is None else f", ${event.cost:.4f}"
            who = event.model if event.role == "agent" else f"{event.model} as {event.role}"
            return f"episode {event.episode}: reply of {who} ({number(event.latency_s, 1)} s, {tokens}{cost})"
        case events.RequestFailed():
            attempt = f"attempt {event.attempt}, " if event.attempt > 1 else ""
            error = short_note(" ".join((event.error or "").split()), 160)
            return f"episode {event.episode}: {event.model} ({attempt}{event.state}): {error}"
        case events.Proposed():
            repeat = f", equal to node {event.repeat_of}" if event.repeat_of else ""
            return f"node {event.node} proposed{repeat}"
        case events.Judged():
            gain = ""
            if event.status == event.parent_status == "ok" and event.as_score and event.parent_as:
                gain = f", {event.as_score / event.parent_as - 1:+.1%} over node {event.parent}"
            stored = ", known from the store" if event.from_store else ""
            note = short_note(event.note, 70)
            if event.status != "ok" and event.diagnosis:
                note = short_note(event.diagnosis["text"], 110)
            score = f"AS {number(event.as_score)}{gain}{stored}{standing}"
            return f"node {event.node}: {event.status}, {score}{f': {note}' if note else ''}"
        case events.Migrated():
            return f"migration of node {event.node} to island {event.to_island}: {event.reason}"
        case events.MeasuredAgain():
            score = f"{event.status}, AS {number(event.as_score)} (first {number(event.first_as)})"
            return f"finalist node {event.node} measured again, round {event.round}: {score}"
        case events.HintWritten():
            return f"episode {event.episode}: hint {event.hint} distilled"
        case events.Noted():
            return f"note: {event.message}"
    raise AssertionError(event)
