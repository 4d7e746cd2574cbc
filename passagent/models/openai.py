"""Chat Completions through the `openai` SDK: OpenAI itself and every compatible server (`--base-url`)."""

from __future__ import annotations

import json
from typing import Any

import openai
from openai import AsyncOpenAI

from passagent.config import ModelConfig
from passagent.models.retry import Transient, one_line, with_retries
from passagent.models.types import END, LENGTH, REFUSAL, TOOLS, Message, Reply, ToolSpec, Usage, assistant
from passagent.models.wire import (
    Refused,
    api_key,
    arguments_object,
    as_json,
    clean,
    count,
    judge,
    log,
    secrets_of,
)

KEY = "OPENAI_API_KEY"
_STOP = {"stop": END, "tool_calls": TOOLS, "length": LENGTH, "content_filter": REFUSAL}
_REASONING = ("reasoning_content", "reasoning_details", "reasoning")
"""What compatible servers call a reply's reasoning; it is sent back under the same name."""


class OpenAIModel:
    """A model behind a Chat Completions API. Raises UsageError if the key is missing."""

    def __init__(self, config: ModelConfig) -> None:
        self.name, self.config = config.name, config
        key = api_key(KEY, config.name, config.base_url, "OPENAI_BASE_URL")
        self._secrets = secrets_of(key, config.base_url)
        self._refused = Refused(config.name)
        # OpenAI's newer models take max_completion_tokens only, many compatible servers max_tokens only
        self._limits = ["max_completion_tokens"]
        if config.base_url:
            self._limits.insert(0, "max_tokens")
        self._client = AsyncOpenAI(
            api_key=key, base_url=config.base_url, timeout=config.timeout_s, max_retries=0
        )

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """See Model.complete."""
        return await with_retries(lambda: self._once(messages, tools), self.name, self.config.max_retries)

    async def close(self) -> None:
        """See Model.close."""
        await self._client.close()

    async def _once(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        while True:
            request = self._request(messages, tools)
            sent = {*request, *(key for message in request["messages"] for key in message)}
            optional = [name for name in (*self._limits, "temperature", *_REASONING) if name in sent]
            try:
                reply = await self._client.chat.completions.create(**request)
                return parse(as_json(reply), self._secrets)
            except openai.APIStatusError as error:
                if self._refused.drops(error, optional):
                    continue
                raise judge(error, self.name, KEY, self._secrets) from None
            except openai.APIError as error:
                raise judge(error, self.name, KEY, self._secrets) from None
            except (ValueError, TypeError, AttributeError) as error:  # bytes, JSON or fields of another kind
                raise Transient(clean(one_line(f"unreadable reply: {error}"), self._secrets)) from None

    def _request(self, messages: list[Message], tools: list[ToolSpec]) -> dict[str, Any]:
        refused = self._refused.parameters
        request: dict[str, Any] = {
            "model": self.name.partition("/")[2],
            "messages": to_wire(messages, [name for name in _REASONING if name not in refused]),
        }
        limit = next((name for name in self._limits if name not in refused), None)
        if limit:
            request[limit] = self.config.max_output_tokens
        if self.config.temperature is not None and "temperature" not in refused:
            request["temperature"] = self.config.temperature
        if tools:
            request["tools"] = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
                }
                for t in tools
            ]
        return request


def to_wire(messages: list[Message], reasoning: list[str]) -> list[dict[str, Any]]:
    """Neutral messages as Chat Completions takes them; empty assistant messages are left out."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], clean(message["content"])
        if role == "tool":
            wire.append({"role": "tool", "tool_call_id": message["tool_call_id"], "content": content})
        elif role != "assistant":
            wire.append({"role": role, "content": content})
        elif content or message["tool_calls"]:
            kept = message.get("raw", {}).get("openai", {})
            turn = {"role": "assistant", "content": content or None}
            turn |= {name: kept[name] for name in reasoning if name in kept}
            if message["tool_calls"]:
                turn["tool_calls"] = [_call_to_wire(call) for call in message["tool_calls"]]
            wire.append(turn)
    return wire


def _call_to_wire(call: dict[str, str]) -> dict[str, Any]:
    parsed = arguments_object(call["arguments"])
    text = json.dumps(parsed) if "invalid_json" in parsed else clean(call["arguments"])
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": text}}


def parse(data: Any, secrets: tuple[str, ...] = ()) -> Reply:
    """A ChatCompletion (as JSON) as a Reply. Raises Transient unless it is a complete one."""
    if not isinstance(data, dict) or not data.get("choices"):
        raise Transient(clean(one_line(f"the reply is no chat completion: {data}", 200), secrets))
    choice = data["choices"][0]
    told, reason = choice.get("message"), choice.get("finish_reason")
    if not isinstance(told, dict) or not reason:
        raise Transient("the reply was cut off: it has no finish_reason")
    calls = []
    for call in told.get("tool_calls") or []:
        function = call.get("function") or call.get("custom") or {}
        arguments = function.get("arguments", function.get("input", ""))
        calls.append(
            {
                "id": call.get("id") or "",
                "name": function.get("name") or "",
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            }
        )
    content = told.get("content")
    message = assistant(content if isinstance(content, str) else told.get("refusal") or "", calls)
    kept = {name: told[name] for name in _REASONING if told.get(name)}
    if kept:
        message["raw"] = {"openai": kept}
    stop = REFUSAL if told.get("refusal") else _STOP.get(reason, reason)
    if stop == END and calls:
        stop = TOOLS
    if not data.get("usage"):
        log.warning("the server reports no token usage: this call counts as 0 tokens")
    return Reply(clean(message, secrets), _usage(data.get("usage")), stop)


def _usage(usage: Any) -> Usage:
    usage = usage if isinstance(usage, dict) else {}
    return Usage(
        input_tokens=count(usage, "prompt_tokens"),
        output_tokens=count(usage, "completion_tokens"),
        cached_tokens=count(usage.get("prompt_tokens_details"), "cached_tokens"),
        reasoning_tokens=count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )
