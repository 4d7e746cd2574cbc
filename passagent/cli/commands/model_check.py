"""`passagent models`: which models are configured, and with `--check` whether they work."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from passagent.cli.groups import ModelsOptions
from passagent.config import Config, ModelConfig
from passagent.errors import PassagentError
from passagent.models import provider_of, role_config
from passagent.models.prices import Price, prices_of, read_prices
from passagent.models.probe import PING, ask, distinct_models, other_roles
from passagent.models.types import Reply
from passagent.options import config_of
from passagent.view.text import print_answer, table

KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
ADDRESSES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}


def models(options: ModelsOptions, as_json: bool) -> None:
    """List the configured models; with `check` ask each.

    Raises UsageError for a name of no known form, PassagentError if a model fails the check.
    """
    config, check = config_of(ModelsOptions, options), options["check"]
    listed = configured(config)
    checks = {}
    for model in distinct_models(config) if check else ():
        price = prices_of(config.model, [model.name])[model.name]
        checks[model.name] = asyncio.run(checked(model, price))
    rows = [row | ({"check": checks[row["model"]]} if check else {}) for row in listed]
    data = {"prices_of": read_prices()[0], "models": rows}
    print_answer(as_json, data, lambda: _text(listed) + (_check_text([*checks.values()]) if check else ""))
    failed = [result for result in checks.values() if not result["ok"]]
    if failed:
        first = f"{failed[0]['model']}: {failed[0]['error']}"
        raise PassagentError(f"{len(failed)} of {len(checks)} models failed the check: {first}")


def configured(config: Config) -> list[dict[str, Any]]:
    """Return the models of `config`: those that write passes, and those of the other roles.

    `weight`: in an ensemble. `base_url`: None for the provider's own. `key`: whether it is set, None where
    no key is used. `price`: USD per million tokens, None where it is not known.
    """
    weights: list[float | None] = [member.weight for member in config.model.ensemble] or [None]
    named = [("agent", *pair) for pair in zip(config.model.members(), weights, strict=True)]
    named += [(role, role_config(config, role), None) for role in other_roles(config)]
    rows = []
    for role, model, weight in named:
        provider = provider_of(model.name)
        variable, key = KEYS.get(provider), None
        if variable:
            key = f"{variable} is {'set' if os.environ.get(variable, '').strip() else 'not set'}"
        price = prices_of(config.model, [model.name])[model.name]
        address = model.base_url or os.environ.get(ADDRESSES.get(provider, "")) or None
        rows.append(
            {
                "role": role,
                "model": model.name,
                "weight": weight,
                "base_url": address if variable else None,
                "key": key,
                "price": price.model_dump(exclude_none=True, exclude={"over", "up_to"}) if price else None,
            }
        )
    return rows


async def checked(config: ModelConfig, price: Price | None) -> dict[str, Any]:
    """Ask the model for one tool call. Nothing is raised that a model's server or settings may cause.

    `tools`: it called the tool with the right argument. `streaming`: the reply came as a stream. `caching`:
    the server reports a prompt cache.
    """
    started, error = time.monotonic(), None
    http, reply, is_asked = None, None, True
    try:
        if answer := await ask(config):
            http, reply = answer
        else:  # the expert and recordings answer tasks only
            is_asked = False
    except PassagentError as failure:
        error = str(failure).removeprefix(f"{config.name} at ")
    called = not is_asked or _called(reply)
    if error is None and not called:
        error = "it answered without calling the tool as asked"
    usage = reply.usage if reply else None
    return {
        "model": config.name,
        "ok": error is None,
        "tools": called,
        "streaming": bool(http and http.is_streamed),
        "caching": bool(http and http.reports_cache),
        "input_tokens": usage.input_tokens if usage else 0,
        "output_tokens": usage.output_tokens if usage else 0,
        "cost_usd": price.cost(usage) if price and usage else None if is_asked else 0.0,
        "seconds": round(time.monotonic() - started, 3),
        "error": error,
    }


def _called(reply: Reply | None) -> bool:
    """Return whether the reply is the tool call that was asked for."""
    calls = reply.message["tool_calls"] if reply else []
    try:
        return any(c["name"] == PING.name and json.loads(c["arguments"])["word"] for c in calls)
    except (ValueError, KeyError, TypeError):
        return False


def _text(listed: list[dict[str, Any]]) -> str:
    rows = []
    for row in listed:
        price = row["price"]
        rows.append([
            row["role"],
            row["model"],
            "" if row["weight"] is None else f"{row['weight']:g}",
            row["base_url"] or ("the provider's own" if row["key"] else "none"),
            row["key"] or "no key needed",
            f"{price['input']:g} / {price['output']:g}" if price else "unknown",
        ])  # fmt: skip
    header = ["role", "model", ">weight", "address", "key", "USD per million in / out"]
    models_table = table(header, rows, indent="", drop=["weight", "address"])
    return models_table + f"\nprices of {read_prices()[0]}; configs/prices.yaml, --price"


def _check_text(checks: list[dict[str, Any]]) -> str:
    rows = [
        [
            row["model"],
            *("yes" if row[flag] else "no" for flag in ("ok", "tools", "streaming", "caching")),
            f"{row['input_tokens']} + {row['output_tokens']}",
            "unknown" if row["cost_usd"] is None else f"{row['cost_usd']:.6f}",
            f"{row['seconds']:.1f}",
            row["error"] or "",
        ]
        for row in checks
    ]
    header = ["model", "works", "tools", "streaming", "caching", ">tokens", ">USD", ">s", ""]
    return "\n\n" + table(header, rows, indent="", drop=["s", "tokens", "caching", "streaming"], wrap=[""])
