"""Remove what must never be shown or stored: text is cleaned where it enters the store, a log or a screen.

Taken out are the values of environment variables whose names say that they are secrets, and, wherever they
come from, what stands behind `Authorization:` and its like, bearer tokens, passwords in URLs, and keys and
tokens of known shapes.
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
        "a key in a header",
        re.compile(
            rf"((?:proxy-)?authorization){_IS}(?:(?:bearer|basic|token)\s+)?{_VALUE}|"
            # a word behind `: ` is a sentence's: "check OPENAI_API_KEY: Incorrect API key provided"
            rf"(x-api-key|api[-_]key|x-goog-api-key){_IS}(?!(?<=:\s)[a-z]{{1,19}}(?![\w~+/=-]|\.\w)){_VALUE}",
            re.I,
        ),
        rf"\1\2\3\4{REDACTED}",
        ("authorization", "api-key", "api_key"),
    ),
    ("a bearer token", re.compile(r"\b(bearer\s+)[\w.~+/=-]{12,}", re.I), rf"\1{REDACTED}", ("bearer",)),
    ("an API key", re.compile(r"\bsk-[\w-]{16,}"), REDACTED, ("sk-",)),
    ("an AWS key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), REDACTED, ("akia", "asia")),
    (
        "a GitHub token",
        re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})"),
        REDACTED,
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    ),
    ("a GitLab token", re.compile(r"\bglpat-[\w-]{20,}"), REDACTED, ("glpat-",)),
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}"), REDACTED, ("hf_",)),
    ("a Google key", re.compile(r"\bAIza[\w-]{35}"), REDACTED, ("aiza",)),
    ("a Slack token", re.compile(r"\bxox[abprs]-[\w-]{10,}"), REDACTED, ("xox",)),
    (
        "a private key",
        re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(?:[A-Za-z0-9+/=\s]|\\[nr]){20,}"),
        rf"\1{REDACTED}",
        ("private key-----",),
    ),
    ("a password", re.compile(r"(\w://[^\s/:@\"']*:)[^\s/@\"']+@"), rf"\1{REDACTED}@", ("://",)),
)
"""A kind of secret, its shape, what takes its place, and words, one of which every text with it has in lower
case."""


def redact(text: str) -> str:
    """`text` with the name in angle brackets in the place of every secret, also as it stands inside JSON."""
    # os.environ decodes each variable at every look; what it holds can be compared as a whole
    return _cleaned(text, tuple(vars(os.environ)["_data"].items())) if len(text) >= _MIN_LENGTH else text


def kind_of_secret(text: str) -> str | None:
    """Name what `redact` would take out first: a kind of secret; None where there is nothing."""
    if redact(text) == text:
        return None
    return next((kind for kind, shape, _, _ in _SHAPES if shape.search(text)), "a secret")


def redacted(value: Any) -> Any:
    """`value` (plain data) with every text in it redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redacted(item) for key, item in value.items()}
    return [redacted(item) for item in value] if isinstance(value, list) else value


@functools.lru_cache(maxsize=256)
def _cleaned(text: str, environment: tuple[tuple[bytes, bytes], ...]) -> str:
    """Remembered, for most is said again and again: the system message, the tools' descriptions."""
    for name, value in _secrets(environment):
        for written in {value, json.dumps(value)[1:-1]}:
            text = text.replace(written, f"<{name}>")
    lower = text.lower()
    for _, shape, replacement, marks in _SHAPES:
        if any(mark in lower for mark in marks):  # looking for a word is much cheaper than for a shape
            text = shape.sub(replacement, text)
    return text


@functools.lru_cache(maxsize=2)
def _secrets(environment: tuple[tuple[bytes, bytes], ...]) -> list[tuple[str, str]]:
    """Name and value of every variable named ...KEY, ...TOKEN, ...SECRET and the like. Paths are no secrets.

    The longest value first, so that one which contains another is replaced whole.
    """
    named = [(os.fsdecode(name), os.fsdecode(value)) for name, value in environment]
    secrets = [
        (name, value)
        for name, value in named
        if _NAME.search(name) and len(value) >= _MIN_LENGTH and not value.startswith("/")
    ]
    return sorted(secrets, key=lambda secret: -len(secret[1]))
