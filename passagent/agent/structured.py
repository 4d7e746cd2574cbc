"""What the validator and the hint distiller share: asking a model for one structured reply, and once more."""

from __future__ import annotations

from passagent.models.types import Message


def again(message: Message, text: str) -> list[Message]:
    """What follows a malformed reply: `text` as the answer to each of its tool calls, or as a message."""
    answers: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": text}
        for call in message["tool_calls"]
    ]
    return answers or [{"role": "user", "content": text}]


def braced(text: str) -> str:
    """The text from its first brace to its last: a model may wrap its JSON."""
    return text[text.find("{") : text.rfind("}") + 1]
