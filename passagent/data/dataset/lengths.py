"""How long examples are in tokens: by the tokenizer given, else by an estimate that says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from passagent.agent.tokens import tokens
from passagent.data.dataset.example import Example
from passagent.errors import UsageError

Count = Callable[[str], int]
CONTEXTS = (8_192, 32_768, 131_072, 262_144)
"""Context lengths of today's students, tokens."""


def counter(tokenizer: str | None) -> tuple[Count, str]:
    """What counts a text's tokens, and its name.

    tokenizer: a `tokenizer.json` file or a directory that holds one. Raises UsageError.
    """
    if tokenizer is None:
        return tokens, "an estimate: 4 characters a token"
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError("--tokenizer needs the package tokenizers: pip install tokenizers") from error
    try:
        loaded = Tokenizer.from_file(str(path))
    except Exception as error:  # it raises bare Exceptions
        raise UsageError(f"{path}: not a tokenizer that can be read ({error})") from error
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids), str(path)


def length(example: Example, count: Count) -> int:
    """Tokens of all that a chat template would render, its own marks left out."""
    texts = [json.dumps(example.tools)] if example.tools else []
    for turn in example.turns:
        texts += [turn.content, turn.reasoning or ""]
        texts += [f"{call.name} {json.dumps(call.arguments)}" for call in turn.calls]
    return sum(count(text) for text in texts if text)


def percentiles(lengths: list[int]) -> dict[str, int]:
    """The 50th, 90th and 99th percentile, and the largest."""
    ordered = sorted(lengths)
    return {
        name: ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
        for name, share in (("50%", 50), ("90%", 90), ("99%", 99), ("longest", 100))
    }
