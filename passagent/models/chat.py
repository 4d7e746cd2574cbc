"""Chat Completions: OpenAI's older API, and what every compatible server speaks (vLLM, SGLang, Ollama)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from passagent.config import ModelConfig
from passagent.models.retry import Transient, one_line
from passagent.models.types import END, LENGTH, REFUSAL, TOOLS, Message, Reply, ToolSpec, Usage, assistant
from passagent.models.wire import check_stream, openai_usage, valid_history

_STOP = {"stop": END, "tool_calls": TOOLS, "length": LENGTH, "content_filter": REFUSAL}
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
    )

    def request(
        self, config: ModelConfig, messages: list[Message], tools: list[ToolSpec], refused: set[str]
    ) -> dict[str, Any]:
        """Implement Wire.request."""
        if "system" in refused:  # it becomes the beginning of the first user turn
            messages = [m | {"role": "user"} if m["role"] == "system" else m for m in messages]
        # OpenAI's newer models take max_completion_tokens only, many compatible servers max_tokens only
        is_old = config.is_compatible and "max_tokens" not in refused
        request: dict[str, Any] = {
            "model": config.name.partition("/")[2],
            "messages": to_wire(messages, tools),
            "max_tokens" if is_old else "max_completion_tokens": config.max_output_tokens,
            "temperature": config.temperature,
        }
        if tools:
            request["tools"] = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
                }
                for t in tools
            ]
        if config.streams and "stream" not in refused:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in request.items() if value is not None and name not in refused}

    async def answers(self, client: Any, request: dict[str, Any]) -> AsyncIterator[Any]:
        """Implement Wire.answers."""
        from openai.lib.streaming.chat import ChatCompletionStreamState

        answer = await client.chat.completions.create(**request)
        if not request.get("stream"):
            yield answer
            return
        check_stream(answer.response)
        state = ChatCompletionStreamState()
        async with answer:
            async for chunk in answer:
                state.handle_chunk(chunk)
                yield state.current_completion_snapshot

    def usage(self, data: dict[str, Any]) -> Usage | None:
        """Implement Wire.usage."""
        return openai_usage(data, "prompt", "completion")

    def parse(self, data: dict[str, Any], usage: Usage) -> Reply:
        """Implement Wire.parse."""
        if not data.get("choices"):
            raise Transient(one_line(f"the reply is no chat completion: {data}", 200))
        choice = data["choices"][0]
        body, reason = choice.get("message"), choice.get("finish_reason")
        if not isinstance(body, dict) or not reason:
            raise Transient("the reply was cut off: it has no finish_reason")
        if reason == "error":  # what gateways say when their upstream broke
            raise Transient("the reply was cut off: the gateway's upstream failed")
        calls = [
            {
                "id": call.get("id") or "",
                "name": call["function"].get("name") or "",
                "arguments": call["function"].get("arguments") or "",
            }
            for call in body.get("tool_calls") or []
        ]
        message = assistant(body.get("content") or body.get("refusal") or "", calls)
        reasoning = {name: body[name] for name in _REASONING if body.get(name)}
        if reasoning:
            message["raw"] = {"openai": reasoning}
        stop = REFUSAL if body.get("refusal") else _STOP.get(reason, reason)
        return Reply(message, usage, TOOLS if stop == END and calls else stop)


def to_wire(messages: list[Message], tools: Sequence[ToolSpec] = ()) -> list[dict[str, Any]]:
    """Neutral messages, made valid, as Chat Completions takes them."""
    keys = ("role", "tool_call_id", "content")
    return [
        _turn(message) if message["role"] == "assistant" else {k: message[k] for k in keys if k in message}
        for message in valid_history(messages, tools)
    ]


def _turn(message: Message) -> dict[str, Any]:
    turn = {"role": "assistant", "content": message["content"] or None}
    turn |= message.get("raw", {}).get("openai", {})
    calls = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in message["tool_calls"]
    ]
    return turn | ({"tool_calls": calls} if calls else {})
