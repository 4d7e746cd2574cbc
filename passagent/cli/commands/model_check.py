"""`passagent models`: which models are configured, and with `--check` whether they work."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import asdict, dataclass

from passagent.cli.groups import ModelsOptions
from passagent.config import Config, ModelConfig
from passagent.errors import PassagentError
from passagent.models import provider_of, role_config
from passagent.models.prices import Price, prices_of, read_prices
from passagent.models.probe import PING, ask, distinct_models, other_roles
from passagent.models.types import Reply
from passagent.options import config_of
from passagent.view.text import table

KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
ADDRESSES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}


@dataclass(frozen=True)
class Configured:
    """A model that the settings name."""

    role: str
    model: str
    weight: float | None
    """In an ensemble."""
    base_url: str | None
    """None: the provider's own."""
    key: str | None
    """`OPENAI_API_KEY is set`, and so on; None where no key is used."""
    price: dict[str, float] | None
    """USD per million tokens; None: not known."""


@dataclass(frozen=True)
class Checked:
    """What one tiny call to a model showed."""

    model: str
    ok: bool
    tools: bool
    """It called the tool, with the right argument."""
    streaming: bool
    """The reply came as a stream."""
    caching: bool
    """The server tells of a prompt cache."""
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    seconds: float
    error: str | None


def models(options: ModelsOptions, as_json: bool) -> None:
    """List the configured models; with `check` ask each.

    Raises UsageError for a name of no known form, PassagentError if a model fails the check.
    """
    config, check = config_of(ModelsOptions, options), options["check"]
    listed = configured(config)
    checks: dict[str, Checked] = {}
    for model in distinct_models(config) if check else ():
        checks[model.name] = asyncio.run(checked(model, prices_of(config.model, [model.name])[model.name]))
    if as_json:
        data = [asdict(c) | ({"check": asdict(checks[c.model])} if check else {}) for c in listed]
        print(json.dumps({"prices_of": read_prices()[0], "models": data}))
    else:
        print(_text(listed))
        if check:
            print(_check_text(list(checks.values())))
    failed = [checked for checked in checks.values() if not checked.ok]
    if failed:
        raise PassagentError(
            f"{len(failed)} of {len(checks)} models failed the check: {failed[0].model}: {failed[0].error}"
        )


def configured(config: Config) -> list[Configured]:
    """The models of `config`: those that write passes, and those of the other roles."""
    weights: list[float | None] = [member.weight for member in config.model.ensemble] or [None]
    found = [
        _configured(config, "agent", member, weight)
        for member, weight in zip(config.model.members(), weights, strict=True)
    ]
    others = other_roles(config)
    return [*found, *(_configured(config, role, role_config(config, role), None) for role in others)]


def _configured(config: Config, role: str, model: ModelConfig, weight: float | None) -> Configured:
    provider = provider_of(model.name)
    variable, key = KEYS.get(provider), None
    if variable:
        key = f"{variable} is {'set' if os.environ.get(variable, '').strip() else 'not set'}"
    price = prices_of(config.model, [model.name])[model.name]
    rates = price.model_dump(exclude_none=True, exclude={"over", "up_to"}) if price else None
    address = model.base_url or os.environ.get(ADDRESSES.get(provider, "")) or None
    return Configured(role, model.name, weight, address if variable else None, key, rates)


async def checked(config: ModelConfig, price: Price | None) -> Checked:
    """Ask the model for one tool call. Nothing is raised that a model's server or settings may cause."""
    started, asked, error = time.monotonic(), None, None
    try:
        asked = await ask(config)
        if asked is None:  # the expert and recordings answer tasks only
            return Checked(config.name, True, True, False, False, 0, 0, 0.0, 0.0, None)
    except PassagentError as failure:
        error = str(failure).removeprefix(f"{config.name} at ")
    http, reply = asked or (None, None)
    if error is None and not _called(reply):
        error = "it answered without calling the tool as asked"
    usage = reply.usage if reply else None
    return Checked(
        model=config.name,
        ok=error is None,
        tools=_called(reply),
        streaming=bool(http and http.is_streamed),
        caching=bool(http and http.reports_cache),
        input_tokens=usage.input_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        cost_usd=price.cost(usage) if price and usage else None,
        seconds=round(time.monotonic() - started, 3),
        error=error,
    )


def _called(reply: Reply | None) -> bool:
    """Whether the reply is the tool call that was asked for."""
    calls = reply.message["tool_calls"] if reply else []
    try:
        return any(c["name"] == PING.name and json.loads(c["arguments"])["word"] for c in calls)
    except (ValueError, KeyError, TypeError):
        return False


def _text(listed: list[Configured]) -> str:
    rows = [
        [
            c.role,
            c.model,
            "" if c.weight is None else f"{c.weight:g}",
            c.base_url or ("the provider's own" if c.key else "none"),
            c.key or "no key needed",
            f"{c.price['input']:g} / {c.price['output']:g}" if c.price else "unknown",
        ]
        for c in listed
    ]
    header = ["role", "model", ">weight", "address", "key", "USD per million in / out"]
    shown = table(header, rows, indent="", drop=["weight", "address"])
    return shown + f"\nprices of {read_prices()[0]}; configs/prices.yaml, --price"


def _check_text(checks: list[Checked]) -> str:
    rows = [
        [
            c.model,
            *("yes" if flag else "no" for flag in (c.ok, c.tools, c.streaming, c.caching)),
            f"{c.input_tokens} + {c.output_tokens}",
            "unknown" if c.cost_usd is None else f"{c.cost_usd:.6f}",
            f"{c.seconds:.1f}",
            c.error or "",
        ]
        for c in checks
    ]
    header = ["model", "works", "tools", "streaming", "caching", ">tokens", ">USD", ">s", ""]
    return "\n" + table(header, rows, indent="", drop=["s", "tokens", "caching", "streaming"], wrap=[""])
