"""One small question to each model: a wrong key, address or name is found before anything is measured."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from passagent.config import Config, ModelConfig
from passagent.errors import InfrastructureError
from passagent.models import open_model, provider_of, role_config
from passagent.models.retry import Retrying, Transient, log
from passagent.models.types import Message, Reply, ToolSpec

if TYPE_CHECKING:
    from passagent.models.http import HttpModel

PING = ToolSpec(
    "report",
    "Report a word.",
    {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)
QUESTION: list[Message] = [
    {"role": "system", "content": "You answer by calling the tool."},
    {"role": "user", "content": "Call the tool `report` once, with the word 'ready'."},
]
MAX_OUTPUT = 2000
"""Tokens of the answer, at most: models that reason need some before the call."""
SILENCE_S, ANSWER_S = 4.0, 9.0
"""A server that sends nothing for so long, or no whole answer, is taken for one that hangs."""


async def ask(config: ModelConfig) -> tuple[HttpModel, Reply] | None:
    """Ask the model for one tool call, once; None where no server is behind it.

    Raises UsageError for a wrong key, address or name, InfrastructureError where another try may help.
    """
    from passagent.models.http import HttpModel  # its libraries take a while, and the expert needs none

    small = {"max_output_tokens": min(MAX_OUTPUT, config.max_output_tokens), "stream": config.streams}
    model = open_model(config.model_copy(update=small))
    http = model.inner if isinstance(model, Retrying) else None
    try:
        if not isinstance(http, HttpModel):
            return None
        http.limit_silence(SILENCE_S)
        async with asyncio.timeout(ANSWER_S):
            return http, await http.complete(QUESTION, [PING])
    except (Transient, TimeoutError) as error:
        what = str(error) or f"no whole answer within {ANSWER_S:g} s"
        raise InfrastructureError(f"{config.name} at {getattr(http, 'endpoint', '')}: {what}") from None
    finally:
        await model.close()


async def check_models(config: Config) -> None:
    """Ask each model of `config` that a server has; one that is busy or silent gives a warning.

    Raises what `ask` raises otherwise.
    """
    for model in distinct_models(config):
        if provider_of(model.name) in ("openai", "anthropic"):
            try:
                await ask(model)
            except InfrastructureError as error:
                log.warning("%s", error)


def distinct_models(config: Config) -> list[ModelConfig]:
    """Return each model that the settings name, once."""
    models = (*config.model.members(), *(role_config(config, role) for role in other_roles(config)))
    return list({model.name: model for model in models}.values())


def other_roles(config: Config) -> list[str]:
    """Return the roles beside the agent's that have a model of their own."""
    return [role for role in type(config.roles).model_fields if getattr(config.roles, role) is not None]
