"""A search on a thread of its own, for callers that are not asyncio's, and how it is stopped from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from passagent.system.threads import LoopThread

T = TypeVar("T")


class Stoppable(Protocol):
    """A search's session, or a collection of them."""

    is_interrupted: bool

    def stop(self, reason: str, interrupted: bool = False) -> None:
        """Stop at the next place where work can be left."""


Search = Callable[[list[Stoppable]], Coroutine[Any, Any, T]]
"""Searches, and puts its session into the list, for it to be stopped by."""
GO_ON = "stopped; what was begun is stored, go on with passagent.resume('last') or the same call"


def finished(search: Search[T]) -> T:
    """Return the search's result. Ctrl-C stops it cleanly and raises KeyboardInterrupt; a second one stops at
    once.

    Raises what the search raises.
    """
    sessions: list[Stoppable] = []
    thread = LoopThread("passagent-run")
    future = thread.start(search(sessions))
    try:
        try:
            return future.result()
        except KeyboardInterrupt:
            _stop(thread, future, sessions)
            with suppress(CancelledError):
                future.result()
            raise KeyboardInterrupt(GO_ON) from None
    finally:
        future.cancel()
        thread.close()


async def finished_async(search: Search[T]) -> T:
    """Return the search's result in asyncio; cancelling stops the search cleanly."""
    sessions: list[Stoppable] = []
    thread = LoopThread("passagent-run")
    future = thread.start(search(sessions))
    waited = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waited)
    except asyncio.CancelledError:
        _stop(thread, future, sessions)
        await asyncio.wait([waited])
        raise
    finally:
        future.cancel()
        await asyncio.to_thread(thread.close)


def _stop(thread: LoopThread, future: Future[T], sessions: list[Stoppable]) -> None:
    """Stop the search at its next safe place; at once where it has not begun."""
    if sessions:
        thread.call(lambda: sessions[0].stop("interrupted", interrupted=True))
    else:
        future.cancel()
