"""Rounds: episode n is island (n - 1) mod K's in round (n - 1) // K; seeds have the numbers below 1.

An episode sees its own island's past. Of the others it sees finished rounds, and only such as all islands
have finished for sure when it looks, so that the tree does not depend on who is faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from passagent.store.runs import Run


@dataclass(frozen=True)
class Position:
    """Where an episode stands in its run."""

    number: int
    islands: int

    @property
    def round(self) -> int:
        """How many episodes its island has had before it."""
        return (self.number - 1) // self.islands

    @property
    def island(self) -> int:
        """The island that it is of."""
        return (self.number - 1) % self.islands

    def number_of(self, round_: int, island: int) -> int:
        """The number of an island's episode in a round."""
        return round_ * self.islands + island + 1


def round_of(run: Run, number: int) -> int:
    """The round of episode `number`: how many episodes its island has had before it."""
    return Position(number, run.islands).round
