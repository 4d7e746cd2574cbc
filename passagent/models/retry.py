"""Ask a model again where that may help, and count every try: a row in the ledger, room in the budget.

The SDKs' own retries are off. HttpModel raises Transient for what another try may help: 408, 409, 425, 429,
5xx, time-outs, broken connections and incomplete replies. The wait is an exponential with jitter, or what the
server's Retry-After says.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from passagent.errors import InfrastructureError, PassagentError, one_line
from passagent.extend import Model
from passagent.models.prices import Price
from passagent.models.types import Message, Reply, ToolSpec, Usage
from passagent.store import Episode, Store, ledger
from passagent.store.redaction import redact

log = logging.getLogger("passagent.models")

MAX_WAIT_S, MAX_RETRY_AFTER_S = 60.0, 600.0


class Transient(Exception):
    """A failure that another try may avoid; `retry_after` in seconds where the server said it.

    `usage`: what the server said it counted for a reply that arrived broken; None if it said nothing.
    """

    def __init__(self, message: str, retry_after: float | None = None, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.retry_after, self.usage = retry_after, usage


class ContextOverflow(PassagentError):
    """The conversation is longer than the model's window: fold it and ask again."""


@dataclass
class Retrying:
    """A model that asks `inner` at most `max_retries` more times while it raises Transient.

    Raises InfrastructureError after the last try; any other exception passes through at once.
    """

    inner: Model
    max_retries: int
    tell: Callable[[str], None] = log.warning
    """Takes a line before each wait: who waits, why, which try comes, and when."""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits so long, s."""

    @property
    def name(self) -> str:
        """Implement Model.name."""
        return self.inner.name

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """Implement Model.complete."""
        number, most = 0, self.max_retries + 1
        while True:
            number += 1
            try:
                return await self.ask(messages, tools, number)
            except Transient as error:
                if number == most:
                    # from None: the SDK's exception behind it holds the request, headers and all
                    text = f"{self.name}: {error}; gave up after {most} tries"
                    raise InfrastructureError(text) from None
                seconds = backoff(number) if error.retry_after is None else error.retry_after
                self.tell(f"{self.name}: {error}; try {number + 1} of {most} in {seconds:.1f} s")
            await self.pause(seconds)

    async def ask(self, messages: list[Message], tools: list[ToolSpec], attempt: int) -> Reply:
        """Ask `inner` once: the try of this number, from 1."""
        return await self.inner.complete(messages, tools)

    async def close(self) -> None:
        """Implement Model.close."""
        await self.inner.close()


def backoff(number: int) -> float:
    """Seconds to wait after the failed try of this number, from 1."""
    return min(MAX_WAIT_S, 0.5 * 2 ** (number - 1)) + random.uniform(0, 0.5)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that `retry-after-ms` or `Retry-After` asks for, MAX_RETRY_AFTER_S at most; None without."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        if re.fullmatch(r"\d+(\.\d*)?", value := headers.get(name, "").strip()):
            return min(float(value) / unit, MAX_RETRY_AFTER_S)
    return None


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
