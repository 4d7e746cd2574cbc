"""Formats of chat messages: TRL, OpenAI's fine-tuning, axolotl. They differ in how a reply is left untrained.

Arguments are objects for TRL, and text for the others: `datasets` would merge the keys of objects over all
rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from passagent.data.export.example import (
    Example,
    FileRow,
    Row,
    Turn,
    functions,
    has_untrained,
    provenance,
    stretches,
)

WHOLE, PARTS = "messages.jsonl", "prompt_completion.jsonl"
"""TRL's files."""
TRAIN = "train.jsonl"
"""The file of the others."""
_DATASET = """\
  - path: {path}
    ds_type: json
    type: chat_template
    field_messages: messages
    field_tools: tools
    message_field_training: train
    roles_to_train: []
    train_on_eos: turn
"""


def trl_rows(example: Example) -> Iterator[FileRow]:
    """Make one row for each stretch of trained replies; it ends with the last of them.

    TRL's `assistant_only_loss` trains every assistant message of `messages`. In a row of `prompt` and
    `completion` only those of the completion are trained, so such rows keep a reply out of the loss that is
    needed as context.
    """
    shared = {**provenance(example), "tools": functions(example)}
    for begin, end in stretches(example.turns):
        before, trained = example.turns[:begin], example.turns[begin:end]
        if has_untrained(before):
            row = {"prompt": [*map(trl_message, before)], "completion": [*map(trl_message, trained)]}
            yield PARTS, {**shared, **row}
        else:
            yield WHOLE, {**shared, "messages": [*map(trl_message, example.turns[:end])]}


def openai_rows(example: Example) -> Iterator[FileRow]:
    """Make one row up to the last trained reply, with a `weight` of 0 or 1 on each reply.

    The endpoint refuses keys that it does not know, so a row has no provenance: it is in the side file.
    Replies that are empty are left out, as they are when sent.
    """
    if not (turns := _until_trained(example)):
        return
    messages = []
    for turn in turns:
        message = _message(turn, as_text=True)
        message.pop("reasoning_content", None)
        if turn.role == "tool":
            del message["name"]  # not in the API's message
        if turn.role == "assistant":
            message["weight"] = int(turn.is_trained)
            if not turn.calls and not turn.content.strip():
                continue
            if not turn.content:
                del message["content"]
        messages.append(message)
    yield TRAIN, {"messages": messages, "tools": functions(example), "parallel_tool_calls": True}


def axolotl_rows(example: Example) -> Iterator[FileRow]:
    """Make one row up to the last trained reply: messages, each with `train`, for `chat_template`."""
    if not (turns := _until_trained(example)):
        return
    tools = functions(example)
    for tool in tools:
        tool["function"]["parameters"] = json.dumps(tool["function"]["parameters"], ensure_ascii=False)
    messages = [{**_message(turn, as_text=True), "train": turn.is_trained} for turn in turns]
    yield TRAIN, {**provenance(example), "messages": messages, "tools": tools}


def axolotl_files(names: list[str]) -> dict[str, str]:
    """Write the part of an axolotl configuration that reads the data files."""
    return {"axolotl.yaml": "datasets:\n" + "".join(_DATASET.format(path=name) for name in names)}


def trl_message(turn: Turn) -> Row:
    """Return a turn as TRL takes it."""
    return _message(turn, as_text=False)


def _until_trained(example: Example) -> tuple[Turn, ...]:
    """Return the turns up to the last trained reply; none without one."""
    trained = stretches(example.turns)
    return example.turns[: trained[-1].end] if trained else ()


def _message(turn: Turn, as_text: bool) -> Row:
    """Return a turn as a chat message. `as_text`: a call's arguments are JSON text."""
    message: Row = {"role": turn.role, "content": turn.content}
    if turn.role == "tool":
        message |= {"tool_call_id": turn.answers, "name": turn.name}
    if turn.calls:
        message["tool_calls"] = []
        for call in turn.calls:
            arguments: Any = json.dumps(call.arguments, ensure_ascii=False) if as_text else call.arguments
            function = {"name": call.name, "arguments": arguments}
            message["tool_calls"].append({"id": call.id, "type": "function", "function": function})
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    return message
