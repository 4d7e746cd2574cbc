"""TRL's SFTTrainer: `messages` with `tools`, and `prompt` with `completion` where a reply is not trained.

`assistant_only_loss` trains every assistant message of `messages`. In a row of `prompt` and `completion` only
those of the completion are trained, so such rows keep a reply out of the loss that is needed as context.
"""

from __future__ import annotations

from collections.abc import Iterator

from passagent.data.export.example import Example, Turn
from passagent.data.export.formats.common import (
    Row,
    chat_message,
    functions,
    has_untrained,
    provenance,
    stretches,
)

WHOLE, PARTS = "messages.jsonl", "prompt_completion.jsonl"


def rows(example: Example) -> Iterator[Row]:
    """One row for each stretch of trained replies; it ends with the last of them."""
    shared = {**provenance(example), "tools": functions(example)}
    for begin, end in stretches(example.turns):
        before, trained = example.turns[:begin], example.turns[begin:end]
        if has_untrained(before):
            yield {**shared, "prompt": [*map(message, before)], "completion": [*map(message, trained)]}
        else:
            yield {**shared, "messages": [*map(message, example.turns[:end])]}


def file_of(row: Row) -> str:
    """The file of a row: each holds rows of one schema."""
    return WHOLE if "messages" in row else PARTS


def message(turn: Turn) -> Row:
    """A turn as TRL takes it."""
    message_data = chat_message(turn, lambda call: call.arguments)
    if turn.reasoning is not None:
        message_data["reasoning_content"] = turn.reasoning
    return message_data
