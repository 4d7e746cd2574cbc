"""The one place that decides whether a failed model call is tried again, when, and what a person reads.

The SDKs' own retries are off. 408, 409, 425, 429, 5xx (529 among them), time-outs, broken connections and
incomplete replies are tried again with exponential jitter, or when the server's Retry-After says so.
Everything else is an answer: it is told at once.
"""

from __future__ import annotations

import email.utils
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential_jitter,
)

from passagent.errors import InfrastructureError, PassagentError, UsageError

log = logging.getLogger("passagent.models")

MAX_RETRY_AFTER_S = 600.0
TRANSIENT_STATUS = {408, 409, 425, 429}
_BACKOFF = wait_exponential_jitter(initial=0.5, max=60, jitter=0.5)
_OVERFLOW = re.compile(
    r"context[ _](length|window|limit|size)|maximum context|(prompt|input) is too long|too many input tokens",
    re.I,
)

T = TypeVar("T")


class Transient(Exception):
    """A failure that another try may mend; `retry_after` in seconds where the server said it."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ContextOverflow(PassagentError):
    """The conversation is longer than the model's window: fold it and ask again."""


async def with_retries(call: Callable[[], Awaitable[T]], name: str, max_retries: int) -> T:
    """`call()`, tried at most `max_retries` more times while it raises Transient.

    Raises InfrastructureError after the last try; any other exception passes through at once.
    """

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, Transient) else None
        return _BACKOFF(state) if asked is None else min(asked, MAX_RETRY_AFTER_S) + random.uniform(0, 0.25)

    def tell(state: RetryCallState) -> None:
        error, seconds = state.outcome and state.outcome.exception(), state.upcoming_sleep
        log.warning("%s: %s; try %d in %.1f s", name, error, state.attempt_number + 1, seconds)

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(Transient),
        stop=stop_after_attempt(max_retries + 1),
        wait=wait,
        before_sleep=tell,
        reraise=True,
    )

    async def attempt() -> T:
        return await call()

    try:
        return await retrying(attempt)
    except Transient as error:
        # from None: the SDK's exception behind it holds the request, headers and all
        raise InfrastructureError(f"{name}: {error}; gave up after {max_retries + 1} tries") from None


def judge_status(
    name: str, key_variable: str, status: int, *, message: str, code: str, headers: Mapping[str, str]
) -> Exception:
    """What an HTTP error of a model's server means: Transient, ContextOverflow, UsageError or PassagentError.

    `message` and `code` are the server's, secrets already taken out; `key_variable` names the key's variable.
    """
    said = one_line(message)
    if is_overflow(status, message, code):
        return ContextOverflow(f"{name}: the conversation is longer than the model's window: {said}")
    if code == "insufficient_quota" or status == 402:
        return UsageError(f"{name}: the account's quota is used up (HTTP {status}): {said}")
    if status in TRANSIENT_STATUS or status >= 500:
        return Transient(f"HTTP {status}: {said}", retry_after(headers))
    if status in (401, 403):
        return UsageError(f"{name}: the server refuses the key (HTTP {status}); check {key_variable}: {said}")
    if status == 404:
        return UsageError(f"{name}: no such model or address (HTTP 404): {said}")
    return PassagentError(f"{name}: the server refuses the request (HTTP {status}): {said}")


def is_overflow(status: int, message: str, code: str) -> bool:
    """Whether an HTTP error says that the prompt does not fit into the model's window."""
    said = status == 400 and _OVERFLOW.search(message) is not None
    return said or status == 413 or code == "context_length_exceeded"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that `retry-after-ms` or `Retry-After` (seconds or a date) asks for, None without them."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after", "")
        if re.fullmatch(r"\s*\d+(\.\d*)?\s*", value):
            return float(value)
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time()) if value else None
    except ValueError:
        return None


def one_line(text: str, limit: int = 300) -> str:
    """`text` on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
