"""An event of a search in a line, for people."""

from __future__ import annotations

from passagent.agent.prompt import short_note
from passagent.report.board import Board
from passagent.report.text import number, thousands
from passagent.search.notices import EpisodeStarted, Event, Migrated, NodeConfirmed, NodeDone, Trouble
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS


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
