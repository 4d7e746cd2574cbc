"""Progress of a benchmark: a bar with what is being measured on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

from passagent.benchmark.measure import Work
from passagent.benchmark.results import Row
from passagent.events import Event, OnEvent
from passagent.report.board import Board
from passagent.report.event_lines import event_line
from passagent.report.text import clock, console, number
from passagent.store import Store
from passagent.store.runs import Run


class BenchProgress:
    """A line for each measurement made, and on a terminal a bar below them."""

    def __init__(self, total: int, done: int, stream: TextIO) -> None:
        self.total, self.count, self.stream = total, done, stream
        self._started = time.monotonic()
        self._bar = None
        if stream.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                MofNCompleteColumn(),
                BarColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=console(stream), transient=True)
            self._task = self._bar.add_task("", total=total, completed=done)
            self._bar.start()

    def begin(self, work: Work) -> None:
        """See Watch.begin."""
        if self._bar:
            self._bar.update(self._task, description=f"{work.task.name} {work.compiler}")

    def say(self, text: str) -> None:
        """See Watch.say."""
        self._say(f"          {text}")

    def search(self, store: Store, run: Run) -> OnEvent:
        """See Watch.search."""
        board = Board.of(store, run)

        def on_event(event: Event) -> None:
            board.update(event)
            line = event_line(board, event)
            if line:
                self.say(line)

        return on_event

    def done(self, row: Row) -> None:
        """See Watch.done."""
        self.count += 1
        elapsed = clock(time.monotonic() - self._started)
        self._say(f"[{elapsed:>5}] {self.count}/{self.total} {row_line(row)}")
        if self._bar:
            self._bar.advance(self._task)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar:
            self._bar.stop()

    def _say(self, line: str) -> None:
        if self._bar:
            from rich.text import Text

            self._bar.console.print(Text(line))
        else:
            print(line, file=self.stream, flush=True)


def row_line(row: Row) -> str:
    """What came of one measurement, in a line."""
    head = f"{row.task} {row.compiler}:"
    if row.error is not None or row.evaluation is None:
        return f"{head} not measured: {row.error}"
    found = row.evaluation
    if row.left:
        return f"{head} left whole to eager, counted as 1.0"
    right = sum(graph.status == "ok" for graph in found.graphs)
    return (
        f"{head} {found.status}, AS {number(found.as_score)}, speedup {number(found.gmean_speedup)}, "
        f"{right}/{len(found.graphs)} correct, {found.seconds:.1f} s"
    )
