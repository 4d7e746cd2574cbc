"""A question to a model whose answer is one call of a tool, as the validator and the hint distiller ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from passagent import resources
from passagent.agent.prompt import environment
from passagent.models.types import Message, Model, Reply, ToolSpec

AGAIN = "That was no answer: {reason}. Call `{name}` once."

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)


async def ask(
    model: Model,
    question: tuple[str, ToolSpec],
    read: Callable[[Message], T],
    give_up: Callable[[ValueError], T],
    save: Callable[[Reply, T | None], None],
) -> T:
    """Ask a `question`, a prompt and the tool that answers it, and return the answer.

    `read` raises ValueError with what is wrong with a reply. A malformed one is asked for once again; what
    `give_up` makes of the second one's error is the answer. `save` is called with each reply, and the answer
    once there is one; it returns when both are safe. Raises what the model raises.
    """
    prompt, tool = question
    messages: list[Message] = [{"role": "user", "content": prompt}]
    reply = await model.complete(messages, [tool])
    try:
        answer = read(reply.message)
    except ValueError as error:
        save(reply, None)
        text = AGAIN.format(reason=error, name=tool.name)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": text}
            for call in reply.message["tool_calls"]
        ]
        messages += [reply.message, *(results or [{"role": "user", "content": text}])]
        reply = await model.complete(messages, [tool])
        try:
            answer = read(reply.message)
        except ValueError as second_error:
            answer = give_up(second_error)
    save(reply, answer)
    return answer


def read_answer(message: Message, tool: ToolSpec, kind: type[B], **fields: Any) -> B:
    """Return the arguments of the first call of `tool`, else the JSON in the text, and `fields` as a `kind`.

    Raises ValueError with what is wrong.
    """
    content = message["content"]  # a model may wrap its JSON
    braced = content[content.find("{") : content.rfind("}") + 1]
    arguments = [call["arguments"] for call in message["tool_calls"] if call["name"] == tool.name]
    try:
        value = json.loads(arguments[0] if arguments else braced)
    except ValueError:
        raise ValueError("it holds no valid JSON object") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    try:
        return kind.model_validate(value | fields)
    except ValidationError as error:
        first = error.errors()[0]
        text = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {text}") from None


def render(name: str, **values: Any) -> str:
    """Fill in the template `prompts/NAME`."""
    return environment(resources.roots()).get_template(name).render(values).strip()
