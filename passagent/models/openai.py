"""OpenAI's two APIs: Responses, its own, and Chat Completions, which vLLM, SGLang and Ollama speak, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from passagent.errors import one_line
from passagent.models.http import HttpModel
from passagent.models.retry import Transient
from passagent.models.types import END, LENGTH, REFUSAL, TOOLS, Message, Reply, ToolSpec, Usage, assistant

_INCOMPLETE = {"max_output_tokens": LENGTH, "content_filter": REFUSAL}


class Responses(HttpModel):
    """A model behind OpenAI's Responses API. Nothing is stored there: reasoning travels encrypted with us."""

    SDK, CLIENT = "openai", "AsyncOpenAI"
    OPTIONAL = ("temperature", "include", "stream")

    def request(self, messages: list[Message], tools: list[ToolSpec]) -> dict[str, Any]:
        """Implement HttpModel.request."""
        return {
            "model": self.config.name.partition("/")[2],
            "instructions": "\n\n".join(m["content"] for m in messages if m["role"] == "system") or None,
            "input": to_items(messages),
            "max_output_tokens": self.config.max_output_tokens,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "temperature": self.config.temperature,
            "stream": self.config.streams or None,
            "tools": [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": False,  # strict asks for schemas in which every property is required
                }
                for tool in tools
            ]
            or None,
        }

    async def answers(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        """Implement HttpModel.answers."""
        from openai import APIError

        answer = await self._client.responses.create(**request)
        if not request.get("stream"):
            yield answer
            return
        self.check_stream(answer.response)
        async with answer:
            async for event in answer:
                if event.type == "error":  # the SDK raises nothing here
                    raise APIError(event.message, answer.response.request, body=event.to_dict())
                if hasattr(event, "response"):  # the last one is whole, or says that it failed
                    yield event.response

    def usage(self, data: dict[str, Any]) -> Usage | None:
        """Implement HttpModel.usage."""
        return _usage(data, "input", "output")

    def parse(self, data: dict[str, Any], usage: Usage) -> Reply:
        """Implement HttpModel.parse."""
        status = data.get("status")
        if status not in ("completed", "incomplete"):
            raise Transient(f"the reply was cut off: its status is {status}")
        items = data["output"]
        parts = [part for item in items if item["type"] == "message" for part in item.get("content") or []]
        texts = [part.get("text") or "" for part in parts if part.get("type") == "output_text"]
        refusals = [part.get("refusal") or "" for part in parts if part.get("type") == "refusal"]
        calls = [
            {"id": i.get("call_id") or "", "name": i.get("name") or "", "arguments": i.get("arguments") or ""}
            for i in items
            if i["type"] == "function_call"
        ]
        message = assistant("\n".join(text for text in (*texts, *refusals) if text), calls)
        if any(item["type"] not in ("message", "function_call") for item in items):
            message["raw"] = {"responses": items}
        stop = TOOLS if calls else END
        if status == "incomplete":
            why = (data.get("incomplete_details") or {}).get("reason") or "max_output_tokens"
            stop = _INCOMPLETE.get(why, why)
        return Reply(message, usage, REFUSAL if refusals else stop)


def to_items(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages, without the system's, as input items; reasoning as it came."""
    items: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            called = message["tool_call_id"]
            items.append({"type": "function_call_output", "call_id": called, "output": content})
        elif role == "user":
            items.append({"role": "user", "content": content})
        elif role == "assistant":
            items += _assistant_items(message)
    return items


def _assistant_items(message: Message) -> list[dict[str, Any]]:
    """A reply's items as the API takes them: without blank texts and without reasoning that holds nothing."""
    calls, items = iter(message["tool_calls"]), list[dict[str, Any]]()
    plain = [{"type": "message", "role": "assistant", "content": message["content"]}]
    plain += [{"type": "function_call"}] * len(message["tool_calls"])
    for item in message.get("raw", {}).get("responses") or plain:
        content = item.get("content") or []
        if item["type"] == "function_call":
            call = next(calls)
            sent = {"call_id": call["id"], "name": call["name"], "arguments": call["arguments"]}
            items.append(item | sent)
        elif item["type"] == "message":
            if isinstance(content, list):
                content = [p for p in content if (p.get("text") or p.get("refusal") or "").strip()]
            items += [item | {"content": content}] if content else []
        elif item["type"] != "reasoning" or item.get("encrypted_content"):
            items.append(item)
    while items and items[-1]["type"] == "reasoning":  # cut off: refused without what it led to
        items.pop()
    if any(item["type"] == "reasoning" for item in items):
        return items
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


_STOP = {"stop": END, "tool_calls": TOOLS, "length": LENGTH, "content_filter": REFUSAL}
_REASONING = ("reasoning_content", "reasoning_details", "reasoning")
"""Names of a reply's reasoning at compatible servers; it is sent back under the same name."""


class Chat(HttpModel):
    """A model behind the Chat Completions API, which every compatible server speaks."""

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
        return _usage(data, "prompt", "completion")

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


def _usage(data: dict[str, Any], prompt: str, completion: str) -> Usage | None:
    """Read the usage of either API; `prompt` and `completion` begin the names of its counts."""
    usage = data.get("usage")
    if not usage:
        return None
    details = usage.get(f"{prompt}_tokens_details") or {}
    reasoning = (usage.get(f"{completion}_tokens_details") or {}).get("reasoning_tokens")
    return Usage(
        input_tokens=int(usage.get(f"{prompt}_tokens") or 0),
        output_tokens=int(usage.get(f"{completion}_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        reasoning_tokens=int(reasoning or 0),
        cache_write_tokens=int(details.get("cache_write_tokens") or 0),
    )
