"""Remove what must never be shown or stored: text is cleaned where it enters the store, a log or a screen.

Taken out are the values of environment variables whose names say that they are secrets, and, wherever they
come from, what stands behind `Authorization:` and its like, bearer tokens, `sk-...` keys and passwords in
URLs.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Any

_NAME = re.compile(
    r"(^|_|API)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?(_[A-Z0-9]{1,16})?$", re.I
)
_MIN_LENGTH = 6
"""Shorter values are no secrets, and would tear holes into every line."""
REDACTED = "[redacted]"
_IS, _VALUE = r"(\\?[\"']?\s*[:=]\s*\\?[\"']?)", r"[^\s\"'\\,;})\]<\[]{6,}"
_SHAPES = (
    (
        re.compile(
            rf"((?:proxy-)?authorization){_IS}(?:(?:bearer|basic|token)\s+)?{_VALUE}|"
            # a word behind `: ` is a sentence's: "check OPENAI_API_KEY: Incorrect API key provided"
            rf"(x-api-key|api[-_]key|x-goog-api-key){_IS}(?!(?<=:\s)[a-z]{{1,19}}(?![\w~+/=-]|\.\w)){_VALUE}",
            re.I,
        ),
        rf"\1\2\3\4{REDACTED}",
        ("authorization", "api-key", "api_key"),
    ),
    (re.compile(r"\b(bearer\s+)[\w.~+/=-]{12,}", re.I), rf"\1{REDACTED}", ("bearer",)),
    (re.compile(r"\bsk-[\w-]{16,}"), REDACTED, ("sk-",)),
    (re.compile(r"(\w://[^\s/:@\"']*:)[^\s/@\"']+@"), rf"\1{REDACTED}@", ("://",)),
)
"""A shape, what takes its place, and words (in lower case) one of which is in every text that has it."""


def secrets() -> dict[str, str]:
    """Value to name of every environment variable named ...KEY, ...TOKEN, ...SECRET and the like.

    The longest value first, so that one which contains another is replaced whole. Paths are no secrets.
    """
    values = {value: name for name, value in os.environ.items() if _NAME.search(name)}
    return {
        value: values[value]
        for value in sorted(values, key=len, reverse=True)
        if len(value) >= _MIN_LENGTH and not value.startswith("/")
    }


def _written() -> tuple[tuple[str, str], ...]:
    """Return the environment's secrets as they may be written, each with what takes its place."""
    # os.environ decodes each variable at every look; what it holds can be compared as a whole
    return _written_in(tuple(vars(os.environ)["_data"].items()))


@functools.lru_cache(maxsize=2)
def _written_in(environment: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (written, f"<{name}>")
        for value, name in secrets().items()
        for written in {value, json.dumps(value)[1:-1]}
    )


def redact(text: str) -> str:
    """`text` with the name in angle brackets in the place of every secret, also as it stands inside JSON."""
    return _redact(text, _written())


def redacted(value: Any) -> Any:
    """`value` (plain data) with every text in it redacted."""
    return _redacted(value, _written())


def _redact(text: str, written: tuple[tuple[str, str], ...]) -> str:
    return text if len(text) < _MIN_LENGTH else _cleaned(text, written)


@functools.lru_cache(maxsize=256)
def _cleaned(text: str, written: tuple[tuple[str, str], ...]) -> str:
    """Remembered, for most is said again and again: the system message, the tools' descriptions."""
    for value, name in written:
        if value in text:
            text = text.replace(value, name)
    lower = text.lower()
    for shape, replacement, marks in _SHAPES:
        for mark in marks:
            if mark in lower:  # looking for a word is much cheaper than for a shape
                text = shape.sub(replacement, text)
                break
    return text


def _redacted(value: Any, written: tuple[tuple[str, str], ...]) -> Any:
    if isinstance(value, str):
        return _redact(value, written)
    if isinstance(value, dict):
        return {key: _redacted(item, written) for key, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item, written) for item in value]
    return value
