"""Several models in one run: each episode is written by one, oftener by those that gain more per cost.

Budgeted Thompson Sampling (Xia, Li, Qin, Yu, Liu: Thompson Sampling for Budgeted Multi-armed Bandits,
IJCAI 2015): of each model, a reward and a cost are drawn from the Beta posteriors of its past episodes, and
the best ratio wins. A model's share is how often it wins, times the weight that the person gave it; without
evidence the shares are the weights. All evidence is rows of the store, all chance comes from the episode's
seed: nothing is lost when a process dies, and the same replies lead to the same choices.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from passagent.config import ModelConfig
from passagent.errors import UsageError
from passagent.models.types import Message, Model, Reply, ToolSpec

FULL_REWARD = 0.18
"""An episode's gain (ln of the AS' ratio) that counts as a whole success: a fifth."""
PRIOR = 0.5
"""Pseudo-counts of the Beta distributions (Jeffreys)."""
DRAWS = 400


@dataclass(frozen=True)
class Outcome:
    """The gain and the cost of a finished episode."""

    model: str
    gain: float
    """ln(best AS / the AS it started from)."""
    cost: float
    """The cost of its replies: USD, or tokens where a price is not known."""


@dataclass
class Ensemble:
    """Models with weights."""

    models: dict[str, Model]
    weights: dict[str, float]
    name: str

    @classmethod
    def of(cls, config: ModelConfig, models: Sequence[Model]) -> Ensemble:
        """The ensemble of `config`'s members, opened. Raises UsageError for two of the same name."""
        weights: dict[str, float] = {}
        for member in config.ensemble:
            if member.name in weights:
                raise UsageError(f"--model {member.name}: given twice; name each model once")
            weights[member.name] = member.weight
        return cls(dict(zip(weights, models, strict=True)), weights, config.label)

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """Implement Model.complete; the heaviest model answers where nobody chose one."""
        return await self.models[max(self.weights, key=lambda name: self.weights[name])].complete(
            messages, tools
        )

    async def close(self) -> None:
        """Implement Model.close."""
        for model in self.models.values():
            await model.close()


def model_names(model: Model) -> list[str]:
    """The names of the models that may answer for `model`."""
    return list(model.models) if isinstance(model, Ensemble) else [model.name]


def member(model: Model, name: str | None) -> Model:
    """The model called `name`, if `model` is an ensemble that has it; else `model` itself."""
    return model.models.get(name or "", model) if isinstance(model, Ensemble) else model


def shares(weights: Mapping[str, float], outcomes: Sequence[Outcome], rng: random.Random) -> dict[str, float]:
    """Each model's chance to be chosen next; they add up to 1."""
    dearest = max((outcome.cost for outcome in outcomes), default=0.0) or 1.0
    posteriors = {}
    for name in weights:
        episodes = [outcome for outcome in outcomes if outcome.model == name]
        reward = sum(min(1.0, max(0.0, outcome.gain / FULL_REWARD)) for outcome in episodes)
        cost = sum(outcome.cost / dearest for outcome in episodes)
        counts = (reward, len(episodes) - reward, cost, len(episodes) - cost)
        posteriors[name] = tuple(PRIOR + max(0.0, count) for count in counts)
    wins = dict.fromkeys(weights, 1)  # nobody is given up for good
    for _ in range(DRAWS if outcomes else 0):  # no noise of drawing where nothing is known
        ratio = {
            name: rng.betavariate(a, b) / max(rng.betavariate(c, d), 1e-9)
            for name, (a, b, c, d) in posteriors.items()
        }
        wins[max(ratio, key=lambda name: ratio[name])] += 1
    total = sum(weights[name] * wins[name] for name in weights)
    return {name: weights[name] * wins[name] / total for name in weights}


def choose(weights: Mapping[str, float], outcomes: Sequence[Outcome], seed: int) -> str:
    """The model of the episode with this seed."""
    rng = random.Random(f"model:{seed}")
    chances = shares(weights, outcomes, rng)
    return rng.choices(list(chances), weights=list(chances.values()))[0]
