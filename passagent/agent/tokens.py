"""Sizes in tokens, by estimate, and cutting a part of a prompt to the tokens it may take.

Four characters are a token: near the truth for English and code with today's tokenizers (3 to 4.5). What a
server reports of the calls already made corrects it (fold.py), so no tokenizer is needed for any model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from passagent.models.types import Message

CHARACTERS = 4
"""A token's, by estimate."""
FRAME = 4
"""Tokens that a message costs beside its content."""

T = TypeVar("T")


def tokens(text: str) -> int:
    """The estimate for a text."""
    return -(-len(text) // CHARACTERS)


def message_tokens(message: Message) -> int:
    """The estimate for a message with all that is sent of it."""
    extras = [message[key] for key in ("tool_calls", "raw") if message.get(key)]
    return tokens(message["content"]) + (tokens(json.dumps(extras)) if extras else 0) + FRAME


def fit(items: Sequence[T], text: Callable[[T], str], budget: int) -> int:
    """How many of `items`, from the first on, fit into `budget` tokens as `text` shows them."""
    for number, item in enumerate(items):
        budget -= tokens(text(item))
        if budget < 0:
            return number
    return len(items)


def cut_end(text: str, budget: int, rest: str) -> str:
    """`text`, or the whole lines of its beginning that fit into `budget` tokens and how many lines are not.

    `rest` says where the others can be read.
    """
    if tokens(text) <= budget:
        return text
    lines = text.split("\n")
    kept = fit(lines, lambda line: line + "\n", budget)
    return "\n".join([*lines[:kept], f"... {len(lines) - kept} lines not shown{rest}"])


def cut_middle(text: str, budget: int) -> str:
    """`text`, or its beginning and its end that together fit into `budget` tokens."""
    if tokens(text) <= budget:
        return text
    half = budget * CHARACTERS // 2
    return (
        f"{text[:half]}\n... {len(text) - 2 * half} characters not shown ...\n{text[-half:] if half else ''}"
    )
