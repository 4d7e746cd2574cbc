"""Chat Completions: OpenAI's older API, and what every compatible server speaks (vLLM, SGLang, Ollama)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from passagent.config import ModelConfig
from passagent.models.retry import Transient, one_line
from passagent.models.types import END, LENGTH, REFUSAL, TOOLS, Message, Reply, ToolSpec, Usage, assistant
from passagent.models.wire import StreamedError, error_of, openai_usage, valid_history

_STOP = {
    "stop": END,
    "tool_calls": TOOLS,
    "function_call": TOOLS,
    "length": LENGTH,
    "content_filter": REFUSAL,
}
_REASONING = ("reasoning_content", "reasoning_details", "reasoning")
"""Names of a reply's reasoning at compatible servers; it is sent back under the same name."""


class Chat:
    """The wire of the Chat Completions API."""

    OPTIONAL: tuple[str, ...] = (
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "stream_options",
        "stream",
        "system",
        *_REASONING,
    )

    def request(
        self, config: ModelConfig, messages: list[Message], tools: list[ToolSpec], refused: set[str]
    ) -> dict[str, Any]:
        """Implement Wire.request."""
        reasoning = [name for name in _REASONING if name not in refused]
        if "system" in refused:  # it becomes the beginning of the first user turn
            messages = [m | {"role": "user"} if m["role"] == "system" else m for m in messages]
        request: dict[str, Any] = {
            "model": config.name.partition("/")[2],
            "messages": to_wire(messages, reasoning, tools),
        }
        # OpenAI's newer models take max_completion_tokens only, many compatible servers max_tokens only
        limits = (
            ["max_tokens", "max_completion_tokens"] if config.is_compatible else ["max_completion_tokens"]
        )
        limit = next((name for name in limits if name not in refused), None)
        if limit:
            request[limit] = config.max_output_tokens
        if config.temperature is not None and "temperature" not in refused:
            request["temperature"] = config.temperature
        if tools:
            request["tools"] = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
                }
                for t in tools
            ]
        if config.streams and "stream" not in refused:
            request["stream"] = True
            if "stream_options" not in refused:
                request["stream_options"] = {"include_usage": True}
        return request

    def send(self, client: Any, request: dict[str, Any]) -> Any:
        """Implement Wire.send."""
        return client.chat.completions.with_streaming_response.create(**request)

    def stream(self) -> ChatStream:
        """Implement Wire.stream."""
        return ChatStream()

    def usage(self, data: Any) -> Usage | None:
        """Implement Wire.usage."""
        return openai_usage(data, "prompt", "completion")

    def parse(self, data: Any, usage: Usage) -> Reply:
        """Implement Wire.parse."""
        if not isinstance(data, dict) or not data.get("choices"):
            raise Transient(one_line(f"the reply is no chat completion: {data}", 200))
        choice = data["choices"][0]
        body, reason = choice.get("message"), choice.get("finish_reason")
        if not isinstance(body, dict) or not reason:
            raise Transient("the reply was cut off: it has no finish_reason")
        if reason == "error":  # what gateways say when their upstream broke
            raise Transient("the reply was cut off: the gateway's upstream failed")
        calls = [_call(call) for call in body.get("tool_calls") or []]
        content = body.get("content")
        message = assistant(
            content if isinstance(content, str) and content else body.get("refusal") or "", calls
        )
        reasoning = {name: body[name] for name in _REASONING if body.get(name)}
        if reasoning:
            message["raw"] = {"openai": reasoning}
        stop = REFUSAL if body.get("refusal") else _STOP.get(reason, reason)
        return Reply(message, usage, TOOLS if stop == END and calls else stop)


class ChatStream:
    """The stream of a Chat Completions reply."""

    def __init__(self) -> None:
        self.is_done = False
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: list[dict[str, Any]] = []
        self._at: dict[int, int] = {}
        """The place in `_calls` of a call's `index` on the wire."""
        self._reason: str | None = None
        self._usage: Any = None
        self._seen = False

    def take(self, event: str, data: Any) -> None:
        """Implement Stream.take."""
        error = error_of(data) if event == "error" or "error" in data else None
        if error:
            raise StreamedError(error[0], error[1])
        self._usage = data.get("usage") or self._usage
        for choice in (data.get("choices") or [])[:1]:
            self._seen = True
            self._reason = choice.get("finish_reason") or self._reason
            delta = choice.get("delta") or {}
            for name in ("content", "refusal", "reasoning_content", "reasoning"):
                if isinstance(delta.get(name), str):
                    self._message[name] = (self._message.get(name) or "") + delta[name]
            if delta.get("reasoning_details"):
                self._message.setdefault("reasoning_details", []).extend(delta["reasoning_details"])
            for piece in delta.get("tool_calls") or []:
                self._take_call(piece)

    def _take_call(self, piece: dict[str, Any]) -> None:
        index, name = piece.get("index") or 0, piece.get("id")
        place = self._at.get(index)
        # some servers give every call of a reply the index 0: then a new id begins a new call
        if place is None or (name and self._calls[place]["id"] and name != self._calls[place]["id"]):
            place = self._at[index] = len(self._calls)
            self._calls.append(
                {"id": name or "", "type": "function", "function": {"name": "", "arguments": ""}}
            )
        call, function = self._calls[place], piece.get("function") or {}
        call["id"] = call["id"] or name or ""
        if function.get("name") and function["name"] != call["function"]["name"]:
            call["function"]["name"] += function["name"]
        arguments = function.get("arguments")
        if arguments is not None:
            call["function"]["arguments"] += (
                arguments if isinstance(arguments, str) else json.dumps(arguments)
            )

    def whole(self) -> dict[str, Any]:
        """Implement Stream.whole."""
        message = self._message | ({"tool_calls": self._calls} if self._calls else {})
        choice = {"index": 0, "message": message, "finish_reason": self._reason}
        return {"choices": [choice] if self._seen else [], "usage": self._usage}


def to_wire(
    messages: list[Message], reasoning: list[str], tools: Sequence[ToolSpec] = ()
) -> list[dict[str, Any]]:
    """Neutral messages, made valid, as Chat Completions takes them."""
    keys = ("role", "tool_call_id", "content")
    return [
        _turn(message, reasoning)
        if message["role"] == "assistant"
        else {k: message[k] for k in keys if k in message}
        for message in valid_history(messages, tools)
    ]


def _turn(message: Message, reasoning: list[str]) -> dict[str, Any]:
    reasoning_fields = message.get("raw", {}).get("openai", {})
    turn = {"role": "assistant", "content": message["content"] or None}
    turn |= {name: reasoning_fields[name] for name in reasoning if name in reasoning_fields}
    calls = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in message["tool_calls"]
    ]
    return turn | ({"tool_calls": calls} if calls else {})


def _call(call: dict[str, Any]) -> dict[str, str]:
    """A tool call of the wire as a neutral one."""
    function = call.get("function") or call.get("custom") or {}
    arguments = function.get("arguments", function.get("input")) or ""
    return {
        "id": str(call.get("id") or ""),
        "name": str(function.get("name") or ""),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
    }
