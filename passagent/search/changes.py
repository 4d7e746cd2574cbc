"""What differs between two candidates: their files."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import NamedTuple


class Change(NamedTuple):
    """A file that is not the same on both sides."""

    file: str
    added: int
    """Lines."""
    removed: int

    def __str__(self) -> str:
        """`Fused.py +12 -3`."""
        parts = [f"+{self.added}" * bool(self.added), f"-{self.removed}" * bool(self.removed)]
        return " ".join([self.file, *filter(None, parts)])


def unified(before: dict[str, str], after: dict[str, str], names: tuple[str, str]) -> Iterator[str]:
    """The unified diff of two candidates, line by line; `names` are the sides' directories in the headers."""
    for file in sorted(before.keys() | after.keys()):
        if before.get(file) != after.get(file):
            old, new = (side.get(file, "").splitlines() for side in (before, after))
            yield from difflib.unified_diff(old, new, f"{names[0]}/{file}", f"{names[1]}/{file}", lineterm="")


def changes(before: dict[str, str], after: dict[str, str]) -> list[Change]:
    """The files that differ, with how many lines came and went."""
    found = []
    for file in sorted(before.keys() | after.keys()):
        if before.get(file) != after.get(file):
            lines = list(unified({file: before.get(file, "")}, {file: after.get(file, "")}, ("a", "b")))[2:]
            count = [sum(line.startswith(sign) for line in lines) for sign in "+-"]
            found.append(Change(file, *count))
    return found
