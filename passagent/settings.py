"""Options by the names that a person gives them, on the command line and in Python, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from passagent.errors import UsageError, nearest

OPTIONS = {
    "device": "evaluator.device",
    "dispatch": "evaluator.dispatch",
    "base_url": "model.base_url",
    "iters": "search.iters",
    "islands": "search.islands",
    "seed": "search.seed",
    "seed_dir": "search.seed_dir",
    "max_time": "search.max_time_s",
    "max_tokens": "search.max_tokens",
    "max_cost": "search.max_cost",
    "max_evals": "search.max_evaluations",
    "target_as": "search.target_as",
    "max_stagnation": "search.max_stagnation",
    "until": "search.until",
    "validator": "validator.model",
}
"""An option's name to the key that it sets. `model` and `price` set several, see `settings_of`."""
NAMES = (*OPTIONS, "model", "price")


def settings_of(options: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`settings` (of `section.key`) and those that `options` stand for, which win.

    None and [] stand for nothing. Raises UsageError for an option that there is not, and for a model or a
    price that is not written as one.
    """
    found = dict(settings or {})
    for name, value in options.items():
        if name not in NAMES:
            raise UsageError(
                f"no option '{name}'{nearest(name, list(NAMES))}; other settings: settings={{...}}"
            )
        if value is None or value == []:
            continue
        if name == "model":
            from passagent.config import parse_models

            found |= parse_models([value] if isinstance(value, str) else list(value))
        elif name == "price":
            from passagent.models.prices import parse_price

            found["model.prices"] = dict(map(parse_price, [value] if isinstance(value, str) else value))
        else:
            found[OPTIONS[name]] = value.value if isinstance(value, Enum) else value
    return found
