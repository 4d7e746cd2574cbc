"""Count what is paid: a model whose every request has a row in the ledger and room in the budget.

Each try of Retrying is a request of its own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from passagent.errors import PassagentError
from passagent.models.prices import Price
from passagent.models.retry import Retrying, Transient, one_line
from passagent.models.types import Message, Model, Reply, ToolSpec, Usage
from passagent.store import Store, ledger
from passagent.store.episodes import Episode
from passagent.store.redaction import redact

Admit = Callable[[int, float | None], Awaitable[Callable[[], None]]]
"""`admit(tokens, cost)` returns when so much more may be spent; cost in USD, None where it is not known. What
it returns gives the room back. Raises what stops a run."""

Bound = Callable[[list[Message], list[ToolSpec]], tuple[int, int]]
"""`(input, output)` tokens that a call may take at most; not every model says."""


@dataclass
class Meter:
    """Counts the requests of one episode, and says what becomes of those that fail."""

    store: Store
    episode: Episode
    price: Price | None
    admit: Admit
    tell: Callable[[str], None]
    """Prints a line for a person, as Retrying.tell does."""
    pause: Callable[[float], Awaitable[None]]
    """Waits, as Retrying.pause does."""
    role: str = "agent"
    _arrived: tuple[int, float, Callable[[], None]] | None = None
    """A reply that is not stored yet: its call's id, latency in s, and what gives the room back."""

    def settle(self, usage: Usage, stop_reason: str | None) -> None:
        """End the row of the reply that arrived last: to be called in the transaction that stores it."""
        if self._arrived is None:
            return
        call_id, latency_s, release = self._arrived
        self._arrived = None
        cost = self.price.cost(usage) if self.price else None
        ledger.end(self.store, call_id, "done", ledger.Ending(vars(usage), cost, latency_s, stop_reason))
        release()

    def at_most(self, input_tokens: int, output_tokens: int) -> float | None:
        """The cost of a call that takes so many tokens at the dearest rates, USD; None if not known."""
        if self.price is None:
            return None
        usages = (Usage(input_tokens, output_tokens, cache_write_tokens=n) for n in (0, input_tokens))
        costs = [cost for usage in usages if (cost := self.price.cost(usage)) is not None]
        return max(costs, default=None)

    async def ask(self, model: Model, messages: list[Message], tools: list[ToolSpec], attempt: int) -> Reply:
        """Ask once, with a row in the ledger. Raises what `model` and `admit` raise."""
        bound: Bound | None = getattr(model, "bound", None)
        most = bound(messages, tools) if bound else (0, 0)
        release = await self.admit(sum(most), self.at_most(*most))
        endpoint: str | None = getattr(model, "endpoint", None)
        call_id = ledger.start(
            self.store, self.episode, role=self.role, model=model.name, endpoint=endpoint, attempt=attempt
        )
        started = time.monotonic()
        try:
            reply = await model.complete(messages, tools)
        except BaseException as error:
            state, ending = "lost", ledger.Ending(error="given up under way")
            if isinstance(error, Transient | PassagentError):  # else given up, or an error of passagent's own
                usage: Usage | None = getattr(error, "usage", None)
                cost = self.price.cost(usage) if usage and self.price else None
                tokens: dict[str, Any] = asdict(usage) if usage else {}
                reason, seconds = redact(one_line(str(error))), time.monotonic() - started
                state, ending = (
                    "broken" if usage else "failed",
                    ledger.Ending(tokens, cost, seconds, error=reason),
                )
            ledger.end(self.store, call_id, state, ending)
            release()
            raise
        self._arrived = (call_id, time.monotonic() - started, release)
        return reply


def metered(model: Model, meter: Meter) -> Retrying:
    """`model` with every request counted by `meter`."""
    inner, retries = (model.inner, model.max_retries) if isinstance(model, Retrying) else (model, 0)
    return Retrying(inner, retries, meter.tell, meter.pause, partial(meter.ask, inner))
