"""Intents in a search: an episode writes what it means to try; untried ones are offered to later episodes."""

from __future__ import annotations

from passagent.agent.taskfiles import ToolError
from passagent.agent.toolbox import INTENT, Note
from passagent.redaction import redact
from passagent.search.session import Session
from passagent.store import Store, intents
from passagent.store.episodes import Episode
from passagent.store.intents import Intent

OFFERED = 5
"""Untried intents of its island that an episode is told of."""
MAX_OF_EPISODE = 12
"""Intents that an episode may write."""


def noter(session: Session, episode: Episode) -> Note:
    """What plan_intent does in `episode`."""

    def note(call_id: str, what: str, why: str, expected: int, offered: int | None) -> int:
        store = session.store
        with store.transaction():
            own = intents.of_episode(store, episode.id)
            if call_id in own:
                return own[call_id]
            if len(own) >= MAX_OF_EPISODE:
                raise ToolError(
                    f"an episode writes at most {MAX_OF_EPISODE} intents; go on with the last one"
                )
            open_ones = intents.untried(store, episode.run_id, episode.island)
            if offered is not None and offered not in {one.id for one in open_ones}:
                raise ToolError(f"offered: intent {offered} is none of those that nobody has tried")
            number = intents.add(store, episode, call_id, redact(what), redact(why), expected, offered)
        session.events.look()
        return number

    return note


def offered_lines(store: Store, episode: Episode, tools: list[str]) -> list[str]:
    """The untried intents of its island that an episode with these tools is offered, a line each."""
    if INTENT not in tools:
        return []
    return [line(one) for one in intents.untried(store, episode.run_id, episode.island)[:OFFERED]]


def line(intent: Intent) -> str:
    """`intent 12: Split the rows; why: the grid is small; expected +15%`."""
    return f"intent {intent.id}: {intent.what}; why: {intent.why}; expected {intent.expected:+d}%"


def gains(intent: Intent) -> str:
    """`expected +15%, measured +8% (2 candidates)`."""
    told = f"expected {intent.expected:+d}%"
    taken = f", takes up {intent.taken_from}" if intent.taken_from else ""
    if intent.taken_by:
        return f"{told}{taken}, taken up by {intent.taken_by}"
    if intent.is_untried:
        return f"{told}{taken}, untried"
    got = "nothing correct" if intent.measured is None else f"measured {intent.measured:+.0f}%"
    return f"{told}{taken}, {got} ({intent.nodes} candidate{'s' if intent.nodes > 1 else ''})"


def outcome(intent: Intent) -> str:
    """`- Split the rows (expected +15%, measured +8% (2 candidates))`."""
    return f"- {intent.what} ({gains(intent)})"
