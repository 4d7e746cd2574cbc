"""Limits of a candidate on the trusted side: sizes and lengths, and a worker's text made fit for them."""

from __future__ import annotations

FILES = {"bytes of files and names": 1 << 20, "files": 200}
"""The most that a candidate may have."""
VIOLATIONS = 200
MESSAGE = 2000
"""Characters of a violation's message."""
ERROR = 4000
"""Characters of a worker's error."""


def plain(text: str) -> str:
    """Fit for a file, a database and a terminal: no surrogates, no control characters."""
    encoded = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in encoded)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end where it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2 - 3]} ... {text[len(text) - most // 2 + 2 :]}"
