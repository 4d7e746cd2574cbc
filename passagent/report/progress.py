"""Progress of a search: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol, TextIO

from passagent.events import Event
from passagent.faults import os_fault
from passagent.report.board import Board
from passagent.report.event_lines import event_line
from passagent.report.text import clock


class Progress(Protocol):
    """Something that shows a search while it runs."""

    def on_event(self, event: Event) -> None:
        """Show an event."""
        ...

    def say(self, text: str) -> None:
        """Show a line of text."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def open_progress(board: Board, stream: TextIO | None = None) -> Progress:
    """The live table if `stream` (default: stdout) is a terminal, else plain lines."""
    stream = stream or sys.stdout
    if stream.isatty():
        from passagent.report.live import LiveTable

        return LiveTable(board, stream)
    return Lines(board, stream)


class Lines:
    """A line for each node, migration and trouble."""

    def __init__(self, board: Board, stream: TextIO) -> None:
        self.board, self.stream = board, stream

    def on_event(self, event: Event) -> None:
        """See Progress.on_event."""
        self.board.update(event)
        line = event_line(self.board, event)
        if line:
            self.say(f"[{clock(self.board.elapsed_s):>5}] {line}")

    def say(self, text: str) -> None:
        """See Progress.say. Raises PassagentError: an OSError would be taken for one of a file."""
        try:
            print(text, file=self.stream, flush=True)
        except OSError as error:
            raise os_fault(error, Path(self.stream.name)) from error

    def close(self) -> None:
        """See Progress.close."""
