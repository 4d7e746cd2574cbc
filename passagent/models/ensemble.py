"""Several models in one run: each episode is written by one, which is drawn by the weights.

All chance comes from the episode's seed: a run that was killed goes on with the same choices.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from passagent.config import ModelConfig
from passagent.errors import UsageError
from passagent.extend import Model
from passagent.models.types import Message, Reply, ToolSpec


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


def choose(weights: Mapping[str, float], seed: int) -> str:
    """The model of the episode with this seed."""
    return random.Random(f"model:{seed}").choices(list(weights), weights=list(weights.values()))[0]
