"""The commands that serve others: `worker`, this machine's devices; `mcp`, tools for agents; and `models`."""

from __future__ import annotations

import asyncio
import json as json_text
import os
import secrets
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

import typer

from passagent.cli.groups import McpOptions, ModelsOptions, WorkerOptions
from passagent.cli.parameters import command
from passagent.errors import PassagentError, UsageError
from passagent.options import Json, config_of
from passagent.view.text import Output, by_column, table

if TYPE_CHECKING:
    from passagent.config import Config, ModelConfig
    from passagent.models.prices import Price

commands = typer.Typer()
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
ADDRESSES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}


@command(commands)
def worker(json: Json, **options: Unpack[WorkerOptions]) -> None:
    """Evaluate for other machines. They name it by --pool http://HOST:PORT. SIGTERM lets it finish first."""
    certificate, key = options["tls_cert"], options["tls_key"]
    if (certificate is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key: give both")
    try:
        from passagent.evaluator.fleet.worker_app import serve
    except ModuleNotFoundError as error:
        raise UsageError(f"worker needs {error.name}: pip install 'passagent[web]'") from error
    from passagent.evaluator.fleet.host import Host
    from passagent.evaluator.fleet.offers import find_machine

    token = _token(options["token_file"])
    facts = find_machine(options["device"])
    names = [f"{device['name']} ({device['label']})" for device in facts["devices"]]

    def ready(address: str) -> None:
        facts_text = {"address": address, "devices": names, "pid": os.getpid()}
        print(json_text.dumps(facts_text) if json else f"{address} offers {', '.join(names)}", flush=True)

    serve(Host(facts), options["listen"], token, ready, certificate, key)


def _token(file: str) -> str:
    """The token; a file that is not there is made, for its owner's eyes. Raises UsageError."""
    from passagent.evaluator.fleet.http_fleet import token_in

    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as token_file:
            token_file.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"--token-file {file}: {error.strerror}") from error
    return token_in(file)


@command(commands)
def mcp(**options: Unpack[McpOptions]) -> None:
    """Serve the evaluator to coding agents. Over the Model Context Protocol on stdin and stdout."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise UsageError("mcp is not installed; pip install 'passagent[mcp]'") from error
    from passagent.view.mcp.pass_server import build, serve_http, serve_stdio
    from passagent.view.mcp.served_tools import PassTools

    config = config_of(McpOptions, options)
    service = PassTools(options["tasks"] or [], config, str(options["runs_dir"]))
    service.max_wait_s = options["max_wait"]
    server = build(service)
    http = options["http"]
    if http is not None:
        serve_http(service, server, http)
        return
    if sys.stdin.isatty():
        print(
            "passagent mcp: a client's messages are read from stdin; --http serves an address",
            file=sys.stderr,
        )
    serve_stdio(service, server)


@command(commands)
def models(**options: Unpack[ModelsOptions]) -> Output:
    """List models with their addresses, keys and prices. Exit code 1 if one fails --check."""
    from passagent.models.prices import prices_of, read_prices
    from passagent.models.probe import distinct_models

    config, check = config_of(ModelsOptions, options), options["check"]
    listed = configured(config)
    checks = {}
    for model in distinct_models(config) if check else ():
        price = prices_of(config.model, [model.name])[model.name]
        checks[model.name] = asyncio.run(checked(model, price))
    rows = [row | ({"check": checks[row["model"]]} if check else {}) for row in listed]
    data = {"prices_of": read_prices()[0], "models": rows}
    text, problem = _text(listed) + (_check_text([*checks.values()]) if check else ""), ""
    if failed := [result for result in checks.values() if not result["ok"]]:
        first = f"{failed[0]['model']}: {failed[0]['error']}"
        problem = f"{len(failed)} of {len(checks)} models failed the check: {first}"
    return Output(data, text, problem)


def configured(config: Config) -> list[dict[str, Any]]:
    """Return the models of `config`: those that write passes, and those of the other roles.

    `weight`: in an ensemble. `base_url`: None for the provider's own. `key`: whether it is set, None where
    no key is used. `price`: USD per million tokens, None where it is not known.
    """
    from passagent.models import provider_of, role_config
    from passagent.models.prices import prices_of
    from passagent.models.probe import other_roles

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
    from passagent.models.probe import PING, ask

    started, error = time.monotonic(), None
    http, reply, is_asked = None, None, True
    try:
        if answer := await ask(config):
            http, reply = answer
        else:  # the expert and recordings answer tasks only
            is_asked = False
    except PassagentError as failure:
        error = str(failure).removeprefix(f"{config.name} at ")
    called = not is_asked
    with suppress(ValueError, KeyError, TypeError):  # in what it answered
        for call in reply.message["tool_calls"] if reply else []:
            called |= call["name"] == PING.name and bool(json_text.loads(call["arguments"])["word"])
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


def _text(listed: list[dict[str, Any]]) -> str:
    from passagent.models.prices import read_prices

    columns = {
        "role": lambda row: row["role"],
        "model": lambda row: row["model"],
        ">weight": lambda row: "" if row["weight"] is None else f"{row['weight']:g}",
        "address": lambda row: row["base_url"] or ("the provider's own" if row["key"] else "none"),
        "key": lambda row: row["key"] or "no key needed",
        "USD per million in / out": lambda row: (
            "{input:g} / {output:g}".format(**row["price"]) if row["price"] else "unknown"
        ),
    }
    models_table = table(*by_column(listed, columns), indent="", drop=["weight", "address"])
    return models_table + f"\nprices of {read_prices()[0]}; configs/prices.yaml, --price"


def _check_text(checks: list[dict[str, Any]]) -> str:
    flags = {True: "yes", False: "no"}
    columns = {
        "model": lambda row: row["model"],
        "works": lambda row: flags[row["ok"]],
        "tools": lambda row: flags[row["tools"]],
        "streaming": lambda row: flags[row["streaming"]],
        "caching": lambda row: flags[row["caching"]],
        ">tokens": lambda row: f"{row['input_tokens']} + {row['output_tokens']}",
        ">USD": lambda row: "unknown" if row["cost_usd"] is None else f"{row['cost_usd']:.6f}",
        ">s": lambda row: f"{row['seconds']:.1f}",
        "": lambda row: row["error"] or "",
    }
    drop = ["s", "tokens", "caching", "streaming"]
    return "\n\n" + table(*by_column(checks, columns), indent="", drop=drop, wrap=[""])
