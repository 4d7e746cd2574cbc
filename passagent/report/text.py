"""Aligned tables and short figures, as plain text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Columns as wide as they must be; a column whose header starts with `>` is aligned to the right."""
    right = [name.startswith(">") for name in header]
    lines = [[name.removeprefix(">") for name in header], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        indent
        + "  ".join(
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


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
    return f"{count} {noun}{'' if count == 1 else 's'}"


def percent(log_gain: float | None) -> str:
    """A gain, ln(AS after / AS before), as `+12.3%`; `-` where it is not known."""
    return "-" if log_gain is None else f"{math.expm1(log_gain):+.1%}"


def interval(value: float | None, low: float | None, high: float | None, digits: int = 3) -> str:
    """`1.234 [1.200, 1.270]`; no interval where there is none, or one of no width."""
    if low is None or high is None or low == high:
        return number(value, digits)
    return f"{number(value, digits)} [{number(low, digits)}, {number(high, digits)}]"


def printable(text: str) -> str:
    """A model's text without what a terminal would obey."""
    return _CONTROL.sub("\ufffd", text)
