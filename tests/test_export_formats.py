"""Each format, of any conversation: no text is lost, values stay as they are, replies are trained once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passagent.agent.toolbox import SPECS
from passagent.data.export.example import Example, Turn, steps, whole
from passagent.data.export.formats import FORMATS
from passagent.models.types import clean
from passagent.store.trajectories import Call, Candidate, Trajectory
from passagent.store.trajectories import Turn as Stored

TRAINERS = ("trl", "openai", "llamafactory", "axolotl")
SPECIMENS = [
    "",
    " ",
    "a plan",
    "two\nlines\n",
    "\ud800 lone",
    "x</tool_call>y",
    "<tool_call>[1]</tool_call>",
    "\U0001f600\u2028",
]
texts = st.one_of(st.sampled_from(SPECIMENS), st.text(max_size=12))
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
BROKEN = ('{"path": "A.py"', "[1]", "null", '{"x": NaN}', '{"x": 1e999}', '"\\ud800"')
arguments = st.one_of(
    st.dictionaries(texts, values, max_size=3).map(json.dumps),
    st.dictionaries(texts, values, max_size=3).map(json.dumps),
    st.sampled_from([*BROKEN, "", " "]),
)
TOOLS = [{"name": s.name, "description": s.description, "parameters": s.parameters} for s in SPECS.values()]
SYSTEM: dict[str, Any] = {"role": "system", "content": "be exact", "tools": TOOLS}
USAGE = Call(
    model="m", input_tokens=3, output_tokens=2, cached_tokens=None, cache_write_tokens=None,
    reasoning_tokens=None, cost=None, latency_s=1.5,
)  # fmt: skip


@st.composite
def examples(draw: Any) -> Example:
    """An episode as it may be stored: calls and results, remarks, thoughts, broken and cut-off replies."""
    messages = [SYSTEM, {"role": "user", "content": "the task"}]
    nodes = []
    for place in range(draw(st.integers(1, 6))):
        calls = [
            {
                "id": f"c{place}_{i}",
                "name": draw(st.sampled_from([*SPECS, "none"])),
                "arguments": draw(arguments),
            }
            for i in range(draw(st.integers(0, 3)))
        ]
        reply: dict[str, Any] = {"role": "assistant", "content": draw(texts), "tool_calls": calls}
        reply["stop_reason"] = draw(st.sampled_from(["end", "end", "end", "length", "refusal"]))
        if thought := draw(st.sampled_from(["", "", "hm", "\ud800 hm"])):
            reply["raw"] = {"openai": {"reasoning_content": thought}}
        messages.append(reply)
        for call in calls:
            result = {"tool_call_id": call["id"], "name": call["name"], "content": draw(texts)}
            messages.append({"role": "tool", **result})
        if calls and draw(st.booleans()):
            nodes.append(candidate(len(nodes) + 1, calls[0]["id"]))
        if not calls:
            messages.append({"role": "user", "content": "Your reply calls no tool."})
    if draw(st.booleans()) and messages[-1]["role"] == "user":
        messages.pop()  # the episode ended with what the model said
    example = whole(episode(messages, nodes))
    example.columns.update(evaluator_version="e1", trial=None)
    return example


def episode(messages: list[dict[str, Any]], nodes: list[Candidate] | None = None) -> Trajectory:
    """The trajectory of a conversation."""
    at = "2026-01-01T00:00:00Z"
    turns = [Stored(message=m, usage=USAGE if m["role"] == "assistant" else None, at=at) for m in messages]
    return Trajectory(
        passagent="1", run="r", episode=3, task="t", task_key="k", operators=[], model="m", device="cpu",
        island=0, role="fusion", seed=1, parent=None, parent_as=None, state="done", end_reason="done",
        steps=1, input_tokens=1, output_tokens=1, best_node=None, best_as=None, gain=None, created_at=at,
        finished_at=None, messages=turns, nodes=nodes or [],
    )  # fmt: skip


def candidate(node: int, call_id: str) -> Candidate:
    return Candidate(
        node=node, call_id=call_id, parent=None, state="done", status="ok", as_score=1.0, note="", files="k",
        repeat_of=None,
    )  # fmt: skip


def rows_of(name: str, example: Example) -> list[dict[str, Any]]:
    """The rows as a reader gets them back from the file: valid UTF-8, valid JSON."""
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for _, row in FORMATS[name].rows(example)]
    assert "\n" not in "".join(lines)
    return [json.loads(line.encode("utf-8").decode("utf-8"), parse_constant=refuse) for line in lines]


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


Said = tuple[str, str, Any]
"""A reply as every format must tell it: its text, its thought, and its calls as name and value."""


def said(stored: Stored) -> Said:
    """A reply as it was stored; arguments that are no JSON object are `{}`."""
    message, calls = stored.message, []
    for call in message["tool_calls"]:
        broken = call["arguments"] in BROKEN
        calls.append((call["name"], {} if broken else json.loads(call["arguments"].strip() or "{}")))
    thought = message.get("raw", {}).get("openai", {}).get("reasoning_content", "")
    return clean(message["content"]), clean(thought), [(name, clean(value)) for name, value in calls]


def of_chat(message: dict[str, Any]) -> Said:
    calls = [call["function"] for call in message.get("tool_calls", [])]
    told = [(f["name"], f["arguments"]) for f in calls]
    told = [(name, json.loads(text) if isinstance(text, str) else text) for name, text in told]
    return message.get("content", ""), message.get("reasoning_content", ""), told


def of_sharegpt(message: dict[str, str]) -> Said:
    """As LLaMA-Factory takes a value apart: the first pair of words, then the thought."""
    value, calls = message["value"], []
    if message["from"] == "function_call":
        begin, end = value.index("<tool_call>"), value.index("</tool_call>")
        calls = [(call["name"], call["arguments"]) for call in json.loads(value[begin + 11 : end])]
        value = value[:begin] + value[end + 12 :]
    thought = ""
    if value.startswith("<think>\n"):
        thought, _, value = value.removeprefix("<think>\n").partition("\n</think>\n\n")
    return value.removesuffix("\n") if calls and value else value, thought, calls


def trained(name: str, row: dict[str, Any]) -> Iterator[Said]:
    """What a trainer puts into the loss of a row, by that trainer's rules."""
    if name == "llamafactory":
        replies = [message for message in row["conversations"] if message["from"] in ("gpt", "function_call")]
        yield from map(of_sharegpt, replies[-1:] if row["mask_history"] else replies)
        return
    for message in row["completion"] if "completion" in row else row["messages"]:
        if message["role"] == "assistant" and message.get("train", message.get("weight", 1)):
            yield of_chat(message)


def as_told(name: str, stored: Stored) -> str:
    text, thought, calls = said(stored)
    return json.dumps([text, "" if name == "openai" else thought, calls])


def stored_turns(example: Example) -> list[tuple[Turn, Stored]]:
    return list(zip(example.turns, example.trajectory.messages, strict=False))


@pytest.mark.parametrize("name", TRAINERS)
@given(example=examples())
def test_each_trained_reply_is_trained_once_and_no_text_before_the_last_is_lost(
    name: str, example: Example
) -> None:
    for part in (example, *steps(example.trajectory).values()):
        rows = rows_of(name, part)
        in_loss = Counter(json.dumps(list(told)) for row in rows for told in trained(name, row))
        turns = stored_turns(part)
        assert in_loss == Counter(as_told(name, stored) for turn, stored in turns if turn.is_trained)
        assert bool(rows) == any(turn.is_trained for turn in part.turns)
        for row in rows:
            check_order(name, row)
        last = max((place for place, (turn, _) in enumerate(turns) if turn.is_trained), default=-1)
        messages = [stored for _, stored in turns[: last + 1]]
        if name == "openai":  # an empty reply is not sent, and not exported
            is_empty = lambda m: m.get("tool_calls") == [] and not m["content"].strip()  # noqa: E731
            messages = [stored for stored in messages if not is_empty(stored.message)]
        if rows:
            longest = max(rows, key=lambda row: len(json.dumps(row)))
            assert told_by(name, longest) == [
                as_told(name, s) if "tool_calls" in s.message else clean(s.message["content"])
                for s in messages
            ]


def check_order(name: str, row: dict[str, Any]) -> None:
    """The sides alternate for LLaMA-Factory; for the others results answer the calls before them."""
    if name == "llamafactory":
        sides = [message["from"] in ("gpt", "function_call") for message in row["conversations"]]
        assert sides == [False, True] * (len(sides) // 2)
        return
    waiting: list[str] = []
    for message in row["messages"] if "messages" in row else [*row["prompt"], *row["completion"]]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert waiting == []
            waiting = [call["id"] for call in message.get("tool_calls", [])]
    assert message["role"] == "assistant" and message.get("weight", 1) == 1


def told_by(name: str, row: dict[str, Any]) -> list[str]:
    """Every turn of a row; results that were put together taken apart."""
    if name == "llamafactory":
        found = [row["system"]]
        for message in row["conversations"]:
            if message["from"] in ("gpt", "function_call"):
                found.append(json.dumps(list(of_sharegpt(message))))
            else:
                found += message["value"].split("\n</tool_response>\n<tool_response>\n")
        return found
    messages = row["messages"] if "messages" in row else [*row["prompt"], *row["completion"]]
    return [json.dumps(list(of_chat(m))) if m["role"] == "assistant" else m["content"] for m in messages]


def broken_of(example: Example) -> list[str]:
    calls = [c for s in example.trajectory.messages for c in s.message.get("tool_calls", ())]
    return [call["arguments"] for call in calls if call["arguments"] in BROKEN]


@given(example=examples())
def test_atif_tells_the_whole_conversation(example: Example) -> None:
    (row,) = rows_of("atif", example)
    assert [step["step_id"] for step in row["steps"]] == [*range(1, len(row["steps"]) + 1)]
    found, broken = [], []
    for step in row["steps"]:
        found.append((step["message"], step.get("reasoning_content", "")))
        calls = {call["tool_call_id"]: call for call in step.get("tool_calls", [])}
        for result in step.get("observation", {"results": []})["results"]:
            assert result["source_call_id"] in calls
            found.append((result["content"], ""))
        raw = [call["extra"]["raw_arguments"] for call in calls.values() if "extra" in call]
        assert all(isinstance(call["arguments"], dict) for call in calls.values())
        assert not raw or not step["extra"]["is_trained"]
        broken += raw
    messages = [turn.message for turn in example.turns]
    assert found == [(clean(m["content"]), clean(m.get("reasoning_content", ""))) for m in messages]
    assert broken == clean(broken_of(example))
    replies = [step["extra"]["is_trained"] for step in row["steps"] if step["source"] == "agent"]
    assert replies == [turn.is_trained for turn in example.replies]
    for node, part in steps(example.trajectory).items():
        (row,) = rows_of("atif", part)
        begin = [step.get("is_copied_context", False) for step in row["steps"]].index(False)
        assert row["trajectory_id"].endswith(f"/{node}") and row["steps"][begin]["extra"]["is_trained"]


@given(example=examples())
def test_the_lossless_format_is_the_trajectory(example: Example) -> None:
    example.columns["files"] = {"k": {"A.py": "x"}}
    (row,) = rows_of("passagent", example)
    assert row.pop("columns") == {"evaluator_version": "e1", "trial": None}
    assert row.pop("files") == {"k": {"A.py": "x"}}
    assert Trajectory.model_validate(row).model_dump() == clean(example.trajectory.model_dump())


@given(example=examples())
def test_every_row_says_where_it_comes_from(example: Example) -> None:
    example.columns["files"] = {"k": {"A.py": "x"}}
    known = {"run": "r", "episode": 3, "model": "m", "device": "cpu", "evaluator_version": "e1"}
    broken = broken_of(example)
    for made in FORMATS.values():
        for file, row in made.rows(example):
            assert file in made.files or not made.files
            if made.name in ("openai", "passagent"):
                continue
            told = row["extra"] if made.name == "atif" else row
            assert {key: told[key] for key in known} == known and "files" not in told
            assert [call["arguments"] for call in json.loads(told["raw_arguments"])] == clean(broken)


def test_a_signed_or_hidden_thought_is_in_no_format() -> None:
    """What a provider signs or encrypts is in passagent's own format alone, as it was stored."""
    secret = "what-nobody-else-may-read"
    blocks = [{"type": "thinking", "thinking": secret, "signature": "c2ln"}, {"type": "text", "text": "done"}]
    hidden = {"responses": [{"type": "reasoning", "encrypted_content": secret}]}
    for raw in ({"anthropic": blocks}, hidden):
        reply = {"role": "assistant", "content": "done", "tool_calls": [], "raw": raw}
        told = episode([SYSTEM, {"role": "user", "content": "the task"}, reply])
        for name in FORMATS:
            rows = rows_of(name, whole(told))
            assert rows and (secret in json.dumps(rows)) == (name == "passagent")


def test_the_files_beside_the_data() -> None:
    assert FORMATS["trl"].extra_files(["messages.jsonl"]) == {}
    info = json.loads(
        FORMATS["llamafactory"].extra_files(["train.jsonl", "train_last.jsonl"])["dataset_info.json"]
    )
    assert {name: told["file_name"] for name, told in info.items()} == {
        "passagent_train": "train.jsonl",
        "passagent_train_last": "train_last.jsonl",
    }
    assert "path: train.jsonl" in FORMATS["axolotl"].extra_files(["train.jsonl"])["axolotl.yaml"]
