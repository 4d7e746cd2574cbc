"""The providers' SDK clients, opened: OpenAI and Anthropic, and servers that speak their APIs."""

from __future__ import annotations

from passagent.config import ModelConfig
from passagent.models.http import HttpModel
from passagent.models.limiter import Limiter
from passagent.models.retry import Retrying
from passagent.models.wire import Wire, api_key

OPENAI_KEY, ANTHROPIC_KEY = "OPENAI_API_KEY", "ANTHROPIC_API_KEY"


def open_openai(config: ModelConfig) -> Retrying:
    """A model behind Chat Completions or Responses. Raises UsageError if the key is missing."""
    import openai

    key = api_key(OPENAI_KEY, config.name, config.base_url, "OPENAI_BASE_URL")
    client = openai.AsyncOpenAI(
        api_key=key, base_url=config.base_url, timeout=config.timeout_s, max_retries=0
    )
    model = HttpModel(config, _openai_wire(config), client, openai, OPENAI_KEY, key)
    return Retrying(model, Limiter(), config.max_retries)


def open_anthropic(config: ModelConfig) -> Retrying:
    """A model behind the Messages API. Raises UsageError if the key is missing."""
    import anthropic

    from passagent.models.anthropic import Messages

    key = api_key(ANTHROPIC_KEY, config.name, config.base_url, "ANTHROPIC_BASE_URL")
    client = anthropic.AsyncAnthropic(
        api_key=key, base_url=config.base_url, timeout=config.timeout_s, max_retries=0
    )
    model = HttpModel(config, Messages(), client, anthropic, ANTHROPIC_KEY, key)
    return Retrying(model, Limiter(), config.max_retries)


def _openai_wire(config: ModelConfig) -> Wire:
    from passagent.models.chat import Chat
    from passagent.models.responses import Responses

    api = config.api or ("chat" if config.is_compatible else "responses")
    return Chat() if api == "chat" else Responses()
