"""The one place that decides whether a failed model call is tried again, when, and what a person reads.

The SDKs' own retries are off. 408, 409, 425, 429, 5xx (529 among them), time-outs, broken connections and
incomplete replies are tried again with exponential jitter, or when the server's Retry-After says so.
Everything else is an answer: it is raised at once.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential_jitter,
)

from passagent.errors import InfrastructureError, PassagentError, UsageError
from passagent.models.types import Message, Model, Reply, ToolSpec, Usage

log = logging.getLogger("passagent.models")

START, MOST = 8.0, 64.0
"""Calls to an endpoint in flight at first and at most."""
MAX_RETRY_AFTER_S = 600.0
TRANSIENT_STATUS = {408, 409, 425, 429}
RATE_LIMIT_STATUS = {429, 529}
BACKOFF = wait_exponential_jitter(initial=0.5, max=60, jitter=0.5)
_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|limit|size)|(prompt|input) is too long|too many (input|prompt) tokens"
    r"|input token count .{0,40}exceeds|reduce the length of the (messages|prompt)",
    re.I,
)
_OVERFLOW_CODES = {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"}


class Transient(Exception):
    """A failure that another try may avoid; `retry_after` in seconds where the server said it.

    `usage`: what the server said it counted for a reply that arrived broken; None if it said nothing.
    """

    def __init__(
        self,
        message: str,
        retry_after: float | None = None,
        usage: Usage | None = None,
        is_rate_limit: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after, self.usage, self.is_rate_limit = retry_after, usage, is_rate_limit


class NoApi(Transient):
    """No API answers at the model's address: another try helps only where one did before."""


class ContextOverflow(PassagentError):
    """The conversation is longer than the model's window: fold it and ask again."""


class Limiter:
    """One endpoint's calls in flight: half as many after a rate limit, one more after a round of replies.

    Additive increase, multiplicative decrease (AIMD; Chiu and Jain, 1989).
    """

    def __init__(self, start: float = START, most: float = MOST) -> None:
        self.limit, self.most = start, most
        self.in_flight = 0
        self._cuts = 0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a place, hold it meanwhile, and learn from how the call ends."""
        while self.in_flight >= int(self.limit):
            await self._changed.wait()
        self.in_flight += 1
        cuts = self._cuts
        try:
            yield
            self.limit = min(self.most, self.limit + 1 / self.limit)
        except Transient as error:
            if error.is_rate_limit and cuts == self._cuts:  # calls that were under way together count as one
                self._cuts += 1
                self.limit = max(1.0, self.limit / 2)
            raise
        finally:
            self.in_flight -= 1
            self._changed.set()
            self._changed = asyncio.Event()


@dataclass
class Retrying:
    """A model that asks `inner` at most `max_retries` more times while it raises Transient.

    Every try takes a place of `limiter`; waiting takes none. Raises InfrastructureError after the last try;
    any other exception passes through at once.
    """

    inner: Model
    limiter: Limiter
    max_retries: int
    tell: Callable[[str], None] = log.warning
    """Takes a line before each wait: who waits, why, which try comes, and when."""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits so long, s."""

    @property
    def name(self) -> str:
        """Implement Model.name."""
        return self.inner.name

    @property
    def endpoint(self) -> str:
        """The address behind it, empty where there is none."""
        return str(getattr(self.inner, "endpoint", ""))

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """Implement Model.complete."""

        async def attempt() -> Reply:
            async with self.limiter.slot():
                return await self.inner.complete(messages, tools)

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Transient),
            stop=stop_after_attempt(self.max_retries + 1),
            wait=_wait,
            before_sleep=self._tell,
            sleep=self.pause,
            reraise=True,
        )
        try:
            return await retrying(attempt)
        except Transient as error:
            # from None: the SDK's exception behind it holds the request, headers and all
            raise InfrastructureError(
                f"{self.name}: {error}; gave up after {self.max_retries + 1} tries"
            ) from None

    async def close(self) -> None:
        """Implement Model.close."""
        await self.inner.close()

    def _tell(self, state: RetryCallState) -> None:
        error, seconds = state.outcome and state.outcome.exception(), state.upcoming_sleep
        tries = f"try {state.attempt_number + 1} of {self.max_retries + 1}"
        self.tell(f"{self.name}: {error}; {tries} in {seconds:.1f} s")


def _wait(state: RetryCallState) -> float:
    """Seconds to wait before the next try."""
    error = state.outcome.exception() if state.outcome else None
    seconds = error.retry_after if isinstance(error, Transient) else None
    return BACKOFF(state) if seconds is None else min(seconds, MAX_RETRY_AFTER_S) + random.uniform(0, 0.25)


def judge_status(
    name: str, key_variable: str, status: int, *, message: str, code: str, headers: Mapping[str, str]
) -> Exception:
    """Read a server's HTTP error as Transient, ContextOverflow, UsageError or PassagentError.

    `message` and `code` are the server's, secrets already taken out; `key_variable` names the key's variable.
    """
    text = one_line(message)
    if is_overflow(status, message, code):
        return ContextOverflow(f"{name}: the conversation is longer than the model's window: {text}")
    if code == "insufficient_quota" or status == 402:
        return UsageError(f"{name}: the account's quota is used up (HTTP {status}): {text}")
    if status in TRANSIENT_STATUS or status >= 500:
        limited = status in RATE_LIMIT_STATUS
        return Transient(f"HTTP {status}: {text}", retry_after(headers), is_rate_limit=limited)
    if status in (401, 403):
        return UsageError(f"{name}: the server refuses the key (HTTP {status}); check {key_variable}: {text}")
    if status == 404:
        return UsageError(f"{name}: no such model or address (HTTP 404): {text}")
    return PassagentError(f"{name}: the server refuses the request (HTTP {status}): {text}")


def is_overflow(status: int, message: str, code: str) -> bool:
    """Return whether an error says that the prompt does not fit into the model's window."""
    has_words = status == 400 and _OVERFLOW.search(message) is not None
    return has_words or status == 413 or code in _OVERFLOW_CODES


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that `retry-after-ms` or `Retry-After` (seconds or a date) asks for, None without them."""
    number = re.compile(r"\s*\d+(\.\d*)?\s*")
    if number.fullmatch(headers.get("retry-after-ms", "")):
        return float(headers["retry-after-ms"]) / 1000
    value = headers.get("retry-after", "")
    if number.fullmatch(value):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time()) if value else None
    except ValueError:
        return None


def one_line(text: str, limit: int = 300) -> str:
    """`text` on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
