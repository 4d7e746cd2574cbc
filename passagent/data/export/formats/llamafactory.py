"""LLaMA-Factory: `sharegpt` conversations and the `dataset_info.json` that describes them.

Its `openai` formatting drops what a reply says beside its calls. In `sharegpt` the value of a `function_call`
holds both: the calls between the words `<tool_call>`, and the text. User side and model side must alternate.
The only mask is `mask_history`, for a whole training: the last reply alone is trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from passagent.data.export.example import Example, FileRow, Row, Turn, has_untrained, provenance, stretches

WHOLE, LAST = "train.jsonl", "train_last.jsonl"
INFO = "dataset_info.json"
_BETWEEN = "\n</tool_response>\n<tool_response>\n"
"""Between the results of parallel calls: the words of LLaMA-Factory's own converter."""


def rows(example: Example) -> Iterator[FileRow]:
    """Make a row as far as every reply is trained, and one row for each trained reply after that.

    What needs `mask_history` is a training of its own.
    """
    shared = {name: _flat(value) for name, value in provenance(example).items()}
    shared |= {"system": example.turns[0].content, "tools": json.dumps(example.tools, ensure_ascii=False)}
    for begin, end in stretches(example.turns):
        if not has_untrained(example.turns[:begin]):
            yield (
                WHOLE,
                {**shared, "mask_history": False, "conversations": _conversation(example.turns[1:end])},
            )
            continue
        for place in range(begin, end):
            if example.turns[place].role == "assistant":
                turns = example.turns[1 : place + 1]
                yield LAST, {**shared, "mask_history": True, "conversations": _conversation(turns)}


def extra_files(names: list[str]) -> dict[str, str]:
    """Describe each data file, as a data set named `passagent_` and the file's stem."""
    described = {
        f"passagent_{name.rsplit('/', 1)[-1].split('.')[0]}": {
            "file_name": name,
            "formatting": "sharegpt",
            "columns": {"messages": "conversations", "system": "system", "tools": "tools"},
        }
        for name in names
    }
    return {INFO: json.dumps(described, indent=2) + "\n"}


def _flat(value: Any) -> Any:
    """Return a column's value, objects and lists as JSON text: its `datasets` has no type for them."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else value


def _conversation(turns: Sequence[Turn]) -> list[Row]:
    """Return messages that alternate: results in a row are one observation."""
    messages: list[Row] = []
    for is_reply, group in groupby(turns, lambda turn: turn.role == "assistant"):
        side = list(group)
        if is_reply:
            messages += [
                {"from": "function_call" if turn.calls else "gpt", "value": _value_of(turn)} for turn in side
            ]
        else:
            role = "observation" if side[0].role == "tool" else "human"
            messages.append({"from": role, "value": _BETWEEN.join(turn.content for turn in side)})
    return messages


def _value_of(turn: Turn) -> str:
    """Return a reply's reasoning, text and calls.

    The calls come first, and no `<` is in them: LLaMA-Factory looks for the first pair of words, whatever a
    text says, and puts the calls behind the text.
    """
    thought = "" if turn.reasoning is None else f"<think>\n{turn.reasoning}\n</think>\n\n"
    if not turn.calls:
        return thought + turn.content
    calls = [{"name": call.name, "arguments": call.arguments} for call in turn.calls]
    text = f"{turn.content}\n" if turn.content else ""
    block = json.dumps(calls, ensure_ascii=False).replace("<", "\\u003c")
    return f"<tool_call>{block}</tool_call>{thought}{text}"
