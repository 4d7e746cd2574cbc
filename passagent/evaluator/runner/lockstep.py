"""Whose turn it is: a counter in memory that two workers share, so that they call in strict alternation."""

from __future__ import annotations

import mmap
import os
import time

_TAKEN, _GONE = 0, 8
"""Words of the memory: turns taken, and whether a side gave up (which it may do when it is not its turn)."""
_SPINS = 256
_PATIENCE_S = 60.0


class TurnLost(Exception):
    """The other side gave up or does not come."""


class Turn:
    """A count of turns taken. Both sides spin on it, giving up the core they share at every look."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        self._count = memoryview(self._map).cast("q")
        os.close(fd)

    @staticmethod
    def create() -> int:
        """The descriptor of a fresh count, for both workers. Raises OSError."""
        fd = os.memfd_create("passagent-turn", os.MFD_CLOEXEC)
        os.ftruncate(fd, mmap.PAGESIZE)
        return fd

    def wait(self, number: int) -> None:
        """Return when at least `number` turns were taken. Raises TurnLost."""
        count, give_way, spins, deadline = self._count, os.sched_yield, 0, 0.0
        while count[_TAKEN] < number:
            give_way()
            spins += 1
            if spins % _SPINS == 0:
                now = time.monotonic()
                deadline = deadline or now + _PATIENCE_S
                if count[_GONE] or now > deadline:
                    raise TurnLost("the other side's calls ended early")

    def give(self) -> None:
        """The turn is taken."""
        self._count[_TAKEN] += 1

    def abort(self) -> None:
        """Let the other side go."""
        self._count[_GONE] = 1

    def close(self) -> None:
        """Unmap; the count lives on for the other side."""
        self._count.release()
        self._map.close()
