"""Folding: any conversation becomes a shorter one that both providers' APIs take."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verdicts import evaluated

from passagent.agent.tokens import NEWEST, cut_end, cut_middle, fit, fold, message_tokens, tokens
from passagent.agent.tool_specs import ToolAnswer
from passagent.models import anthropic
from passagent.models.types import Message, assistant, valid_history

HEAD: list[Message] = [
    {"role": "system", "content": "be exact " * 40},
    {"role": "user", "content": "task " * 40},
]
texts = st.sampled_from(["", "short", "a line\n" * 30, "w" * 900, "x = 1\n" * 400])
results = st.one_of(
    texts.map(ToolAnswer),
    texts.map(lambda text: ToolAnswer(f"error: {text}", {"error": True})),
    st.tuples(st.sampled_from(["ok", "mismatch"]), st.floats(0.1, 3), texts).map(lambda v: evaluated(*v)),
)


def result(call_id: str, name: str, answer: ToolAnswer) -> Message:
    """A tool's result as an episode stores it."""
    return {
        "role": "tool",
        "tool_call_id": call_id,
        "name": name,
        "content": answer.text,
        "data": answer.data,
    }


@st.composite
def conversations(draw: Any) -> list[Message]:
    """Replies with and without calls and thinking, remarks, broken arguments, as an episode stores them."""
    messages, number = [*HEAD], 0
    thinks = draw(st.sampled_from(["never", "always", "sometimes"]))
    for _ in range(draw(st.integers(1, 14))):
        calls, answers = [], []
        for _ in range(draw(st.integers(0, 3))):
            number += 1
            name = draw(st.sampled_from(["file_editor", "pass_evaluator", "no_such_tool"]))
            arguments: Any = {"command": draw(st.sampled_from(["create", "str_replace", "view"]))}
            arguments |= {
                "path": draw(st.sampled_from(["A.py", "B.py"])),
                "file_text": draw(texts),
                "old_str": 3,
            }
            broken = draw(st.sampled_from([None, "[1, 2]", '{"command": "cr']))
            calls.append({"id": f"c{number}", "name": name, "arguments": broken or json.dumps(arguments)})
            answers.append(result(f"c{number}", name, draw(results)))
        reply = assistant(draw(texts), calls)
        if thinks == "always" or (thinks == "sometimes" and draw(st.booleans())):
            blocks = [{"type": "thinking", "thinking": "hm", "signature": f"signed {number}"}]
            blocks += [
                {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}} for call in calls
            ]
            reply["raw"] = {"anthropic": blocks}
        if draw(st.booleans()):
            reply["input_tokens"] = draw(st.integers(0, 20_000))
        messages += [reply, *answers]
        if not calls:
            messages.append({"role": "user", "content": "go on"})
    return messages


def is_paired(messages: list[Message]) -> bool:
    """Whether each reply's calls have their results, once each, right behind it and nowhere else."""
    open_calls: list[str] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return False
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return False
        if message["role"] == "assistant":
            open_calls = [call["id"] for call in message["tool_calls"]]
    return True


@settings(max_examples=40, deadline=None)
@given(conversations(), st.integers(50, 4000))
def test_any_conversation_folds_to_a_valid_one(messages: list[Message], budget: int) -> None:
    before = json.dumps(messages)
    sent = fold(messages, budget).messages
    assert json.dumps(messages) == before
    assert sent[:2] == HEAD
    assert is_paired(messages) and is_paired(sent)
    starts = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    newest = messages[starts[-min(NEWEST, len(starts))] :]
    calls = [m.get("tool_calls") for m in newest]
    assert [m.get("tool_calls") for m in sent[-len(newest) :]] == calls
    # a reply is sent as it was or not at all, and a turn begins with its thinking
    originals = [json.dumps(m) for m in messages]
    assert all(json.dumps(m) in originals for m in sent if m["role"] == "assistant")
    note = next((i for i, m in enumerate(sent) if "replies" in m), None)
    if note is not None:
        left_out = [m for m in messages if m["role"] == "assistant"][: sent[note]["replies"]]
        assert sent[note + 1]["role"] == "assistant"
        assert sent[note + 1].get("raw") or not any(m.get("raw") for m in left_out)
    # the best evaluation and the last error are there in full
    found = [m for m in messages if m["role"] == "tool"]
    everything = "\n\0".join(m["content"] for m in sent)
    verdicts = [m["data"].get("evaluation", {}) for m in found]
    pairs = list(zip(found, verdicts, strict=True))
    errors = [m["content"] for m, v in pairs if m["data"].get("error") or v.get("status") == "mismatch"]
    correct = [(v["as_score"], m["content"]) for m, v in pairs if v.get("status") == "ok"]
    if errors:
        assert errors[-1] in everything
    if correct:
        assert any(text in everything for score, text in correct if score == max(correct)[0])
    # Anthropic's turns: the system apart, alternating sides, each tool_use answered in the next turn
    _, turns = anthropic.to_wire(valid_history(sent, ()))
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"] * (
        len(turns) % 2
    )
    for turn, following in pairwise(turns):
        used = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        answered = [b["tool_use_id"] for b in following["content"] if b["type"] == "tool_result"]
        assert sorted(used) == sorted(answered) or turn["role"] == "user"


@settings(max_examples=30, deadline=None)
@given(conversations(), st.integers(50, 4000))
def test_what_is_folded_stays_folded(messages: list[Message], budget: int) -> None:
    """A later request never brings back in full what an earlier one sent in short."""
    starts = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    short: set[str] = set()
    for end in [*starts[1:], len(messages)]:
        sent = fold(messages[:end], budget).messages
        now = {m["tool_call_id"]: m["content"] for m in sent if m["role"] == "tool"}
        assert all(now[call].startswith("[folded") for call in short & now.keys())
        short |= {call for call, text in now.items() if text.startswith("[folded")}


def writes(number: int, path: str, text: str, command: str = "create", raw: bool = False) -> list[Message]:
    arguments = json.dumps({"command": command, "path": path, "file_text": text})
    reply = assistant("", [{"id": f"w{number}", "name": "file_editor", "arguments": arguments}])
    if raw:
        reply["raw"] = {"anthropic": [{"type": "thinking", "thinking": "", "signature": "s"}]}
    return [
        reply,
        {"role": "tool", "tool_call_id": f"w{number}", "name": "file_editor", "content": "written"},
    ]


def test_signed_thinking_is_left_out_whole() -> None:
    messages = [*HEAD]
    for number in range(8):
        messages += writes(number, "A.py", f"# version {number}\n" * 300, raw=True)
    sent = fold(messages, 3000)
    note = sent.messages[2]
    assert note["role"] == "user" and "earlier replies" in note["content"]
    assert note["replies"] + (len(sent.messages) - 3) // 2 == 8
    assert sent.messages[3:] == messages[-len(sent.messages) + 3 :]
    assert sent.tokens <= 3000


def test_the_servers_count_corrects_the_estimate() -> None:
    messages = [*HEAD]
    for number in range(6):
        messages += writes(number, "A.py", "x" * 400)
    assert fold(messages, 1500).messages == messages
    estimated = sum(map(message_tokens, messages[:2]))
    counted = [dict(m) for m in messages]
    counted[2]["input_tokens"] = estimated * 2  # a tokenizer that needs twice as many
    assert fold(counted, 10_000).tokens == pytest.approx(2 * fold(messages, 10_000).tokens, rel=0.01)
    assert fold(counted, 1500).messages != counted
    absurd = [dict(m) for m in messages]
    absurd[2]["input_tokens"] = 1  # no count at all
    assert fold(absurd, 1500).tokens == fold(messages, 1500).tokens


@given(st.text(alphabet="ab\n", max_size=400), st.integers(0, 100))
def test_cuts_keep_to_their_budget_and_say_so(text: str, budget: int) -> None:
    for cut in (cut_end(text, budget, ""), cut_middle(text, budget)):
        assert tokens(cut) <= max(budget, tokens(text)) + 12
        assert cut == text or (" not shown" in cut and tokens(text) > budget)
    lines = text.split("\n")
    shown = fit(lines, lambda line: line, budget)
    assert sum(tokens(line) for line in lines[:shown]) <= budget
    assert shown == len(lines) or sum(tokens(line) for line in lines[: shown + 1]) > budget
