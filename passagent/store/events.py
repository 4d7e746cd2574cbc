"""A run's typed events: the list that `on_event`, `status --follow` and screens read.

They are read from the rows of the store (store/timeline.py), so they come in the order of the commits.
What only the process itself knows (UNSTORED) is passed on as it happens. docs/operators.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened."""

    kind: ClassVar[str]
    at: str
    """ISO 8601, UTC."""

    def as_json(self) -> dict[str, Any]:
        """Return the event as plain data: `at`, `event` (its kind) and the fields of its class."""
        return {"at": self.at, "event": self.kind} | asdict(self)


@dataclass(frozen=True, kw_only=True)
class Joined(Event):
    """A process began to drive the run."""

    kind = "joined"
    owner: str
    """`HOST:PID`."""
    version: str
    changes: list[str]
    """Differences from the session before: settings, versions."""


@dataclass(frozen=True, kw_only=True)
class Left(Event):
    """A process ended its work on the run, or died."""

    kind = "left"
    owner: str
    left_because: str | None


@dataclass(frozen=True, kw_only=True)
class OfEpisode(Event):
    """Something that happened in an episode."""

    episode: int
    island: int
    """-1: seeds."""


@dataclass(frozen=True, kw_only=True)
class OfNode(OfEpisode):
    """Something that happened to a candidate."""

    node: int


@dataclass(frozen=True, kw_only=True)
class EpisodeBegun(OfEpisode):
    """A model begins to work, from a node or from the task itself."""

    kind = "episode_begun"
    model: str | None
    parent: int | None
    """The node; None: the task itself."""
    parent_as: float | None


@dataclass(frozen=True, kw_only=True)
class EpisodeContinued(EpisodeBegun):
    """This process goes on with an episode that an earlier session began. Not stored."""

    kind = "episode_continued"


@dataclass(frozen=True, kw_only=True)
class EpisodeEnded(OfEpisode):
    """An episode is over."""

    kind = "episode_ended"
    model: str | None
    parent: int | None
    parent_status: str | None
    end_reason: str | None
    steps: int
    """Model calls."""
    best_node: int | None
    """None: nothing correct."""
    best_as: float | None
    gain: float | None
    """ln of its best AS over the AS that it started from."""


@dataclass(frozen=True, kw_only=True)
class Requested(OfEpisode):
    """A model was asked: what an answer and a failure have in common."""

    role: str
    """`agent` or `hint_distiller`."""
    model: str
    attempt: int
    latency_s: float | None


@dataclass(frozen=True, kw_only=True)
class Replied(Requested):
    """A model answered."""

    kind = "reply"
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    """USD; None: no price is known."""


@dataclass(frozen=True, kw_only=True)
class RequestFailed(Requested):
    """A model did not answer; the request is made again, or the run ends with an error."""

    kind = "request_failed"
    state: str
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Proposed(OfNode):
    """A candidate was written, and is to be evaluated."""

    kind = "proposed"
    parent: int | None
    note: str
    repeat_of: int | None
    """The earlier node of the island that it is equal to."""


@dataclass(frozen=True, kw_only=True)
class EvaluationBegun(OfNode):
    """This process evaluates a candidate, or looks for it in the store. Not stored."""

    kind = "evaluation_begun"


@dataclass(frozen=True, kw_only=True)
class Judged(OfNode):
    """A candidate was evaluated."""

    kind = "judged"
    status: str
    as_score: float | None
    from_store: bool
    """An equal candidate had been measured before."""
    note: str
    diagnosis: dict[str, Any] | None
    """`label` and `text`."""
    parent: int | None
    parent_as: float | None
    parent_status: str | None


@dataclass(frozen=True, kw_only=True)
class Migrated(Event):
    """An elite of one island may be a parent on another."""

    kind = "migration"
    node: int
    from_island: int
    to_island: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class MeasuredAgain(Event):
    """A finalist was measured once more, side by side with the others."""

    kind = "measured_again"
    node: int
    round: int
    status: str
    as_score: float | None
    first_as: float | None


@dataclass(frozen=True, kw_only=True)
class HintWritten(OfEpisode):
    """A hint was distilled from an episode."""

    kind = "hint_written"
    hint: str | None


@dataclass(frozen=True, kw_only=True)
class Noted(Event):
    """Something for a person to know: a wait for a device, a passing fault. Not stored."""

    kind = "note"
    message: str


OnEvent = Callable[[Event], object]
KINDS: dict[str, type[Event]] = {
    event.kind: event
    for event in (
        Joined, Migrated, EpisodeBegun, EpisodeContinued, Replied, RequestFailed, Proposed, EvaluationBegun,
        Judged, EpisodeEnded, MeasuredAgain, HintWritten, Left, Noted,
    )
}  # fmt: skip
"""The events by their kinds, in the order of those of the same millisecond."""
UNSTORED = (EpisodeContinued, EvaluationBegun, Noted)
"""Events that the database does not hold and `passagent status --follow` does not show."""
