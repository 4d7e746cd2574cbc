"""Try a failed model call again, with exponential jitter or when the server's Retry-After says so.

The SDKs' own retries are off: each try is a row of the ledger. HttpModel raises Transient for what another
try may help: 408, 409, 425, 429, 5xx, time-outs, broken connections and incomplete replies.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from passagent.errors import InfrastructureError, PassagentError
from passagent.models.types import Message, Model, Reply, ToolSpec, Usage

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
