"""The Messages API: Anthropic itself and compatible gateways."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from passagent.models import types
from passagent.models.http import HttpModel
from passagent.models.retry import Transient
from passagent.models.types import END, LENGTH, REFUSAL, TOOLS, Message, Reply, ToolSpec, Usage, assistant

_STOP = {"end_turn": END, "stop_sequence": END, "tool_use": TOOLS, "max_tokens": LENGTH, "refusal": REFUSAL}
_STOP["model_context_window_exceeded"] = LENGTH
_CACHE = {"cache_control": {"type": "ephemeral"}}
"""Ends a prefix that the server keeps: put on the tools, the system prompt and the last user turn."""


class Messages(HttpModel):
    """A model behind Anthropic's Messages API."""

    SDK, CLIENT = "anthropic", "AsyncAnthropic"
    OPTIONAL = ("temperature", "stream")

    def request(self, messages: list[Message], tools: list[ToolSpec]) -> dict[str, Any]:
        """Implement HttpModel.request."""
        config = self.config
        system, turns = to_wire(messages)
        has_temperature = config.temperature is not None and "temperature" not in self.refused
        request: dict[str, Any] = {
            "model": config.name.partition("/")[2],
            "max_tokens": config.max_output_tokens,
            "messages": turns,
            "system": [{"type": "text", "text": system}] if system else None,
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in tools
            ]
            or None,
            # create() itself takes none
            "extra_body": {"temperature": config.temperature} if has_temperature else None,
            "stream": config.streams or None,
        }
        last_user = next(turn for turn in reversed(turns) if turn["role"] == "user")
        for blocks in (request["system"], request["tools"], last_user["content"]):
            if blocks:
                blocks[-1] = {**blocks[-1], **_CACHE}
        return request

    async def answers(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        """Implement HttpModel.answers."""
        if not request.get("stream"):
            yield await self._client.messages.create(**request)
            return
        arguments = {name: value for name, value in request.items() if name != "stream"}
        async with self._client.messages.stream(**arguments) as stream:
            self.check_stream(stream.response)
            async for _ in stream:
                yield stream.current_message_snapshot

    def usage(self, data: dict[str, Any]) -> Usage | None:
        """Implement HttpModel.usage."""
        usage = data.get("usage")
        if not usage:
            return None
        cached = int(usage.get("cache_read_input_tokens") or 0)
        written = int(usage.get("cache_creation_input_tokens") or 0)
        return Usage(
            input_tokens=int(usage.get("input_tokens") or 0) + cached + written,
            output_tokens=int(usage.get("output_tokens") or 0),
            cached_tokens=cached,
            reasoning_tokens=int((usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0),
            cache_write_tokens=written,
        )

    def parse(self, data: dict[str, Any], usage: Usage) -> Reply:
        """Implement HttpModel.parse."""
        stop = data.get("stop_reason")
        if not stop:
            raise Transient("the reply was cut off: it has no stop_reason")
        blocks = data["content"]
        calls = [
            {"id": b["id"], "name": b["name"], "arguments": _arguments(b.get("input"))}
            for b in blocks
            if b["type"] == "tool_use"
        ]
        message = assistant("\n".join(b["text"] for b in blocks if b["type"] == "text"), calls)
        if any(b["type"] not in ("text", "tool_use") for b in blocks):
            message["raw"] = {"anthropic": blocks}
        reason = str(_STOP.get(stop, stop))
        return Reply(message, usage, TOOLS if calls and reason == END else reason)


def to_wire(messages: list[Message]) -> tuple[str, list[dict[str, Any]]]:
    """`(system text, turns)` of messages: user and assistant alternate.

    The results of a reply's tool calls are one turn. Thinking goes back as it came, signatures and all.
    """
    system, turns = [], list[dict[str, Any]]()
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "system":
            system.append(content)
            continue
        if role == "assistant":
            blocks = _assistant_blocks(message)
        elif role == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}]
        else:
            blocks = [{"type": "text", "text": content}]
        side = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == side:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": side, "content": blocks})
    return "\n\n".join(system), turns


def _assistant_blocks(message: Message) -> list[dict[str, Any]]:
    """A reply's blocks as the API takes them: none that is blank, and no thinking at the end."""
    calls, blocks = iter(message["tool_calls"]), list[dict[str, Any]]()
    plain = [{"type": "text", "text": message["content"]}] + [{"type": "tool_use"}] * len(
        message["tool_calls"]
    )
    for block in message.get("raw", {}).get("anthropic") or plain:
        kind = block["type"]
        if kind == "tool_use":
            call = next(calls)
            sent = {
                "id": call["id"],
                "name": call["name"],
                "input": types.clean(json.loads(call["arguments"])),
            }
            blocks.append(block | sent)
        elif kind == "text":
            text = (block.get("text") or "").rstrip()
            blocks += [block | {"text": text}] if text else []
        else:
            blocks.append(block)
    while blocks and "thinking" in blocks[-1]["type"]:
        blocks.pop()
    return blocks


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value or {})
