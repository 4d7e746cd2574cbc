"""Progress of a search: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol, TextIO

from passagent.agent.prompt import short_note
from passagent.faults import os_fault
from passagent.report.board import Board
from passagent.report.text import clock, number, thousands
from passagent.search.events import EpisodeStarted, Event, Migrated, NodeConfirmed, NodeDone, Trouble
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS


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


def event_line(board: Board, event: Event) -> str:
    """An event in a line; empty for those that are too small to tell."""
    match event:
        case EpisodeStarted(episode, parent_as, is_resumed):
            if episode.parent_id is None:
                start = "from the task"
            else:
                start = f"from node {episode.parent_id} (AS {number(parent_as)})"
            if episode.island == SEEDS:
                return f"{_island(board, SEEDS)} episode {episode.number} {start}"
            done = f"{board.episodes}/{board.iters} done"
            again = ", continued" if is_resumed else ""
            return f"{_island(board, episode.island)} episode {episode.number} {start}{again} ({done})"
        case NodeDone(node, from_store):
            known = ", known from the store" if from_store else ""
            note = f": {_said(node)}" if _said(node) else ""
            return (
                f"{_island(board, node.island)} node {node.id}: {node.status}, AS {number(node.as_score)}"
                f"{known} (best {number(board.best_as)}, {thousands(board.tokens)} tokens){note}"
            )
        case NodeConfirmed(node, round_, status, as_score):
            first = number(node.as_score)
            return (
                f"finalist node {node.id} measured again, round {round_}: {status}, AS {number(as_score)} "
                f"(first {first})"
            )
        case Migrated(node, to_island, reason):
            return f"{_island(board, to_island)} migration of node {node.id}: {reason}"
        case Trouble(message):
            return f"note: {message}"
    return ""


def _said(node: Node) -> str:
    """What the candidate is, or why it failed."""
    if node.status != "ok" and (found := node.diagnosed):
        return short_note(found["text"], 110)
    return short_note(node.note, 70)


def _island(board: Board, island: int) -> str:
    return "seeds:" if island == SEEDS else f"island {island} ({board.rows[island].role})"
