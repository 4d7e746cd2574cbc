"""Aligned tables and short figures, as plain text."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

from passagent.errors import PassagentError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # what a terminal obeys
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of writing
    "\ud800-\udfff]"  # halves of characters, which no file holds
)


_GAP = "  "
_LEAST = 8
"""Characters that a cut cell keeps."""


def width() -> int:
    """Characters in a line of the terminal; 80 where there is none, and COLUMNS does not say."""
    return shutil.get_terminal_size().columns


def console(stream: TextIO | None = None, soft_wrap: bool = False) -> Console:
    """A console on `stream` (default: stdout); where NO_COLOR is set without bold and dim, too."""
    from rich.console import Console

    system = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream, highlight=False, soft_wrap=soft_wrap, color_system=system)  # type: ignore[arg-type]


class Output(NamedTuple):
    """The answer of a command, in both forms."""

    data: Any
    """For `--json`: an object, or its JSON."""
    text: Any
    """For people: a text or one of rich, or what makes or prints it."""
    problem: str = ""
    """Why the exit code is 1 all the same."""

    def print(self, as_json: bool) -> None:
        """Print it in its form. Raises PassagentError for a problem."""
        text = self.text() if callable(self.text) and not as_json else self.text
        if as_json:
            print(self.data if isinstance(self.data, str) else json.dumps(self.data))
        elif isinstance(text, str):
            print(text)
        elif text is not None:
            console(soft_wrap=True).print(text)
        if self.problem:
            raise PassagentError(self.problem)


def by_column(
    items: Iterable[T], columns: Mapping[str, Callable[[T], str]]
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table: a row for each item, of whose columns each says what it shows."""
    return [*columns], [[cell(item) for cell in columns.values()] for item in items]


@dataclass(frozen=True)
class TableData:
    """A table for a terminal and a notebook (`str`), for Markdown, and for the page (parts.html)."""

    header: Sequence[str]
    """Names of the columns; those that begin with `>` are aligned to the right."""
    rows: Sequence[Sequence[str]]
    drop: Sequence[str] = ()
    """Columns that a narrow terminal or page leaves out, in this order."""
    indent: str = "  "
    notes: Sequence[str] = ()
    """Lines below the table."""

    def __str__(self) -> str:
        table_text = [table(self.header, self.rows, self.indent, self.drop)] if self.rows else []
        return "\n".join([*table_text, *self.notes])

    def markdown(self) -> str:
        """Write the table as Markdown."""
        marks = ["---:" if name.startswith(">") else "---" for name in self.header]
        lines = [[name.removeprefix(">") for name in self.header], marks, *self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    indent: str = "  ",
    drop: Sequence[str] = (),
    wrap: Sequence[str] = (),
) -> str:
    """A line a row; a column whose header starts with `>` is aligned to the right.

    Where the terminal is narrower, the beginning that a column's names share goes, then the columns named in
    `drop`, one after the other; then cells are cut. Those of `wrap`, sentences, are broken at spaces.
    """
    right = [name.startswith(">") for name in header]
    names = [name.removeprefix(">") for name in header]
    columns = [list(column) for column in zip(names, *rows, strict=True)]
    chosen, room = list(range(len(columns))), width() - len(indent)
    widths = [max(map(len, column)) for column in columns]

    def over() -> int:
        return sum(widths[i] for i in chosen) + len(_GAP) * (len(chosen) - 1) - room

    if over() > 0:
        columns = [column if right[i] else _distinct(column) for i, column in enumerate(columns)]
        widths = [max(map(len, column)) for column in columns]
    for name in drop:
        if over() > 0:
            chosen.remove(names.index(name))
    least = [_least(column, right[i], names[i] in wrap) for i, column in enumerate(columns)]
    while over() > 0 and (wider := [i for i in chosen if widths[i] > least[i]]):
        widths[max(wider, key=lambda i: (names[i] in wrap, widths[i]))] -= 1
    lines = []
    for place in range(len(rows) + 1):
        cells = [_lines(columns[i][place], widths[i], names[i] in wrap) for i in chosen]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            aligned = [
                part.rjust(widths[i]) if right[i] else part.ljust(widths[i])
                for i, part in zip(chosen, parts, strict=True)
            ]
            lines.append((indent + _GAP.join(aligned)).rstrip())
    return "\n".join(lines)


def _least(column: list[str], is_number: bool, wraps: bool) -> int:
    """Characters that a column needs: its numbers, its longest word, or the beginning of a name."""
    words = column[1:] if is_number else " ".join(column).split() if wraps else ["." * _LEAST]
    return max(map(len, words), default=0)


def _distinct(column: list[str]) -> list[str]:
    """The column without the beginning that all its cells share, up to a separator of names."""
    shared = re.match(r"\S{7,}[:/._-]", os.path.commonprefix(column[1:]))  # noqa: RUF071 (no paths)
    if shared is None or len(set(column[1:])) < 2:
        return column
    return [column[0], *(f"..{cell[shared.end() :]}" for cell in column[1:])]


def _lines(cell: str, width: int, wraps: bool) -> list[str]:
    """The cell's lines where it may not be wider than `width`."""
    if len(cell) <= width:
        return [cell]
    broken = textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) if wraps else []
    return broken or [f"{cell[: width - 2]}.."]


def number(value: float | None, digits: int = 3) -> str:
    """A figure with `digits` decimals, or `-`."""
    return "-" if value is None else f"{value:.{digits}f}"


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def thousands(value: int) -> str:
    """`12345` to `12.3k`."""
    if value < 1000:
        return str(value)
    return f"{value / 1000:.1f}k" if value < 1_000_000 else f"{value / 1_000_000:.2f}M"


def counted(count: int, noun: str) -> str:
    """`1 island`, `2 islands`."""
    many = f"{noun[:-1]}ies" if noun.endswith("ply") else f"{noun}s"
    return f"{count} {noun if count == 1 else many}"


def percent(log_gain: float | None) -> str:
    """A gain, ln(AS after / AS before), as `+12.3%`; `-` where it is not known."""
    return "-" if log_gain is None else f"{math.expm1(log_gain):+.1%}"


def interval(value: float | None, low: float | None, high: float | None, digits: int = 3) -> str:
    """`1.234 [1.200, 1.270]`; no interval where there is none, or one of no width."""
    if low is None or high is None or low == high:
        return number(value, digits)
    return f"{number(value, digits)} [{number(low, digits)}, {number(high, digits)}]"


def are_separate(*intervals: tuple[float | None, float | None]) -> bool | None:
    """Return whether two intervals do not overlap; None where an end is not known."""
    (low, high), (other_low, other_high) = intervals
    if low is None or high is None or other_low is None or other_high is None:
        return None
    return low > other_high or high < other_low


def printable(text: str) -> str:
    """A model's text without what a terminal would obey, and what makes it look like other text."""
    return _CONTROL.sub("\ufffd", text)
