"""Options by the names that a person gives them, on the command line and in Python, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import yaml

from passagent.errors import UsageError, nearest

OPTIONS = {
    "device": "evaluator.device",
    "dispatch": "evaluator.dispatch",
    "pool": "evaluator.pool",
    "token_file": "evaluator.token_file",
    "base_url": "model.base_url",
    "iters": "search.iters",
    "islands": "search.islands",
    "seed": "search.seed",
    "seed_dir": "search.seed_dir",
    "deterministic": "search.deterministic",
    "max_time": "search.max_time_s",
    "max_tokens": "search.max_tokens",
    "max_cost": "search.max_cost",
    "max_evals": "search.max_evaluations",
    "target_as": "search.target_as",
    "max_stagnation": "search.max_stagnation",
    "until": "search.until",
    "validator": "validator.model",
    "library": "experience.library",
    "exclude": "experience.exclude",
}
"""An option's name to the key that it sets. `model` and `price` set several, see `settings_of`."""
SOL_MARGIN = 0.1
"""`until="sol"`: so near to the speed of light an island rests; `search.until_sol` for another share."""
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
            found |= parse_models([value] if isinstance(value, str) else list(value))
        elif name == "price":
            from passagent.models.prices import parse_price

            found["model.prices"] = dict(map(parse_price, [value] if isinstance(value, str) else value))
        elif (name, value) == ("until", "sol"):
            found.setdefault("search.until_sol", SOL_MARGIN)
        else:
            found[OPTIONS[name]] = value.value if isinstance(value, Enum) else value
    return found


def parse_models(words: list[str]) -> dict[str, Any]:
    """The settings behind `--model NAME` or `--model A=0.7 --model B=0.3`. Raises UsageError."""
    if len(words) == 1 and _weighted(words[0])[1] is None:
        return {"model.name": words[0], "model.ensemble": []}
    members = []
    for word in words:
        name, weight = _weighted(word)
        if weight is not None and not weight > 0:
            raise UsageError(f"--model {word}: the weight must be over 0")
        members.append({"name": name, "weight": 1.0 if weight is None else weight})
    return {"model.ensemble": members}


def _weighted(word: str) -> tuple[str, float | None]:
    """`A=0.7` as name and weight; the weight is None where there is none."""
    name, separator, figure = word.rpartition("=")
    try:
        return (name, float(figure)) if separator and name else (word, None)
    except ValueError:
        return word, None


def parse_set(pairs: list[str]) -> dict[str, Any]:
    """`["search.iters=4"]` to `{"search.iters": 4}`; values are YAML. Raises UsageError."""
    result: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--set {pair}: write key=value, such as --set search.iters=20")
        try:
            result[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {pair}: the value is not valid YAML") from error
    return result
