"""Progress of a benchmark: a line for each measurement, and what is being measured on a terminal."""

from __future__ import annotations

import time
from typing import TextIO

from passagent.data.bench.measure import Watch, Work
from passagent.data.bench.results import Row
from passagent.events import Event, OnEvent
from passagent.store import Store
from passagent.store.runs import Run
from passagent.view.board import Board
from passagent.view.event_lines import event_line
from passagent.view.progress import StatusLine
from passagent.view.text import clock, number


class BenchProgress(StatusLine, Watch):
    """A line for each measurement made, and on a terminal the one under way below them."""

    def __init__(self, total: int, done: int, stream: TextIO) -> None:
        super().__init__(stream)
        self.total, self.count, self._before = total, done, done
        self._started = time.monotonic()

    def begin(self, work: Work) -> None:
        """See Watch.begin."""
        measured, elapsed_s = self.count - self._before, time.monotonic() - self._started
        left = f", {clock(elapsed_s / measured * (self.total - self.count))} left" if measured else ""
        self.show(f"{self.count}/{self.total}{left}: {work.task.name} {work.compiler}")

    def say(self, text: str) -> None:
        """See Watch.say."""
        self.print(f"          {text}")

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
        self.print(f"[{elapsed:>5}] {self.count}/{self.total} {row_line(row)}")


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
