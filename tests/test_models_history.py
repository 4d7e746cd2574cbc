"""What an API returns but refuses in history is stored as received, and sent back in a form that is taken."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_agent_episode import CREATE, Episode
from test_models_stream import APIS, try_once
from test_models_wire import ASK, ask, error_body, keys, openai_body, server
from wire_server import Said, WireServer, message_of

from passagent.agent.episode import to_save
from passagent.models.scripted import ScriptedModel, calling
from passagent.models.types import Message, Usage

__all__ = ["keys", "server"]

pytestmark = pytest.mark.usefixtures("quick_retries")
NAME = r"[a-zA-Z0-9_-]{1,64}"
BEHIND: list[Message] = [{"role": "user", "content": "go on"}]


def refusals(api: str, body: dict[str, Any]) -> list[str]:
    """What a strict server of this API refuses in a request's history."""
    return {"chat": of_chat, "responses": of_responses, "anthropic": of_anthropic}[api](body)


def of_calls(calls: list[tuple[str, str, Any]], answered: list[str]) -> list[str]:
    """`calls`: (id, name, arguments) of the history, `answered`: the ids of its results."""
    ids = [id_ for id_, _, _ in calls]
    wrong = [f"name {name!r}" for _, name, _ in calls if not re.fullmatch(NAME, name)]
    wrong += [f"arguments {value!r}" for *_, value in calls if not isinstance(value, dict)]
    if not all(ids) or len(set(ids)) < len(ids) or ids != answered:
        wrong.append(f"calls {ids} are answered by {answered}")
    return wrong


def of_chat(body: dict[str, Any]) -> list[str]:
    turns = body["messages"]
    calls = [call for turn in turns for call in turn.get("tool_calls", [])]
    answered = [turn["tool_call_id"] for turn in turns if turn["role"] == "tool"]
    wrong = of_calls(
        [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls], answered
    )
    blank = [t for t in turns if not (t["content"] or "").strip() and not t.get("tool_calls")]
    sides = [turn["role"] for turn in turns if turn["role"] != "tool"]
    if any(sides[i] == sides[i + 1] == "user" for i in range(len(sides) - 1)):
        wrong.append("Conversation roles must alternate user/assistant/user/assistant/...")
    return wrong + [f"blank turn {turn}" for turn in blank]


def of_responses(body: dict[str, Any]) -> list[str]:
    items = body["input"]
    calls = [item for item in items if item.get("type") == "function_call"]
    answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    wrong = of_calls([(c["call_id"], c["name"], json.loads(c["arguments"])) for c in calls], answered)
    for place, item in enumerate(items):
        content = item.get("content")
        texts = [part["text"] for part in content] if isinstance(content, list) else [content]
        if item.get("type") == "reasoning":
            if items[place + 1].get("type") not in ("message", "function_call"):
                wrong.append("a reasoning item without its required following item")
            if not item["encrypted_content"]:
                wrong.append(f"item {item['id']} is not stored")
        elif "role" in item and not all(text and text.strip() for text in texts):
            wrong.append(f"blank item {item}")
    return wrong


def of_anthropic(body: dict[str, Any]) -> list[str]:
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    wrong = of_calls(calls, [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"])
    wrong += ["text must be non-empty" for b in blocks if b["type"] == "text" and not b["text"].strip()]
    for turn in body["messages"]:
        last = turn["content"][-1]
        if turn["role"] == "assistant" and last["type"] == "thinking":
            wrong.append("the final block cannot be thinking")
    return wrong


REPLIES = {
    "a name of other characters": Said(calls=[("c1", "write file!", "{}")]),
    "a name with a channel": Said(calls=[("c1", "file_editor<|channel|>commentary", "{}")]),
    "a name with a namespace": Said("look", [("c1", "functions.file_editor", '{"path": "x"}')]),
    "a blank name": Said(calls=[("c1", " ", "{}")]),
    "no name": Said(calls=[("c1", "", "{}")]),
    "a name that is too long": Said(calls=[("c1", "x" * 200, "{}")]),
    "equal ids": Said(calls=[("c1", "file_editor", "{}"), ("c1", "file_editor", "{}")]),
    "no ids": Said(calls=[("", "file_editor", "{}"), ("", "file_editor", "{}")]),
    "arguments that are no JSON": Said(calls=[("c1", "file_editor", '{"path": ')]),
    "a number that JSON lacks": Said(calls=[("c1", "file_editor", '{"line": NaN}')]),
    "half a character": Said("\ud83d", [("c1", "file_editor", '{"path": "\\ud83d"}')]),
    "arguments that are no object": Said(calls=[("c1", "file_editor", "[1]"), ("c2", "file_editor", "")]),
    "a blank text beside a call": Said(" \n", [("c1", "file_editor", "{}")], thought="hm", signature="s"),
    "a blank text alone": Said(" \n"),
    "nothing": Said(),
    "thinking alone": Said(thought="hm", signature="s"),
    "thinking cut off": Said(thought="hm", stop="length"),
}


@pytest.mark.parametrize("what", REPLIES)
@pytest.mark.parametrize("api", APIS)
def test_reply_that_apis_refuse_in_history_is_sent_in_a_form_they_take(
    server: WireServer, api: str, what: str
) -> None:
    server.answers = [(200, {}, message_of(api, said)) for said in (REPLIES[what], Said("done"))]
    reply = try_once(server.url, api)
    assert [call["name"] for call in reply.message["tool_calls"]] == [n for _, n, _ in REPLIES[what].calls]
    stored = to_save(reply, ASK)
    results: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": "seen"}
        for call in stored["tool_calls"]
    ]
    before = json.dumps(stored)
    try_once(server.url, api, [*ASK, stored, *(results or BEHIND)])
    assert refusals(api, server.bodies()[-1]) == []
    assert json.dumps(stored) == before


RAW: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "blank text beside thinking": (
        "anthropic",
        [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": ""},
            {"type": "tool_use", "id": "c1", "name": "functions.x", "input": "no object"},
        ],
    ),
    "blank part beside reasoning": (
        "responses",
        [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"},
            {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "text", "text": " "}]},
            {"type": "function_call", "id": "f", "call_id": "c1", "name": "x<|y|>", "arguments": "[1]"},
        ],
    ),
    "reasoning that is stored nowhere": (
        "responses",
        [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
            {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "text", "text": "a"}]},
        ],
    ),
}


@pytest.mark.parametrize("what", RAW)
def test_raw_blocks_that_apis_refuse_are_left_out(server: WireServer, what: str) -> None:
    api, raw = RAW[what]
    called = any("name" in item for item in raw)
    call = {"id": "c1", "name": "functions.x", "arguments": "[1]"}
    stored = {"role": "assistant", "content": "", "tool_calls": [call], "raw": {api: raw}}
    stored |= {} if called else {"content": "so: ", "tool_calls": []}
    server.answers = [(200, {}, message_of(api, Said("done")))]
    result = {"role": "tool", "tool_call_id": "c1", "name": "x", "content": "seen"}
    try_once(server.url, api, [*ASK, stored, *([result] if called else BEHIND)])
    assert refusals(api, server.bodies()[-1]) == []


def test_decorated_tool_name_calls_the_tool_and_a_wild_one_is_answered(tmp_path: Path) -> None:
    names = ["functions.file_editor", "file_editor<|channel|>commentary", " file_editor", "write file!", ""]
    calls = [calling((name, CREATE[1] | {"path": f"A{i}.py"})) for i, name in enumerate(names)]
    episode = Episode(tmp_path, ScriptedModel([*calls, "done", "done"]))
    assert episode.run().reason == "done"
    results = episode.results()
    assert [text.startswith("error: there is no tool") for text in results] == [False] * 3 + [True] * 2
    assert sorted(episode.workspace.files()) == ["A0.py", "A1.py", "A2.py"]
    stored = [c["name"] for m in episode.messages if m["role"] == "assistant" for c in m["tool_calls"]]
    assert stored == names


@pytest.mark.parametrize("api", APIS)
def test_usage_as_float_counts(server: WireServer, api: str) -> None:
    body = message_of(api, Said("ok", input_tokens=1000, output_tokens=50))
    usage = json.loads(json.dumps(body["usage"]), parse_int=float)
    server.answers = [(200, {}, body | {"usage": usage})]
    assert try_once(server.url, api).usage == Usage(1000, 50)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "System role not supported"),
        (500, "Jinja Exception: System role not supported"),
        (400, "Unsupported value: 'messages[0].role' does not support 'system' with this model."),
        (400, "Only user and assistant roles are supported!"),
    ],
)
def test_refused_system_role_becomes_the_first_user_turn(
    server: WireServer, status: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers = [(status, {}, error_body(message)), (200, {}, openai_body({"content": "ok"}))]
    assert try_once(server.url, "chat").message["content"] == "ok"
    assert server.bodies()[1]["messages"] == [{"role": "user", "content": "be exact\n\ngo"}]
    assert caplog.text.count("refuses 'system'") == 1


@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ('<tool_call>\n{"name": "file_editor", "arguments": {}}\n</tool_call>', True),
        ('```json\n{"name": "file_editor", "arguments": {"path": "x"}}\n```', True),
        ("<function=file_editor><parameter=path>x</parameter></function>", True),
        ("commentary to=functions.file_editor json {}", True),
        ("I used the file_editor twice; the function file_editor is enough, {'name': 'x'}.", False),
    ],
)
def test_tool_call_that_comes_as_text_is_warned_of_once(
    server: WireServer, caplog: pytest.LogCaptureFixture, text: str, is_call: bool
) -> None:
    server.answers = [(200, {}, openai_body({"content": text}))] * 2
    ask(server, "openai", times=2)
    for switch in ("--enable-auto-tool-choice --tool-call-parser", "SGLang: --tool-call-parser", "--jinja"):
        assert caplog.text.count(switch) == is_call
