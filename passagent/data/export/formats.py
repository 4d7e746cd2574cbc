"""The forms that an exported example takes, all in one table. See docs/formats.md.

They differ in how a reply is left untrained, and in what holds a call. Arguments are objects for TRL, and
text for OpenAI and axolotl: `datasets` would merge the keys of objects over all rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from passagent.data.export.example import FILES, Example, Row, Turn, stretches
from passagent.models.types import clean

FileRow = tuple[str, Row]
"""The name of a file in the output directory, and a row of it."""
TRAIN = "train.jsonl"
_WHOLE, _PARTS = "messages.jsonl", "prompt_completion.jsonl"
"""TRL's files."""
_LAST = "train_last.jsonl"
"""LLaMA-Factory's second file."""


@dataclass(frozen=True)
class Format:
    """A format: a pure function from an example to rows, and the files that they go to."""

    name: str
    about: str
    """One line for a person."""
    make: Callable[[Example], Iterator[FileRow]]
    """Makes an example's rows, each with the name of its file; `rows` is what is written."""
    files: tuple[str, ...] = ()
    """The files, each with a row a line and rows of one schema; (): a document for each row, `*.json`."""
    extra_files: Callable[[list[str]], dict[str, str]] = lambda names: {}
    """`extra_files(names)`: name to text of what else the trainer reads; `names`: the data files written."""

    def rows(self, example: Example) -> Iterator[FileRow]:
        """Return the rows: JSON-able, and without lone surrogates, which UTF-8 cannot hold."""
        return ((file, clean(row)) for file, row in self.make(example))


def _stored(example: Example) -> Iterator[FileRow]:
    """Make a line that `Trajectory` reads, its `columns` and `files` filled in."""
    columns = dict(example.columns)
    files = {FILES: columns.pop(FILES)} if FILES in columns else {}
    yield "episodes.jsonl", {**example.trajectory.model_dump(), "columns": columns, **files}


def _has_replies(turns: Sequence[Turn]) -> bool:
    return any(turn.role == "assistant" for turn in turns)


def _trl(example: Example) -> Iterator[FileRow]:
    """Make one row for each stretch of trained replies; it ends with the last of them.

    TRL's `assistant_only_loss` trains every assistant message of `messages`. In a row of `prompt` and
    `completion` only those of the completion are trained, so such rows keep a reply out of the loss that is
    needed as context.
    """
    shared = {**example.provenance(), "tools": example.functions}
    messages = [turn.message for turn in example.turns]
    for begin, end in stretches(example.turns):
        if _has_replies(example.turns[:begin]):
            yield _PARTS, {**shared, "prompt": messages[:begin], "completion": messages[begin:end]}
        else:
            yield _WHOLE, {**shared, "messages": messages[:end]}


def _until_trained(example: Example) -> Iterator[tuple[Turn, Row]]:
    """Yield the turns up to the last trained reply, and the message of each with its arguments as text."""
    end = max((end for _, end in stretches(example.turns)), default=0)
    for turn in example.turns[:end]:
        message = dict(turn.message)
        if "tool_calls" in message:
            message["tool_calls"] = [
                call | {"function": call["function"] | {"arguments": _text(call["function"]["arguments"])}}
                for call in message["tool_calls"]
            ]
        yield turn, message


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _openai(example: Example) -> Iterator[FileRow]:
    """Make one row up to the last trained reply, with a `weight` of 0 or 1 on each reply.

    The endpoint refuses keys that it does not know, so a row has no provenance: it is in the side file.
    Replies that are empty are left out, as they are when sent.
    """
    messages = []
    for turn, message in _until_trained(example):
        message.pop("reasoning_content", None)
        message.pop("name", None)  # not in the API's message
        if turn.role == "assistant":
            message["weight"] = int(turn.is_trained)
            if "tool_calls" not in message and not message["content"].strip():
                continue
            if not message["content"]:
                del message["content"]
        messages.append(message)
    if messages:
        yield TRAIN, {"messages": messages, "tools": example.functions, "parallel_tool_calls": True}


def _axolotl(example: Example) -> Iterator[FileRow]:
    """Make one row up to the last trained reply: messages, each with `train`, for `chat_template`."""
    messages = [message | {"train": turn.is_trained} for turn, message in _until_trained(example)]
    tools = [
        {"type": "function", "function": {**tool, "parameters": _text(tool["parameters"])}}
        for tool in example.tools
    ]
    if messages:
        yield TRAIN, {**example.provenance(), "messages": messages, "tools": tools}


def _axolotl_files(names: list[str]) -> dict[str, str]:
    """Write the part of an axolotl configuration that reads the data files."""
    data_sets = [
        f"  - path: {name}\n    ds_type: json\n    type: chat_template\n    field_messages: messages\n"
        "    field_tools: tools\n    message_field_training: train\n    roles_to_train: []\n"
        "    train_on_eos: turn\n"
        for name in names
    ]
    return {"axolotl.yaml": "".join(["datasets:\n", *data_sets])}


def _llamafactory(example: Example) -> Iterator[FileRow]:
    """Make a `sharegpt` row as far as every reply is trained, and one for each trained reply after that.

    The only mask is `mask_history`, for a whole training: the last reply alone is trained. So these are two
    trainings. LLaMA-Factory's `openai` formatting would drop what a reply says beside its calls.
    """
    # its `datasets` has no type for objects and lists
    shared = {
        name: _text(value) if isinstance(value, dict | list | tuple) else value
        for name, value in example.provenance().items()
    }
    shared |= {"system": example.turns[0].message["content"], "tools": _text(example.tools)}
    for begin, end in stretches(example.turns):
        is_last_alone = _has_replies(example.turns[:begin])
        ends = [place + 1 for place in range(begin, end) if example.turns[place].role == "assistant"]
        for last in ends if is_last_alone else [end]:
            conversation = _conversation(example.turns[1:last])
            row = {**shared, "mask_history": is_last_alone, "conversations": conversation}
            yield _LAST if is_last_alone else TRAIN, row


def _conversation(turns: Sequence[Turn]) -> list[Row]:
    """Return messages of user and model, which alternate: results in a row are one observation."""
    messages: list[Row] = []
    for role, group in groupby(turns, lambda turn: turn.role if turn.role == "assistant" else "user"):
        side = [turn.message for turn in group]
        if role == "assistant":
            names = ["function_call" if "tool_calls" in message else "gpt" for message in side]
            messages += [
                {"from": name, "value": _sharegpt(message)} for name, message in zip(names, side, strict=True)
            ]
        else:
            # the words of LLaMA-Factory's own converter between the results of parallel calls
            text = "\n</tool_response>\n<tool_response>\n".join(message["content"] for message in side)
            messages.append({"from": "observation" if side[0]["role"] == "tool" else "human", "value": text})
    return messages


def _sharegpt(message: Row) -> str:
    """Return a reply's reasoning, text and calls.

    The calls come first, and no `<` is in them: LLaMA-Factory looks for the first pair of words, whatever a
    text says, and puts the calls behind the text.
    """
    reasoning, content = message.get("reasoning_content"), message["content"]
    thought = "" if reasoning is None else f"<think>\n{reasoning}\n</think>\n\n"
    if "tool_calls" not in message:
        return f"{thought}{content}"
    block = _text([call["function"] for call in message["tool_calls"]]).replace("<", "\\u003c")
    return f"<tool_call>{block}</tool_call>{thought}" + (f"{content}\n" if content else "")


def _llamafactory_files(names: list[str]) -> dict[str, str]:
    """Describe each data file, as a data set named `passagent_` and the file's stem."""
    described = {
        f"passagent_{name.split('.')[0]}": {
            "file_name": name,
            "formatting": "sharegpt",
            "columns": {"messages": "conversations", "system": "system", "tools": "tools"},
        }
        for name in names
    }
    return {"dataset_info.json": json.dumps(described, indent=2) + "\n"}


def _atif(example: Example) -> Iterator[FileRow]:
    """Make a document of the whole conversation; `extra.is_trained` of a step says whether it is trained."""
    trajectory = example.trajectory
    is_part = example.id != f"{trajectory.run}/{trajectory.episode}"
    begin = next((place for place, turn in enumerate(example.turns) if turn.is_trained), 0)
    steps: list[Row] = []
    for place, turn in enumerate(example.turns):
        message = turn.message
        if turn.role == "tool":
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append({"source_call_id": message["tool_call_id"], "content": message["content"]})
            continue
        source = "agent" if turn.role == "assistant" else turn.role
        step: Row = {"step_id": len(steps) + 1, "source": source, "message": message["content"]}
        if turn.at:
            step["timestamp"] = turn.at
        if is_part and place < begin:
            step["is_copied_context"] = True  # another example has it
        steps.append(step | (_atif_reply(turn, trajectory.model) if turn.role == "assistant" else {}))
    usages = [turn.usage for turn in example.replies]

    def total(name: str) -> Any:
        """Sum up the replies; None for figures that are not known of each reply."""
        values = [getattr(usage, name, None) for usage in usages]
        return None if None in values else sum(values)

    agent = {"name": "passagent", "version": trajectory.passagent, "model_name": trajectory.model}
    yield (
        f"{example.id.replace('/', '-')}.json",
        {
            "schema_version": "ATIF-v1.8",
            "session_id": trajectory.run,
            "trajectory_id": example.id,
            "agent": agent | {"tool_definitions": example.functions},
            "steps": steps,
            "final_metrics": _without_none(
                total_prompt_tokens=total("input_tokens"),
                total_completion_tokens=total("output_tokens"),
                total_cached_tokens=total("cached_tokens"),
                total_cost_usd=total("cost"),
                total_steps=len(steps),
            ),
            "extra": example.provenance(),
        },
    )


def _atif_reply(turn: Turn, model: str) -> Row:
    """Return what a step has of a reply. `model`: the run's."""
    step: Row = {"llm_call_count": 1, "extra": {"is_trained": turn.is_trained}}
    raw = {arguments["call"]: arguments["arguments"] for arguments in turn.raw}
    if "reasoning_content" in turn.message:
        step["reasoning_content"] = turn.message["reasoning_content"]
    if calls := turn.message.get("tool_calls"):
        step["tool_calls"] = [
            {
                "tool_call_id": call["id"],
                "function_name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
                **({"extra": {"raw_arguments": raw[call["id"]]}} if call["id"] in raw else {}),
            }
            for call in calls
        ]
    if usage := turn.usage:
        if usage.model and usage.model != model:
            step["model_name"] = usage.model
        more = usage.model_dump(include={"cache_write_tokens", "reasoning_tokens", "latency_s"})
        step["metrics"] = _without_none(
            prompt_tokens=usage.input_tokens,
            completion_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            cost_usd=usage.cost,
            extra=_without_none(**more),
        )
    return step


def _without_none(**values: Any) -> Row:
    return {name: value for name, value in values.items() if value is not None}


FORMATS = {
    form.name: form
    for form in (
        Format("passagent", "everything, as it is stored", _stored, ("episodes.jsonl",)),
        Format("trl", "TRL's SFTTrainer: messages and tools", _trl, (_WHOLE, _PARTS)),
        Format("openai", "OpenAI fine-tuning: messages with weights", _openai, (TRAIN,)),
        Format(
            "llamafactory",
            "LLaMA-Factory: sharegpt and dataset_info.json",
            _llamafactory,
            (TRAIN, _LAST),
            extra_files=_llamafactory_files,
        ),
        Format(
            "axolotl",
            "axolotl's chat_template strategy: messages with train",
            _axolotl,
            (TRAIN,),
            extra_files=_axolotl_files,
        ),
        Format("atif", "ATIF v1.8, which harbor reads: a document each", _atif),
    )
}
"""Every format, by its name."""
