"""Aligned tables and short figures, as plain text."""

from __future__ import annotations

import math
import os
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # what a terminal obeys
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of writing
    "\ud800-\udfff]"  # halves of characters, which no file holds
)


_GAP = "  "


def width() -> int:
    """Characters in a line of the terminal; 80 where there is none, and COLUMNS does not say."""
    return shutil.get_terminal_size().columns


def console(stream: TextIO | None = None, soft_wrap: bool = False) -> Console:
    """A console on `stream` (default: stdout); where NO_COLOR is set without bold and dim, too."""
    from rich.console import Console

    system = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream, highlight=False, soft_wrap=soft_wrap, color_system=system)  # type: ignore[arg-type]


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ", drop: Sequence[str] = ()
) -> str:
    """Columns as wide as they must be; a column whose header starts with `>` is aligned to the right.

    Where the terminal is narrower, the columns named in `drop` go, one after the other; then cells are
    broken at spaces, never in a word.
    """
    names = [name.removeprefix(">") for name in header]
    columns = list(zip(names, *rows, strict=True))
    right = [name.startswith(">") for name in header]
    chosen, room = list(range(len(columns))), width() - len(indent)
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]

    def over() -> int:
        return sum(widths[i] for i in chosen) + len(_GAP) * (len(chosen) - 1) - room

    for name in drop:
        if over() > 0:
            chosen.remove(names.index(name))
    for i in sorted(chosen, key=lambda i: -widths[i]):
        longest = max((len(word) for cell in columns[i] for word in cell.split()), default=0)
        widths[i] = min(widths[i], max(longest, widths[i] - max(0, over())))
    lines = []
    for place in range(len(rows) + 1):
        cells = [_broken(columns[i][place], widths[i]) for i in chosen]
        for part in range(max(map(len, cells))):
            shown = [cell[part] if part < len(cell) else "" for cell in cells]
            aligned = [
                text.rjust(widths[i]) if right[i] else text.ljust(widths[i])
                for i, text in zip(chosen, shown, strict=True)
            ]
            lines.append((indent + _GAP.join(aligned)).rstrip())
    return "\n".join(lines)


def _broken(cell: str, width: int) -> list[str]:
    """The cell's lines, broken at spaces where they are wider."""
    lines = cell.split("\n")
    if max(map(len, lines)) <= width:
        return lines
    wrapped = [textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in lines]
    return [part for line in wrapped for part in line]


def shortened(text: str, limit: int) -> str:
    """`text` on one line, cut after a word to at most `limit` characters."""
    return textwrap.shorten(text, max(limit, 10), placeholder="...")


def number(value: float | None, digits: int = 3, unit: str = "") -> str:
    """A figure with `digits` decimals, or `-`."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


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


def printable(text: str) -> str:
    """A model's text without what a terminal would obey, and what makes it look like other text."""
    return _CONTROL.sub("\ufffd", text)
