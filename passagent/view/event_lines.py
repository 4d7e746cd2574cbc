"""An event of a search in a line: as it happens, and with its time for `passagent status --follow`."""

from __future__ import annotations

from collections.abc import Mapping

from passagent import events
from passagent.agent.prompt import short_note
from passagent.events import Event
from passagent.store.locks import process_text
from passagent.store.runs import SEEDS
from passagent.view.text import number, percent, printable, thousands

PROGRESS = (
    events.EpisodeBegun,
    events.EpisodeContinued,
    events.Judged,
    events.Migrated,
    events.MeasuredAgain,
    events.Noted,
)
"""Events that a running search prints."""


def event_text(event: Event, roles: Mapping[int, str]) -> str:
    """Write `11-21 15:17:33 island 0 (fusion) node 7: ok, AS 1.310, +8.2% over node 3: ...`, in UTC."""
    return f"{event.at[5:19].replace('T', ' ')} {event_line(event, roles)}"


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
