"""Progress of a search: a live table on a terminal, plain lines elsewhere. And lines with a state below."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from passagent.events import Event
from passagent.system.faults import os_fault
from passagent.view.board import Board
from passagent.view.event_lines import event_line
from passagent.view.text import clock, console

if TYPE_CHECKING:
    from rich.live import Live


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
        from passagent.view.live import LiveTable

        return LiveTable(board, stream)
    return Lines(board, stream)


def print_line(text: str, stream: TextIO) -> None:
    """Print a line at once. Raises PassagentError: an OSError would be taken for one of a file."""
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        raise os_fault(error, Path(stream.name)) from error


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
        """See Progress.say."""
        print_line(text, self.stream)

    def close(self) -> None:
        """See Progress.close."""


class StatusLine:
    """Lines on a stream; on a terminal one more beneath them, which changes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None
        if stream.isatty():
            from rich.live import Live

            self._live = Live(console=console(stream), transient=True)
            self._live.start()

    @property
    def is_shown(self) -> bool:
        """The stream is a terminal."""
        return self._live is not None

    def show(self, text: str) -> None:
        """Show `text` beneath the lines; nothing where there is no terminal."""
        if self._live:
            from rich.text import Text

            self._live.update(Text(text))

    def print(self, text: str) -> None:
        """Print a line. Raises PassagentError."""
        if self._live:
            from rich.text import Text

            self._live.console.print(Text(text))
        else:
            print_line(text, self._stream)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live:
            self._live.stop()
