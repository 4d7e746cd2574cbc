"""What two operator sequences are compared by: which operators follow each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

EDGE = "|"
"""Stands before the first operator and behind the last one."""


def pairs_of(operators: Sequence[str]) -> list[str]:
    """The distinct pairs of neighbours, in order of their names."""
    words = [EDGE, *operators, EDGE]
    return sorted({f"{first} {second}" for first, second in itertools.pairwise(words)})
