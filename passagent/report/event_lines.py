"""An event of a search in a line, for people who watch it live."""

from __future__ import annotations

from passagent import events
from passagent.events import Event
from passagent.report.board import Board
from passagent.report.tail import candidate_text, event_said
from passagent.report.text import number, thousands
from passagent.store.runs import SEEDS


def event_line(board: Board, event: Event) -> str:
    """An event in a line; empty for those that are too small to tell."""
    match event:
        case events.EpisodeBegun() | events.EpisodeContinued():
            start = "from the task"
            if event.parent is not None:
                start = f"from node {event.parent} (AS {number(event.parent_as)})"
            if event.island == SEEDS:
                return f"{_island(board, SEEDS)} episode {event.episode} {start}"
            again = ", continued" if isinstance(event, events.EpisodeContinued) else ""
            done = f"{board.episodes}/{board.iters} done"
            return f"{_island(board, event.island)} episode {event.episode} {start}{again} ({done})"
        case events.Judged():
            known = ", known from the store" if event.from_store else ""
            said = candidate_text(event)
            return (
                f"{_island(board, event.island)} node {event.node}: {event.status}, "
                f"AS {number(event.as_score)}{known} (best {number(board.best_as)}, "
                f"{thousands(board.tokens)} tokens){f': {said}' if said else ''}"
            )
        case events.Migrated():
            return f"{_island(board, event.to_island)} migration of node {event.node}: {event.reason}"
        case events.MeasuredAgain() | events.Noted():
            return event_said(event)
    return ""


def _island(board: Board, island: int) -> str:
    return "seeds:" if island == SEEDS else f"island {island} ({board.rows[island].role})"
