"""The Messages API through the `anthropic` SDK: Anthropic itself and compatible gateways (`--base-url`)."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from anthropic import AsyncAnthropic

from passagent.config import ModelConfig
from passagent.models.retry import Transient, one_line, with_retries
from passagent.models.types import END, LENGTH, REFUSAL, TOOLS, Message, Reply, ToolSpec, Usage, assistant
from passagent.models.wire import Refused, api_key, arguments_object, as_json, clean, count, judge, secrets_of

KEY = "ANTHROPIC_API_KEY"
_STOP = {"end_turn": END, "stop_sequence": END, "tool_use": TOOLS, "max_tokens": LENGTH, "refusal": REFUSAL}
_STOP["model_context_window_exceeded"] = LENGTH
_CACHE = {"cache_control": {"type": "ephemeral"}}
"""Ends a prefix that the server keeps: put on the tools, the system prompt and the last user turn."""


class AnthropicModel:
    """A model behind a Messages API. Raises UsageError if the key is missing."""

    def __init__(self, config: ModelConfig) -> None:
        self.name, self.config = config.name, config
        key = api_key(KEY, config.name, config.base_url, "ANTHROPIC_BASE_URL")
        self._secrets = secrets_of(key, config.base_url)
        self._refused = Refused(config.name)
        self._client = AsyncAnthropic(
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
            optional = [*request.get("extra_body", {}), "cache_control"]
            sent = [name for name in optional if name not in self._refused.parameters]
            try:
                reply = await self._client.messages.create(**request)
                return parse(as_json(reply), self._secrets)
            except anthropic.APIStatusError as error:
                if self._refused.drops(error, sent):
                    continue
                raise judge(error, self.name, KEY, self._secrets) from None
            except anthropic.APIError as error:
                raise judge(error, self.name, KEY, self._secrets) from None
            except (ValueError, TypeError, AttributeError) as error:  # bytes, JSON or fields of another kind
                raise Transient(clean(one_line(f"unreadable reply: {error}"), self._secrets)) from None

    def _request(self, messages: list[Message], tools: list[ToolSpec]) -> dict[str, Any]:
        refused = self._refused.parameters
        system, turns = to_wire(messages)
        request: dict[str, Any] = {
            "model": self.name.partition("/")[2],
            "max_tokens": self.config.max_output_tokens,
            "messages": turns,
        }
        if system:
            request["system"] = [{"type": "text", "text": system}]
        if tools:
            request["tools"] = [
                {"name": t.name, "description": t.description, "input_schema": t.parameters} for t in tools
            ]
        if "cache_control" not in refused:
            last_user = next(turn for turn in reversed(turns) if turn["role"] == "user")
            ends = [request.get("system", []), request.get("tools", []), last_user["content"]]
            for blocks in ends:
                if blocks:
                    blocks[-1] = {**blocks[-1], **_CACHE}
        if self.config.temperature is not None and "temperature" not in refused:
            request["extra_body"] = {"temperature": self.config.temperature}  # create() itself takes none
        return request


def to_wire(messages: list[Message]) -> tuple[str, list[dict[str, Any]]]:
    """`(system text, turns)` of neutral messages: user and assistant alternate.

    The results of a reply's tool calls are one turn. Empty assistant messages are left out.
    """
    system, turns = [], list[dict[str, Any]]()
    for message in messages:
        role, content = message["role"], clean(message["content"])
        if role == "system":
            system.append(content)
            continue
        if role == "assistant":
            blocks = _assistant_blocks(message, content)
        elif role == "tool":
            answered = message["tool_call_id"]
            blocks = [{"type": "tool_result", "tool_use_id": answered, "content": content or "(empty)"}]
        else:
            blocks = [{"type": "text", "text": content}]
        side = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == side:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": side, "content": blocks})
    return "\n\n".join(system), turns


def _assistant_blocks(message: Message, content: str) -> list[dict[str, Any]]:
    calls = message["tool_calls"]
    if not content.strip() and not calls:
        return []
    kept = message.get("raw", {}).get("anthropic")
    if kept:
        ids = iter(calls)
        return [{**b, "id": next(ids)["id"]} if b["type"] == "tool_use" else dict(b) for b in kept]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if content.strip() else []
    for call in calls:
        arguments = clean(arguments_object(call["arguments"]))
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["name"], "input": arguments})
    return blocks


def parse(data: Any, secrets: tuple[str, ...] = ()) -> Reply:
    """A Message (as JSON) as a Reply. Raises Transient unless it is a complete one."""
    if not isinstance(data, dict) or not isinstance(data.get("content"), list):
        raise Transient(clean(one_line(f"the reply is no message: {data}", 200), secrets))
    if not data.get("stop_reason") or not data.get("usage"):
        raise Transient("the reply was cut off: it has no stop_reason or no usage")
    data = clean(data, secrets)
    blocks = [block for block in data["content"] if isinstance(block, dict) and block.get("type")]
    calls = [
        {"id": b.get("id") or "", "name": b.get("name") or "", "arguments": json.dumps(b.get("input") or {})}
        for b in blocks
        if b["type"] == "tool_use"
    ]
    message = assistant("\n".join(b.get("text", "") for b in blocks if b["type"] == "text"), calls)
    if any(b["type"] not in ("text", "tool_use") for b in blocks):
        message["raw"] = {"anthropic": blocks}
    usage, stop = data["usage"], data["stop_reason"]
    cached, written = count(usage, "cache_read_input_tokens"), count(usage, "cache_creation_input_tokens")
    return Reply(
        message,
        Usage(
            input_tokens=count(usage, "input_tokens") + cached + written,
            output_tokens=count(usage, "output_tokens"),
            cached_tokens=cached,
            reasoning_tokens=count(usage.get("output_tokens_details"), "thinking_tokens"),
        ),
        TOOLS if calls and _STOP.get(stop) == END else _STOP.get(stop, stop),
    )
