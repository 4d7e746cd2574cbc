"""Compute in the referee while a worker goes on: comparing large outputs takes its time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from passagent.evaluator.hardware.leases import DeviceLease

_MOST = 2
"""Pieces of work that wait or run, at most."""
_ROOM = 1 << 30
"""Bytes that they hold together; a larger piece is waited for at once."""


class Comparisons:
    """Work on a thread of its own, in order. What it raises is raised to who waits for it."""

    def __init__(self, lease: DeviceLease) -> None:
        self._lease = lease
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aside")
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._lock = threading.Lock()

    def do(self, work: Callable[[], None], nbytes: int) -> None:
        """Begin with `work`, which holds so many bytes; from any thread, one after the other.

        Raises what earlier work did, if it ends here.
        """
        with self._lock:
            while len(self._under_way) >= _MOST or (self._under_way and self._held() + nbytes > _ROOM):
                self._first()
            self._under_way.append((self._thread.submit(self._done, work), nbytes))
            if nbytes > _ROOM:
                self.wait()

    def wait(self) -> None:
        """Until nothing is under way. Raises the first failure; later work is dropped with it."""
        while self._under_way:
            self._first()

    @contextmanager
    def finished(self) -> Iterator[None]:
        """At the end nothing is under way: it is waited for, or dropped if an exception comes."""
        try:
            yield
        except BaseException:
            self._drop()
            raise
        self.wait()

    def close(self) -> None:
        """Wait, and end the thread."""
        self._thread.shutdown()

    def _done(self, work: Callable[[], None]) -> None:
        with self._lease.host():
            work()

    def _held(self) -> int:
        return sum(nbytes for _, nbytes in self._under_way)

    def _first(self) -> None:
        future, _ = self._under_way.popleft()
        try:
            future.result()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        wait([future for future, _ in self._under_way])
        self._under_way.clear()
