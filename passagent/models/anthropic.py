"""The Messages API: Anthropic itself and compatible gateways."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from passagent.config import ModelConfig
from passagent.models.retry import Transient, one_line
from passagent.models.types import END, LENGTH, REFUSAL, TOOLS, Message, Reply, ToolSpec, Usage, assistant
from passagent.models.wire import StreamedError, arguments_object, clean, count, error_of, valid_history

_STOP = {"end_turn": END, "stop_sequence": END, "tool_use": TOOLS, "max_tokens": LENGTH, "refusal": REFUSAL}
_STOP["model_context_window_exceeded"] = LENGTH
_CACHE = {"cache_control": {"type": "ephemeral"}}
"""Ends a prefix that the server keeps: put on the tools, the system prompt and the last user turn."""


class Messages:
    """The wire of Anthropic's Messages API."""

    OPTIONAL: tuple[str, ...] = ("temperature", "cache_control", "stream", "thinking")

    def request(
        self, config: ModelConfig, messages: list[Message], tools: list[ToolSpec], refused: set[str]
    ) -> dict[str, Any]:
        """Implement Wire.request."""
        system, turns = to_wire(messages, "thinking" not in refused, tools)
        request: dict[str, Any] = {
            "model": config.name.partition("/")[2],
            "max_tokens": config.max_output_tokens,
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
        if config.temperature is not None and "temperature" not in refused:
            request["extra_body"] = {"temperature": config.temperature}  # create() itself takes none
        if config.streams and "stream" not in refused:
            request["stream"] = True
        return request

    def send(self, client: Any, request: dict[str, Any]) -> Any:
        """Implement Wire.send."""
        return client.messages.with_streaming_response.create(**request)

    def stream(self) -> MessagesStream:
        """Implement Wire.stream."""
        return MessagesStream()

    def usage(self, data: Any) -> Usage | None:
        """Implement Wire.usage."""
        usage = data.get("usage") if isinstance(data, dict) else None
        if not isinstance(usage, dict) or not usage:
            return None
        cached, written = count(usage, "cache_read_input_tokens"), count(usage, "cache_creation_input_tokens")
        return Usage(
            input_tokens=count(usage, "input_tokens") + cached + written,
            output_tokens=count(usage, "output_tokens"),
            cached_tokens=cached,
            reasoning_tokens=count(usage.get("output_tokens_details"), "thinking_tokens"),
            cache_write_tokens=written,
        )

    def parse(self, data: Any, usage: Usage) -> Reply:
        """Implement Wire.parse."""
        if not isinstance(data, dict) or not isinstance(data.get("content"), list):
            raise Transient(one_line(f"the reply is no message: {data}", 200))
        stop = data.get("stop_reason")
        if not stop:
            raise Transient("the reply was cut off: it has no stop_reason")
        blocks = [block for block in data["content"] if isinstance(block, dict) and block.get("type")]
        calls = [
            {"id": b.get("id") or "", "name": b.get("name") or "", "arguments": _arguments(b.get("input"))}
            for b in blocks
            if b["type"] == "tool_use"
        ]
        message = assistant("\n".join(b.get("text", "") for b in blocks if b["type"] == "text"), calls)
        if any(b["type"] not in ("text", "tool_use") for b in blocks):
            message["raw"] = {"anthropic": blocks}
        reason = str(_STOP.get(stop, stop))
        return Reply(message, usage, TOOLS if calls and reason == END else reason)


class MessagesStream:
    """The stream of a Messages reply."""

    def __init__(self) -> None:
        self.is_done = False
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}
        self._usage: dict[str, Any] = {}

    def take(self, event: str, data: Any) -> None:
        """Implement Stream.take."""
        kind = data.get("type") or event
        if kind == "error":
            message, code, _ = error_of(data) or ("an error event", "", "")
            raise StreamedError(message, code)
        if kind == "message_start":
            self._message = data["message"]
            self._count(self._message.get("usage"))
        elif kind == "content_block_start":
            self._blocks[data["index"]] = dict(data["content_block"])
        elif kind == "content_block_delta":
            self._add(data["index"], data["delta"])
        elif kind == "message_delta":
            self._message["stop_reason"] = data["delta"].get("stop_reason") or self._message.get(
                "stop_reason"
            )
            self._count(data.get("usage"))
        elif kind == "message_stop":
            self.is_done = True

    def _count(self, usage: Any) -> None:
        """Counts are cumulative: the last one of each kind holds."""
        self._usage |= {name: value for name, value in (usage or {}).items() if value is not None}

    def _add(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks[index]
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
            case "input_json_delta":
                self._json[index] = self._json.get(index, "") + delta["partial_json"]
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
            case "signature_delta":
                block["signature"] = block.get("signature", "") + delta["signature"]
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]

    def whole(self) -> dict[str, Any]:
        """Implement Stream.whole; a tool call's broken arguments stay the text that they are."""
        for index, text in self._json.items():
            if text:
                parsed = arguments_object(text)
                self._blocks[index]["input"] = text if "invalid_json" in parsed else parsed
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        return {**self._message, "content": blocks, "usage": self._usage}


def to_wire(
    messages: list[Message], keep_thinking: bool = True, tools: Sequence[ToolSpec] = ()
) -> tuple[str, list[dict[str, Any]]]:
    """`(system text, turns)` of neutral messages, made valid: user and assistant alternate.

    The results of a reply's tool calls are one turn. Thinking goes back as it came, signatures and all,
    unless the server refused it.
    """
    system, turns = [], list[dict[str, Any]]()
    for message in valid_history(messages, tools, plain_ids=True):
        role, content = message["role"], message["content"]
        if role == "system":
            system.append(content)
            continue
        if role == "assistant":
            blocks = _assistant_blocks(message, keep_thinking)
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


def _assistant_blocks(message: Message, keep_thinking: bool) -> list[dict[str, Any]]:
    """A reply's blocks as the API takes them: none that is blank, and no thinking at the end."""
    calls, blocks = iter(message["tool_calls"]), list[dict[str, Any]]()
    plain = [{"type": "text", "text": message["content"]}] + [{"type": "tool_use"}] * len(
        message["tool_calls"]
    )
    for block in message.get("raw", {}).get("anthropic") or plain:
        kind = block["type"]
        if kind == "tool_use":
            call = next(calls)
            sent = {"id": call["id"], "name": call["name"], "input": clean(json.loads(call["arguments"]))}
            blocks.append(block | sent)
        elif kind == "text":
            text = (block.get("text") or "").rstrip()
            blocks += [block | {"text": text}] if text else []
        elif "thinking" not in kind or (
            keep_thinking and any(map(block.get, ("thinking", "signature", "data")))
        ):
            blocks.append(block)
    while blocks and "thinking" in blocks[-1]["type"]:
        blocks.pop()
    return blocks


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value or {})
