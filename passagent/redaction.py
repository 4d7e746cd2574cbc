"""What must never be shown or stored: text is cleaned where it enters the store, a log or a screen.

Taken out are the values of environment variables whose names say that they are secrets, and, wherever they
come from, what stands behind `Authorization:` and its like, bearer tokens, `sk-...` keys and passwords in
URLs.
"""

from __future__ import annotations

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
_SHAPES = (
    (
        re.compile(
            r"((?:proxy-)?authorization|x-api-key|api[-_]key|x-goog-api-key)"
            r"(\\?[\"']?\s*[:=]\s*\\?[\"']?)(?:(?:bearer|basic|token)\s+)?[^\s\"'\\,;})\]<\[]{6,}",
            re.I,
        ),
        rf"\1\2{REDACTED}",
    ),
    (re.compile(r"\b(bearer\s+)[\w.~+/=-]{12,}", re.I), rf"\1{REDACTED}"),
    (re.compile(r"\bsk-[\w-]{16,}"), REDACTED),
    (re.compile(r"(\w://[^\s/:@\"']*:)[^\s/@\"']+@"), rf"\1{REDACTED}@"),
)


def secrets() -> dict[str, str]:
    """Value to name of every environment variable named ...KEY, ...TOKEN, ...SECRET and the like.

    The longest value first, so that one which contains another is replaced whole. Paths are no secrets.
    """
    found = {value: name for name, value in os.environ.items() if _NAME.search(name)}
    return {
        value: found[value]
        for value in sorted(found, key=len, reverse=True)
        if len(value) >= _MIN_LENGTH and not value.startswith("/")
    }


def redact(text: str) -> str:
    """`text` with the name in angle brackets in the place of every secret, also as it stands inside JSON."""
    for value, name in secrets().items():
        for written in {value, json.dumps(value)[1:-1]}:
            text = text.replace(written, f"<{name}>")
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text


def redacted(value: Any) -> Any:
    """`value` (plain data) with every text in it redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redacted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redacted(item) for item in value]
    return value
