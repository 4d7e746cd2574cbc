"""What a search tells whoever watches: typed events, in the order in which they are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from passagent.store.episodes import Episode
from passagent.store.nodes import Node


@dataclass(frozen=True)
class EpisodeStarted:
    """An episode goes to work, from its parent node or from the task itself."""

    episode: Episode
    parent_as: float | None
    is_resumed: bool


@dataclass(frozen=True)
class ModelReplied:
    """A model call was paid for."""

    episode: Episode
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class NodeStarted:
    """A candidate waits for or is in its evaluation."""

    node: Node


@dataclass(frozen=True)
class NodeDone:
    """A candidate was judged; `from_store`: an equal one had been before."""

    node: Node
    from_store: bool


@dataclass(frozen=True)
class NodeConfirmed:
    """A finalist was measured once more, side by side with the others."""

    node: Node
    round: int
    status: str
    as_score: float | None


@dataclass(frozen=True)
class Migrated:
    """An elite came to another island."""

    node: Node
    to_island: int
    reason: str


@dataclass(frozen=True)
class EpisodeDone:
    """An episode ended."""

    episode: Episode


@dataclass(frozen=True)
class Trouble:
    """Something that the search mends by itself, for the person to know."""

    message: str


Event = (
    EpisodeStarted | ModelReplied | NodeStarted | NodeDone | NodeConfirmed | Migrated | EpisodeDone | Trouble
)
OnEvent = Callable[[Event], None]
