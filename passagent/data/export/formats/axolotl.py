"""axolotl's `chat_template` strategy: chat messages, each with `train`.

Arguments and the tools' parameters are text, which axolotl parses: `datasets` would merge the keys of objects
over all rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from passagent.data.export.example import Example, Turn
from passagent.data.export.formats.common import Row, chat_message, functions, provenance, stretches
from passagent.data.export.formats.openai import arguments_text

FILE = "train.jsonl"
CONFIG = "axolotl.yaml"
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


def rows(example: Example) -> Iterator[Row]:
    """One row up to the last trained reply."""
    trained = stretches(example.turns)
    if not trained:
        return
    tools = functions(example)
    for tool in tools:
        tool["function"]["parameters"] = json.dumps(tool["function"]["parameters"], ensure_ascii=False)
    yield {
        **provenance(example),
        "messages": [_message(turn) for turn in example.turns[: trained[-1].end]],
        "tools": tools,
    }


def extra_files(names: list[str]) -> dict[str, str]:
    """The part of an axolotl configuration that reads the data files."""
    return {CONFIG: "datasets:\n" + "".join(_DATASET.format(path=name) for name in names)}


def _message(turn: Turn) -> Row:
    message = chat_message(turn, arguments_text)
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    return {**message, "train": turn.is_trained}
