"""One small interface (extend.Model); behind it OpenAI, Anthropic, the built-in expert and recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passagent import extend
from passagent.config import Config, ModelConfig
from passagent.errors import UsageError, nearest
from passagent.extend import Model
from passagent.models.ensemble import Ensemble

if TYPE_CHECKING:
    from passagent.models.http import HttpModel

FORMS = ["expert", "openai/NAME", "anthropic/NAME", "replay:FILE", "pkg.mod:MyModel"]


def open_model(config: ModelConfig) -> Model:
    """The model that `config.name` names, or the Ensemble that it lists, ready to be asked.

    Raises UsageError for a name of another form (with the nearest valid one), a key that is not set or a
    recording that cannot be read. The SDKs are imported only for the provider that is used.
    """
    if config.ensemble:
        return Ensemble.of(config, [_open(member) for member in config.members()])
    return _open(config)


def role_config(config: Config, role: str) -> ModelConfig:
    """The settings of the model of a `role`: `agent` or `hint_distiller`.

    An ensemble's first model stands for it where a role has no model of its own.
    """
    choice = getattr(config.roles, role, None) if role != "agent" else None
    return config.model.of(choice) if choice else config.model.members()[0]


def provider_of(name: str) -> str:
    """`expert`, `replay`, `openai`, `anthropic`, or `python`: a class of the user's or a package's.

    Raises UsageError for a name of another form, with the nearest valid one.
    """
    provider, slash, model = name.partition("/")
    if name == "expert":
        return name
    if name.startswith("replay:") and len(name) > len("replay:"):
        return "replay"
    if extend.is_path(name):
        return "python"
    if provider in ("openai", "anthropic") and model:
        return provider
    if extend.model_path(name):
        return "python"
    if slash and model:
        hint = nearest(provider, ["openai", "anthropic"])
        advice = "; for a compatible server write openai/NAME and give --base-url"
        raise UsageError(f"--model {name}: unknown provider '{provider}'{hint}{advice}")
    for vendor, beginnings in (("openai", ("gpt", "o1", "o3", "o4")), ("anthropic", ("claude",))):
        if name.startswith(beginnings):
            raise UsageError(f"--model {name}: unknown model; did you mean '{vendor}/{name}'?")
    raise UsageError(f"--model {name}: unknown model{nearest(name, FORMS)}")


def _open(config: ModelConfig) -> Model:
    provider = provider_of(config.name)
    if provider == "expert":
        from passagent.expert.expert_model import ExpertModel

        return ExpertModel(config)
    if provider == "replay":
        from passagent.models.scripted import ReplayModel

        return ReplayModel(config.name.removeprefix("replay:"))
    if provider == "python":
        model: Model = extend.make(extend.model_path(config.name) or config.name, "--model", config)
        return model
    # their libraries take a while to import
    from passagent.models.anthropic import Messages
    from passagent.models.openai import Chat, Responses
    from passagent.models.retry import Retrying

    api = config.api or ("chat" if config.is_compatible else "responses")
    http: type[HttpModel] = Messages if provider == "anthropic" else Chat if api == "chat" else Responses
    return Retrying(http(config), config.max_retries)
