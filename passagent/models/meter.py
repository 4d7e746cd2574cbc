"""Count what is paid: a model whose every request has a row in the ledger and room in the budget.

The meter sits inside the retries: each try is a request of its own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from passagent.errors import PassagentError
from passagent.models.prices import Price
from passagent.models.retry import Retrying, Transient, one_line
from passagent.models.types import Message, Model, Reply, ToolSpec, Usage
from passagent.store import Store, ledger
from passagent.store.episodes import Episode
from passagent.system.redaction import redact

Admit = Callable[[int, float | None], Awaitable[Callable[[], None]]]
"""`admit(tokens, cost)` returns when so much more may be spent; cost in USD, None where it is not known. What
it returns gives the room back. Raises what stops a run."""


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
        written = (0, input_tokens)
        costs = [
            self.price.cost(Usage(input_tokens, output_tokens, cache_write_tokens=tokens))
            for tokens in written
        ]
        prices = [cost for cost in costs if cost is not None]
        return max(prices, default=None)


@dataclass
class Metered:
    """A model whose every request is counted by a meter."""

    inner: Model
    meter: Meter
    attempts: int = 0

    @property
    def name(self) -> str:
        """Implement Model.name."""
        return self.inner.name

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """Implement Model.complete; raises Transient and what `admit` raises, too."""
        meter, bound = self.meter, getattr(self.inner, "bound", None)
        most: tuple[int, int] = bound(messages, tools) if bound else (0, 0)
        release = await meter.admit(sum(most), meter.at_most(*most))
        self.attempts += 1
        call_id, started = self._start(), time.monotonic()
        try:
            reply = await self.inner.complete(messages, tools)
        except BaseException as error:
            self._failed(call_id, error, time.monotonic() - started)
            release()
            raise
        self.attempts = 0
        meter._arrived = (call_id, time.monotonic() - started, release)
        return reply

    async def close(self) -> None:
        """Implement Model.close."""
        await self.inner.close()

    def _start(self) -> int:
        endpoint: str | None = getattr(self.inner, "endpoint", None)
        meter = self.meter
        return ledger.start(
            meter.store,
            meter.episode,
            role=meter.role,
            model=self.name,
            endpoint=endpoint,
            attempt=self.attempts,
        )

    def _failed(self, call_id: int, error: BaseException, latency_s: float) -> None:
        if not isinstance(error, Transient | PassagentError):  # given up, or an error of passagent's own
            ledger.end(self.meter.store, call_id, "lost", ledger.Ending(error="given up under way"))
            return
        usage: Usage | None = getattr(error, "usage", None)
        tokens: dict[str, Any] = asdict(usage) if usage else {}
        cost = self.meter.price.cost(usage) if usage and self.meter.price else None
        ending = ledger.Ending(tokens, cost, latency_s, error=redact(one_line(str(error))))
        ledger.end(self.meter.store, call_id, "broken" if tokens else "failed", ending)


def metered(model: Model, meter: Meter) -> Model:
    """`model` with every request counted by `meter`."""
    if isinstance(model, Retrying):
        return replace(model, inner=Metered(model.inner, meter), tell=meter.tell, pause=meter.pause)
    return Metered(model, meter)
