"""One small interface (types.Model); behind it OpenAI, Anthropic, the built-in expert and recordings."""

from __future__ import annotations

from passagent.config import ModelConfig
from passagent.errors import UsageError, nearest
from passagent.models.types import Message, Model, Reply, ToolSpec, Usage

__all__ = ["Message", "Model", "Reply", "ToolSpec", "Usage", "open_model"]

FORMS = ["expert", "openai/NAME", "anthropic/NAME", "replay:FILE"]


def open_model(config: ModelConfig) -> Model:
    """The model that `config.name` names, ready to be asked.

    Raises UsageError for a name of another form (with the nearest valid one), a key that is not set or a
    recording that cannot be read. The SDKs are imported only for the provider that is used.
    """
    name = config.name
    provider, slash, model = name.partition("/")
    if name == "expert":
        from passagent.models.expert.model import ExpertModel

        return ExpertModel(config)
    if name.startswith("replay:") and len(name) > len("replay:"):
        from passagent.models.replay import ReplayModel

        return ReplayModel(name.removeprefix("replay:"))
    if provider == "openai" and model:
        from passagent.models.openai import OpenAIModel

        return OpenAIModel(config)
    if provider == "anthropic" and model:
        from passagent.models.anthropic import AnthropicModel

        return AnthropicModel(config)
    if slash and model:
        hint = nearest(provider, ["openai", "anthropic"])
        own = "; for a compatible server write openai/NAME and give --base-url"
        raise UsageError(f"--model {name}: unknown provider '{provider}'{hint}{own}")
    for vendor, beginnings in (("openai", ("gpt", "o1", "o3", "o4")), ("anthropic", ("claude",))):
        if name.startswith(beginnings):
            raise UsageError(f"--model {name}: unknown model; did you mean '{vendor}/{name}'?")
    raise UsageError(f"--model {name}: unknown model{nearest(name, FORMS)}")
