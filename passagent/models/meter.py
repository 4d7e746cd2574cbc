"""Count what is paid: a model whose every request has a row in the ledger and room in the budget.

Each try of Retrying is a request of its own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from passagent.errors import PassagentError, one_line
from passagent.models.prices import Price
from passagent.models.retry import Retrying, Transient
from passagent.models.types import Message, Reply, ToolSpec, Usage
from passagent.store import Episode, Store, ledger
from passagent.store.redaction import redact

Admit = Callable[[int, float | None], Awaitable[Callable[[], None]]]
"""`admit(tokens, cost)` returns when so much more may be spent; cost in USD, None where it is not known. What
it returns gives the room back. Raises what stops a run."""

Bound = Callable[[list[Message], list[ToolSpec]], tuple[int, int]]
"""`(input, output)` tokens that a call may take at most; not every model says."""


@dataclass(kw_only=True)
class Metered(Retrying):
    """A model that counts the requests of one episode, and says what becomes of those that fail."""

    store: Store
    episode: Episode
    price: Price | None
    admit: Admit
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
        outcome = {"cost": cost, "latency_s": latency_s, "stop_reason": stop_reason}
        ledger.end(self.store, call_id, "done", vars(usage), **outcome)
        release()

    def at_most(self, input_tokens: int, output_tokens: int) -> float | None:
        """The cost of a call that takes so many tokens at the dearest rates, USD; None if not known."""
        if self.price is None:
            return None
        usages = (Usage(input_tokens, output_tokens, cache_write_tokens=n) for n in (0, input_tokens))
        costs = [cost for usage in usages if (cost := self.price.cost(usage)) is not None]
        return max(costs, default=None)

    async def ask(self, messages: list[Message], tools: list[ToolSpec], attempt: int) -> Reply:
        """Ask once, with a row in the ledger. Raises what the model and `admit` raise."""
        bound: Bound | None = getattr(self.inner, "bound", None)
        most = bound(messages, tools) if bound else (0, 0)
        release = await self.admit(sum(most), self.at_most(*most))
        endpoint: str | None = getattr(self.inner, "endpoint", None)
        call_id = ledger.start(
            self.store, self.episode, role=self.role, model=self.name, endpoint=endpoint, attempt=attempt
        )
        started = time.monotonic()
        try:
            reply = await self.inner.complete(messages, tools)
        except BaseException as error:
            usage: Usage | None = None
            state, outcome = "lost", dict[str, Any](error="given up under way")
            if isinstance(error, Transient | PassagentError):  # else given up, or an error of passagent's own
                usage = getattr(error, "usage", None)
                cost = self.price.cost(usage) if usage and self.price else None
                state, seconds = "broken" if usage else "failed", time.monotonic() - started
                outcome = {"cost": cost, "latency_s": seconds, "error": redact(one_line(str(error)))}
            ledger.end(self.store, call_id, state, vars(usage) if usage else {}, **outcome)
            release()
            raise
        self._arrived = (call_id, time.monotonic() - started, release)
        return reply
