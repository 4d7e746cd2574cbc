"""An event of a search in a line: for a live table, and with its time for `passagent status --follow`."""

from __future__ import annotations

from passagent import events
from passagent.agent.prompt import short_note
from passagent.events import Event
from passagent.store.locks import process_text
from passagent.store.runs import SEEDS
from passagent.view.board import Board
from passagent.view.text import number, percent, printable, thousands


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


def event_text(event: Event, roles: dict[int, str]) -> str:
    """`11-21 15:17:33 island 0 (fusion) node 7: ok, AS 1.310, +8.2% over node 3: ...`; the time is UTC."""
    at = event.at[5:19].replace("T", " ")
    where, island = "", getattr(event, "island", None)
    if island is not None:
        where = f"island {island} ({roles[island]}) " if island in roles else "seeds "
    return printable(f"{at} {where}{event_said(event)}")


def event_said(event: Event) -> str:
    """What happened, without when and where."""
    match event:
        case events.Joined():
            changes = f": {'; '.join(event.changes)}" if event.changes else ""
            return f"{process_text(event.owner)} joined, passagent {event.version}{changes}"
        case events.Left():
            return f"{process_text(event.owner)} left: {event.left_because}"
        case events.EpisodeBegun():
            start = "the task"
            if event.parent is not None:
                start = f"node {event.parent} (AS {number(event.parent_as)})"
            return f"episode {event.episode} begins from {start}, {event.model}"
        case events.EpisodeEnded():
            left = "nothing correct"
            if event.best_node is not None:
                gain = (
                    f", {percent(event.gain)} over node {event.parent}" if event.parent_status == "ok" else ""
                )
                left = f"best node {event.best_node}, AS {number(event.best_as)}{gain}"
            return f"episode {event.episode} ended ({event.end_reason}, {event.steps} steps): {left}"
        case events.Replied():
            tokens = f"{thousands(event.input_tokens or 0)} in, {thousands(event.output_tokens or 0)} out"
            cost = "" if event.cost is None else f", ${event.cost:.4f}"
            who = event.model if event.role == "agent" else f"{event.model} as {event.role}"
            took = number(event.latency_s, 1)
            return f"episode {event.episode}: reply of {who} ({took} s, {tokens}{cost})"
        case events.RequestFailed():
            attempt = f"attempt {event.attempt}, " if event.attempt > 1 else ""
            error = short_note(" ".join((event.error or "").split()), 160)
            return f"episode {event.episode}: {event.model} ({attempt}{event.state}): {error}"
        case events.Proposed():
            repeat = f", equal to node {event.repeat_of}" if event.repeat_of else ""
            return f"node {event.node} proposed{repeat}"
        case events.Judged():
            return _judged(event)
        case events.Migrated():
            return f"migration of node {event.node} to island {event.to_island}: {event.reason}"
        case events.MeasuredAgain():
            said = f"{event.status}, AS {number(event.as_score)} (first {number(event.first_as)})"
            return f"finalist node {event.node} measured again, round {event.round}: {said}"
        case events.HintWritten():
            return f"episode {event.episode}: hint {event.hint} distilled"
        case events.Noted():
            return f"note: {event.message}"
    raise AssertionError(event)


def _judged(event: events.Judged) -> str:
    gain = ""
    if event.status == event.parent_status == "ok" and event.as_score and event.parent_as:
        gain = f", {event.as_score / event.parent_as - 1:+.1%} over node {event.parent}"
    known = ", known from the store" if event.from_store else ""
    said = candidate_text(event)
    score = number(event.as_score)
    return f"node {event.node}: {event.status}, AS {score}{gain}{known}{f': {said}' if said else ''}"


def candidate_text(event: events.Judged) -> str:
    """What the candidate is, or why it failed."""
    if event.status != "ok" and event.diagnosis:
        return short_note(event.diagnosis["text"], 110)
    return short_note(event.note, 70)
