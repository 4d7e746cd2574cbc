"""The live table: islands, iteration, best AS, last status, tokens, elapsed, ETA."""

from __future__ import annotations

from typing import TextIO

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from passagent.events import Event, MeasuredAgain, Migrated, Noted
from passagent.view.board import Board
from passagent.view.event_lines import event_line
from passagent.view.text import clock, console, number, thousands


class LiveTable:
    """Redrawn four times a second; migrations and troubles stay above it as lines."""

    def __init__(self, board: Board, stream: TextIO) -> None:
        self.board = board
        self._live = Live(
            console=console(stream), get_renderable=self.render, refresh_per_second=4, transient=True
        )
        self._live.start()

    def on_event(self, event: Event) -> None:
        """See Progress.on_event."""
        self.board.update(event)
        if isinstance(event, Migrated | MeasuredAgain | Noted):
            self.say(event_line(self.board, event))

    def say(self, text: str) -> None:
        """See Progress.say."""
        self._live.console.print(Text(text))

    def close(self) -> None:
        """See Progress.close."""
        self._live.stop()

    def render(self) -> Group:
        """The table as it is now."""
        board = self.board
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("island", "role", "episode", "best AS", "last", "nodes"):
            table.add_column(name, justify="left" if name in ("role", "last") else "right")
        for island, row in enumerate(board.rows):
            table.add_row(
                str(island),
                row.role,
                str(row.episode or "-"),
                number(row.best_as),
                row.last,
                str(row.evaluations),
            )
        eta = clock(board.eta_s) if board.eta_s is not None else "-"
        foot = (
            f"{board.episodes}/{board.iters} episodes  best AS {number(board.best_as)}  "
            f"{thousands(board.tokens)} tokens  elapsed {clock(board.elapsed_s)}  ETA {eta}"
        )
        head = f"run {board.run.id}: {board.run.task}, {board.run.model}, {board.run.device}"
        return Group(Text(head), table, Text(foot))
