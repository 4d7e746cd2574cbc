"""Hints: structured pieces of optimisation experience, curated ones and those that models wrote."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from passagent.errors import UsageError, nearest
from passagent.experience.diagnosis import LABELS
from passagent.tasks import resources

HINTS = "knowledge/hints.yaml"
NOISE = 0.5
"""Standard deviation of the noise in a hint's rank, on the scale of confidence."""
LEARNED = 3
"""Learned hints that an episode is shown, at most."""
HELD_OUT = 0.2
"""Share of the episodes that see no learned hints."""
MAX_ADVICE = 400
"""Characters of a learned hint."""
DRAWS = 1000
"""Draws of the bootstrap."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Context(_Strict):
    """Where a hint applies; an empty list means everywhere."""

    operators: list[str] = Field(default_factory=list)
    dtypes: list[str] = Field(default_factory=list)
    targets: list[Literal["cpu", "cuda"]] = Field(default_factory=list)


class Hint(_Strict):
    """One piece of advice."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    trigger: list[str] = Field(min_length=1)
    """Labels of the diagnoses it answers (diagnosis.LABELS)."""
    context: Context = Context()
    advice: str = Field(min_length=20)
    source: str = Field(min_length=3)
    confidence: float = Field(ge=0, le=1)
    """Its author's, that it helps where it applies."""
    is_learned: ClassVar[bool] = False

    @field_validator("trigger")
    @classmethod
    def _known_labels(cls, value: list[str]) -> list[str]:
        for label in value:
            if label not in LABELS:
                raise ValueError(f"unknown trigger '{label}'{nearest(label, list(LABELS))}")
        return value


class LearnedHint(Hint):
    """A hint that a model wrote: its text is data of bounded size, in one line, without code."""

    is_learned = True

    @field_validator("advice")
    @classmethod
    def _is_data(cls, value: str) -> str:
        text = " ".join(value.split())
        if len(text) > MAX_ADVICE:
            raise ValueError(f"{len(text)} characters, {MAX_ADVICE} are allowed")
        if "```" in text or "~~~" in text:
            raise ValueError("holds a code fence; write it in words")
        return text


class Situation(NamedTuple):
    """The situation that a hint is to help with."""

    label: str
    """The diagnosis's (diagnosis.LABELS)."""
    operators: frozenset[str]
    target: str
    """`cpu`, `cuda` or a device such as `cuda:0`."""
    dtypes: frozenset[str]


class Uplift(NamedTuple):
    """The gain that showing learned hints brings: difference of mean log gains with them and without."""

    estimate: float | None
    """None: no outcome with them, or none without them."""
    low: float | None
    """Ends of the 95% bootstrap interval; None with fewer than two outcomes on a side."""
    high: float | None
    shown: int
    """Episodes that were shown them."""
    held_out: int
    """Episodes that they were held from."""


def load_hints() -> list[Hint]:
    """Read the library `knowledge/hints.yaml`. Raises UsageError naming file, hint and field."""
    where = resources.find(HINTS)
    entries = resources.read_yaml(where)
    try:
        hints = TypeAdapter(list[Hint]).validate_python(entries)
    except ValidationError as error:
        first = error.errors()[0]
        number, *field = first["loc"] or (0,)
        entry = entries[int(number)] if isinstance(entries, list) else None
        name = entry.get("id") if isinstance(entry, dict) else f"number {int(number) + 1}"
        raise UsageError(f"{where}: hint {name}: {'.'.join(map(str, field))}: {first['msg']}") from error
    for hint_id, count in Counter(hint.id for hint in hints).items():
        if count > 1:
            raise UsageError(f"{where}: hint {hint_id}: a second hint with this id")
    return hints


def retrieve(
    hints: Iterable[Hint], situation: Situation, limit: int, rng: random.Random | None = None
) -> list[Hint]:
    """Return the `limit` hints that serve a situation best, best first.

    A hint ranks by its fit and by the confidence of its author. `rng` adds noise to the rank, so that every
    hint that fits gets its turn.
    """
    scores: list[tuple[float, Hint]] = []
    for hint in sorted(hints, key=lambda hint: hint.id):
        fit = fitness(hint, situation)
        if not fit:
            continue
        noise = rng.gauss(0.0, NOISE) if rng else 0.0
        scores.append((fit * math.exp(hint.confidence + noise), hint))
    return [hint for _, hint in sorted(scores, key=lambda scored: -scored[0])[:limit]]


def fitness(hint: Hint, situation: Situation) -> float:
    """Return 0 where a hint does not apply; more for one that names these operators and dtypes."""
    context, device = hint.context, situation.target.partition(":")[0]
    if situation.label not in hint.trigger or (context.targets and device not in context.targets):
        return 0.0
    fit = 1.0
    for named, present in ((context.operators, situation.operators), (context.dtypes, situation.dtypes)):
        shared = present.intersection(named)
        if named and not shared:
            return 0.0
        # a hint for few operators is more specific than one for many
        fit += len(shared) / len(named) if named else 0.0
    return fit + (0.25 if context.targets else 0.0)


def is_held_out(episode_seed: int) -> bool:
    """Return whether an episode is to see no learned hints, so that their worth can be measured."""
    return random.Random(f"hold-out:{episode_seed}").random() < HELD_OUT


def uplift(shown: Sequence[float], held_out: Sequence[float], seed: int = 0) -> Uplift:
    """Compare the log gains of episodes with learned hints and without, with a bootstrap interval."""
    estimate = fmean(shown) - fmean(held_out) if shown and held_out else None
    if min(len(shown), len(held_out)) < 2:
        return Uplift(estimate, None, None, len(shown), len(held_out))
    rng = random.Random(seed)
    draws = sorted(
        fmean(rng.choices(shown, k=len(shown))) - fmean(rng.choices(held_out, k=len(held_out)))
        for _ in range(DRAWS)
    )
    low, high = draws[round(0.025 * (DRAWS - 1))], draws[round(0.975 * (DRAWS - 1))]
    return Uplift(estimate, low, high, len(shown), len(held_out))
