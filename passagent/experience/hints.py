"""The hint library: structured pieces of optimisation experience, ranked by fit and by proven gain.

Pure functions: what a hint gained so far comes in as statistics, logging a use is the search's work.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from passagent import resources
from passagent.errors import UsageError, nearest
from passagent.experience.diagnosis import LABELS

HINTS = "knowledge/hints.yaml"
PRIOR_USES = 4.0
"""Uses that the prior weighs as much as."""
PRIOR_GAIN = 0.1
"""Mean log gain expected of an untried hint of confidence 1."""
GAIN_SCALE = 0.1
"""A log gain this much higher makes a hint e times as likely to be shown."""
OTHER_ISLAND = 0.5
"""Weight of a hint that belongs to another island."""


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
    """How far it may be trusted before it was ever used."""

    @field_validator("trigger")
    @classmethod
    def _known_labels(cls, value: list[str]) -> list[str]:
        for label in value:
            if label not in LABELS:
                raise ValueError(f"unknown trigger '{label}'{nearest(label, list(LABELS))}")
        return value


@dataclass(frozen=True)
class RankedHint:
    """A hint and why it stands where it stands."""

    hint: Hint
    score: float
    fit: float
    expected_gain: float
    """Posterior mean of the log gain."""


def load_hints(text: str | None = None, where: str | None = None) -> list[Hint]:
    """The library `knowledge/hints.yaml`, or the one in `text`. Raises UsageError naming hint and field."""
    if text is None:
        path = resources.find(HINTS)
        text, where = path.read_text(encoding="utf-8"), str(path)
    where = where or "hints"
    try:
        entries: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(entries, list):
        raise UsageError(f"{where}: must be a list of hints")
    hints: list[Hint] = []
    for number, entry in enumerate(entries, start=1):
        name = entry.get("id", f"number {number}") if isinstance(entry, dict) else f"number {number}"
        try:
            hint = Hint.model_validate(entry)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "entry"
            raise UsageError(f"{where}: hint {name}: {field}: {first['msg']}") from error
        if any(hint.id == other.id for other in hints):
            raise UsageError(f"{where}: hint {hint.id}: a second hint with this id")
        hints.append(hint)
    return hints


def retrieve(
    hints: Iterable[Hint],
    label: str,
    operators: Iterable[str],
    target: str,
    dtypes: Iterable[str],
    stats: Mapping[str, tuple[int, float]],
    limit: int,
    rng: random.Random | None = None,
    island: tuple[int, int] | None = None,
) -> list[RankedHint]:
    """The `limit` hints that serve a diagnosis `label` best, best first.

    `stats`: id to (uses, mean log gain of the candidates that followed). With `rng` the gain is drawn from
    its posterior (Thompson sampling), so that untried hints get their turn; without, its mean is used.
    `island` = (this island, number of islands): hints of other islands count less, so that islands differ.
    """
    used, kinds = set(operators), set(dtypes)
    ranked = []
    for hint in hints:
        if label not in hint.trigger or not (fit := fitness(hint, label, used, target, kinds)):
            continue
        uses, mean = stats.get(hint.id, (0, 0.0))
        gain = expected_gain(hint.confidence, uses, mean)
        drawn = gain if rng is None else rng.gauss(gain, GAIN_SCALE / math.sqrt(PRIOR_USES + uses))
        score = fit * math.exp(drawn / GAIN_SCALE)
        if island is not None and home(hint.id, island[1]) != island[0] % island[1]:
            score *= OTHER_ISLAND
        ranked.append(RankedHint(hint, score, fit, gain))
    return sorted(ranked, key=lambda entry: (-entry.score, entry.hint.id))[:limit]


def fitness(hint: Hint, label: str, operators: set[str], target: str, dtypes: set[str]) -> float:
    """0 where a hint does not apply; more for one that speaks of these operators and dtypes."""
    context = hint.context
    device = target.partition(":")[0]
    if label not in hint.trigger or (context.targets and device not in context.targets):
        return 0.0
    fit = 1.0
    for asked, present in ((context.operators, operators), (context.dtypes, dtypes)):
        shared = present.intersection(asked)
        if asked and not shared:
            return 0.0
        # a hint for few operators is more specific than one for many
        fit += len(shared) / len(asked) if asked else 0.0
    return fit + (0.25 if context.targets else 0.0)


def expected_gain(confidence: float, uses: int, mean_log_gain: float) -> float:
    """Posterior mean of the log gain: the prior of the confidence, shrunk towards what was seen."""
    return (PRIOR_USES * PRIOR_GAIN * confidence + uses * mean_log_gain) / (PRIOR_USES + uses)


@functools.cache
def home(hint_id: str, islands: int) -> int:
    """The island that a hint belongs to: fixed by its id."""
    return int.from_bytes(hashlib.sha256(hint_id.encode()).digest()[:4], "little") % islands
