"""A question to a model whose answer is one call of a tool, as the validator and the hint distiller ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jinja2 import Environment, StrictUndefined

from passagent.models.types import Message, Model, Reply, ToolSpec
from passagent.system import resources

TRIES = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Question(Generic[T]):
    """A question to a model."""

    prompt: str
    tool: ToolSpec
    again: str
    """The message after a malformed reply; `{reason}` stands for what is wrong with it."""
    read: Callable[[Message], T]
    """Reads a reply. Raises ValueError with what is wrong."""
    give_up: Callable[[str], T]
    """Makes the answer where the last reply is malformed, too, of what is wrong with it."""


async def ask(model: Model, question: Question[T], save: Callable[[Reply, T | None], None]) -> T:
    """Return the answer. A malformed reply is asked for once again; then `give_up` makes it.

    `save` is called with each reply, and the answer once there is one. Raises what the model raises.
    """
    messages: list[Message] = [{"role": "user", "content": question.prompt}]
    for tries_left in reversed(range(TRIES)):
        reply = await model.complete(messages, [question.tool])
        try:
            answer = question.read(reply.message)
        except ValueError as error:
            if tries_left:
                save(reply, None)
                text = question.again.format(reason=error)
                messages = [*messages, reply.message, *_answers(reply.message, text)]
                continue
            answer = question.give_up(str(error))
        save(reply, answer)
        break
    return answer


def _answers(message: Message, text: str) -> list[Message]:
    """Return `text` as the answer to each tool call of a reply, or as a message where it has none."""
    answers: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": text}
        for call in message["tool_calls"]
    ]
    return answers or [{"role": "user", "content": text}]


def read_object(message: Message, tool: ToolSpec) -> dict[str, Any]:
    """Return the arguments of the first call of `tool`, else the JSON in the text. Raises ValueError."""
    content = message["content"]  # a model may wrap its JSON
    braced = content[content.find("{") : content.rfind("}") + 1]
    arguments = [call["arguments"] for call in message["tool_calls"] if call["name"] == tool.name]
    try:
        value = json.loads(arguments[0] if arguments else braced)
    except ValueError:
        raise ValueError("it holds no valid JSON object") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def render(name: str, **values: Any) -> str:
    """Fill in the template `prompts/NAME`."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = resources.find(f"prompts/{name}").read_text(encoding="utf-8")
    return environment.from_string(text).render(values).strip()
