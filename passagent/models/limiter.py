"""Adaptive concurrency: how many calls an endpoint gets at once (AIMD; Chiu and Jain, 1989)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from passagent.models.retry import Transient

START, MOST = 8.0, 64.0
"""Calls in flight at first and at most."""


class Limiter:
    """One endpoint's calls in flight: half as many after a rate limit, one more after a round of replies."""

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
