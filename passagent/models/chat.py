"""Chat Completions: OpenAI's older API, and what every compatible server speaks (vLLM, SGLang, Ollama)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from passagent.models.http import HttpModel
from passagent.models.retry import Transient, one_line
from passagent.models.types import END, LENGTH, REFUSAL, TOOLS, Message, Reply, ToolSpec, Usage, assistant
from passagent.models.wire import openai_usage

_STOP = {"stop": END, "tool_calls": TOOLS, "length": LENGTH, "content_filter": REFUSAL}
_REASONING = ("reasoning_content", "reasoning_details", "reasoning")
"""Names of a reply's reasoning at compatible servers; it is sent back under the same name."""


class Chat(HttpModel):
    """A model behind the Chat Completions API."""

    SDK, CLIENT = "openai", "AsyncOpenAI"
    OPTIONAL = ("max_tokens", "max_completion_tokens", "temperature", "stream_options", "stream", "system")

    def request(self, messages: list[Message], tools: list[ToolSpec]) -> dict[str, Any]:
        """Implement HttpModel.request."""
        config = self.config
        is_streamed = config.streams and "stream" not in self.refused
        # OpenAI's newer models take max_completion_tokens only, many compatible servers max_tokens only
        is_old = config.is_compatible and "max_tokens" not in self.refused
        functions = [
            {"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools
        ]
        return {
            "model": config.name.partition("/")[2],
            "messages": [_turn(message) for message in messages],
            "max_tokens" if is_old else "max_completion_tokens": config.max_output_tokens,
            "temperature": config.temperature,
            "tools": [{"type": "function", "function": function} for function in functions] or None,
            "stream": is_streamed or None,
            "stream_options": {"include_usage": True} if is_streamed else None,
        }

    async def answers(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        """Implement HttpModel.answers."""
        from openai.lib.streaming.chat import ChatCompletionStreamState

        answer = await self._client.chat.completions.create(**request)
        if not request.get("stream"):
            yield answer
            return
        self.check_stream(answer.response)
        state = ChatCompletionStreamState()
        async with answer:
            async for chunk in answer:
                state.handle_chunk(chunk)
                yield state.current_completion_snapshot

    def usage(self, data: dict[str, Any]) -> Usage | None:
        """Implement HttpModel.usage."""
        return openai_usage(data, "prompt", "completion")

    def parse(self, data: dict[str, Any], usage: Usage) -> Reply:
        """Implement HttpModel.parse."""
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


def _turn(message: Message) -> dict[str, Any]:
    """A message as Chat Completions takes it."""
    if message["role"] != "assistant":
        return {key: message[key] for key in ("role", "tool_call_id", "content") if key in message}
    turn = {"role": "assistant", "content": message["content"] or None}
    turn |= message.get("raw", {}).get("openai", {})
    calls = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in message["tool_calls"]
    ]
    return turn | ({"tool_calls": calls} if calls else {})
