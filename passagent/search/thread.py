"""Work side by side in asyncio, and an event loop on a thread of its own for callers that are not asyncio's.

The thread works in a script, in another thread, and in a notebook, whose own loop is running.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def side_by_side(*work: Coroutine[Any, Any, T]) -> AsyncIterator[list[asyncio.Task[T]]]:
    """Yield the tasks that do the work; what goes on at the end of the block is cancelled and waited for."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LoopThread:
    """A running loop; `close` ends it. The thread does not keep a process from ending."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """The result of a coroutine that is on its way; cancelling it cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, waited for; it is cancelled if the caller is interrupted."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop's thread; nobody waits for it."""
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """End loop and thread, after what is being cancelled has cleaned up."""

        async def all_else_done() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)

        self.run(all_else_done())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


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
            if sessions:
                thread.call(lambda: sessions[0].stop("interrupted", interrupted=True))
            else:  # it has not begun
                future.cancel()
            with suppress(CancelledError):
                future.result()
            raise KeyboardInterrupt(GO_ON) from None
    finally:
        future.cancel()
        thread.close()
