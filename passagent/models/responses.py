"""The Responses API: OpenAI's own. Nothing is stored there: reasoning travels encrypted with us."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from passagent.models.http import HttpModel
from passagent.models.retry import Transient
from passagent.models.types import END, LENGTH, REFUSAL, TOOLS, Message, Reply, ToolSpec, Usage, assistant
from passagent.models.wire import openai_usage

_INCOMPLETE = {"max_output_tokens": LENGTH, "content_filter": REFUSAL}


class Responses(HttpModel):
    """A model behind OpenAI's Responses API."""

    SDK, CLIENT = "openai", "AsyncOpenAI"
    OPTIONAL = ("temperature", "include", "stream")

    def request(self, messages: list[Message], tools: list[ToolSpec]) -> dict[str, Any]:
        """Implement HttpModel.request."""
        return {
            "model": self.config.name.partition("/")[2],
            "instructions": "\n\n".join(m["content"] for m in messages if m["role"] == "system") or None,
            "input": to_wire(messages),
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
        return openai_usage(data, "input", "output")

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


def to_wire(messages: list[Message]) -> list[dict[str, Any]]:
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
