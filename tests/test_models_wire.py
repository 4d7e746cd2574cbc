"""The real SDK clients against a server on 127.0.0.1 that speaks both providers' formats, and misbehaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from wire_server import Said, WireServer, message_of

from passagent.config import ModelConfig
from passagent.errors import InfrastructureError, PassagentError, UsageError
from passagent.models import open_model
from passagent.models.retry import ContextOverflow, retry_after
from passagent.models.types import Message, Reply, ToolSpec, Usage

pytestmark = pytest.mark.usefixtures("quick_retries")
KEY = "sk-planted-0123456789abcdef"
TOOL = ToolSpec(
    "file_editor", "edits", {"type": "object", "properties": {"path": {"type": "string"}}, "required": []}
)
ASK: list[Message] = [{"role": "system", "content": "be exact"}, {"role": "user", "content": "go"}]
PROVIDERS = ["openai", "anthropic"]


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer() as running:
        yield running


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def ask(
    server: WireServer, provider: str, messages: list[Message] | None = None, times: int = 1, **config: Any
) -> Reply:
    """Ask a fresh model `times` times; the last reply."""

    async def go() -> Reply:
        base = server.url + ("/v1" if provider == "openai" else "")
        settings = {"name": f"{provider}/m-1", "base_url": base, "max_retries": 2, "stream": False, **config}
        model = open_model(ModelConfig.model_validate(settings))
        try:
            for _ in range(times):
                reply = await model.complete(messages or ASK, [TOOL])
            return reply
        finally:
            await model.close()

    return asyncio.run(go())


def openai_body(message: dict[str, Any], finish: str | None = "stop", **usage: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, **usage}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**answer, "choices": [choice], "usage": counts}


def anthropic_body(
    content: list[dict[str, Any]], stop: str | None = "end_turn", **usage: Any
) -> dict[str, Any]:
    counts = {"input_tokens": 100, "output_tokens": 20, **usage}
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": content,
        "stop_reason": stop, "stop_sequence": None, "usage": counts,
    }  # fmt: skip


def text_body(provider: str, text: str) -> dict[str, Any]:
    return message_of("chat" if provider == "openai" else provider, Said(text))


def error_body(message: str, **extra: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "some_error", "message": message, **extra}}


def test_openai_parallel_tool_calls_with_broken_json(server: WireServer) -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "file_editor", "arguments": '{"path": "x.py"}'}},
        {"id": "b", "type": "function", "function": {"name": "file_editor", "arguments": '{"path": "x.py'}},
    ]
    details = {
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    server.answers = [(200, {}, openai_body({"content": None, "tool_calls": calls}, "tool_calls", **details))]
    reply = ask(server, "openai", temperature=0.5)
    assert reply.usage == Usage(100, 20, 64, 7)
    assert reply.stop_reason == "tools"
    assert [c["arguments"] for c in reply.message["tool_calls"]] == ['{"path": "x.py"}', '{"path": "x.py']
    sent = server.bodies()[0]
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("m-1", 0.5, 16000)
    assert sent["messages"][0] == {"role": "system", "content": "be exact"}
    assert sent["tools"][0]["function"]["parameters"] == TOOL.parameters

    results = [
        {"role": "tool", "tool_call_id": name, "name": "file_editor", "content": f"seen {name}"}
        for name in "ab"
    ]
    server.answers = [(200, {}, text_body("openai", "done"))]
    assert ask(server, "openai", [*ASK, reply.message, *results]).stop_reason == "end"
    turns = server.bodies()[1]["messages"][2:]
    assert [t["role"] for t in turns] == ["assistant", "tool", "tool"]
    assert json.loads(turns[0]["tool_calls"][1]["function"]["arguments"]) == {
        "invalid_json": '{"path": "x.py'
    }
    assert turns[2] == {"role": "tool", "tool_call_id": "b", "content": "seen b"}


def test_anthropic_thinking_goes_back_verbatim_and_the_prefix_is_cached(server: WireServer) -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "text", "text": "look"},
        {"type": "tool_use", "id": "t1", "name": "file_editor", "input": {"path": "x.py"}},
        {"type": "tool_use", "id": "t2", "name": "file_editor", "input": {}},
    ]
    usage = {"cache_read_input_tokens": 50, "cache_creation_input_tokens": 25}
    server.answers = [(200, {}, anthropic_body(content, "tool_use", **usage))]
    reply = ask(server, "anthropic", temperature=0.0)
    assert reply.usage == Usage(175, 20, 50, 0, 25)
    assert reply.stop_reason == "tools"
    assert reply.message["content"] == "look"
    assert reply.message["tool_calls"][0] == {
        "id": "t1", "name": "file_editor", "arguments": '{"path": "x.py"}'
    }  # fmt: skip
    first = server.bodies()[0]
    cached = {"type": "ephemeral"}
    assert first["system"] == [{"type": "text", "text": "be exact", "cache_control": cached}]
    assert first["tools"][-1]["cache_control"] == cached
    assert first["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": cached}]}
    ]
    assert first["temperature"] == 0.0

    results = [
        {"role": "tool", "tool_call_id": name, "name": "file_editor", "content": "seen"}
        for name in ("t1", "t2")
    ]
    server.answers = [(200, {}, text_body("anthropic", "done"))]
    ask(server, "anthropic", [*ASK, reply.message, *results])
    turns = server.bodies()[1]["messages"]
    assert [t["role"] for t in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == content
    assert [b["tool_use_id"] for b in turns[2]["content"]] == ["t1", "t2"]
    assert "cache_control" in turns[2]["content"][-1]
    assert "cache_control" not in turns[0]["content"][0]


def test_reasoning_of_compatible_servers_goes_back(server: WireServer) -> None:
    server.answers = [(200, {}, openai_body({"content": "hi", "reasoning_content": "because"}))] * 2
    reply = ask(server, "openai")
    ask(server, "openai", [*ASK, reply.message, {"role": "user", "content": "more"}])
    assert server.bodies()[1]["messages"][2] == {
        "role": "assistant", "content": "hi", "reasoning_content": "because"
    }  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
def test_rate_limit_waits_as_long_as_the_server_says(
    server: WireServer, provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers = [
        (429, {"retry-after": "0.2"}, error_body("slow down")),
        (200, {}, text_body(provider, "ok")),
    ]
    assert ask(server, provider).message["content"] == "ok"
    assert "slow down; try 2 of 3 in 0.2 s" in caplog.text


FAULTS: dict[str, Any] = {
    "broken JSON": b'{"id": ',
    "not UTF-8": b'{"id": "\xff\xfe"}',
    "odd fields": {"choices": [7], "content": [1], "stop_reason": 3, "usage": 4},
}
"""Bodies of replies; test_models_stream.py has what servers and networks do."""


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_retried(server: WireServer, provider: str, fault: str) -> None:
    server.answers = [(200, {}, FAULTS[fault]), (200, {}, text_body(provider, "ok"))]
    assert ask(server, provider).message["content"] == "ok"
    assert len(server.requests) == 2


@pytest.mark.parametrize("provider", PROVIDERS)
def test_retries_are_bounded_and_the_error_is_one_line(server: WireServer, provider: str) -> None:
    server.answers = [(503, {"retry-after": "0"}, error_body("busy\nwith " + KEY))] * 3
    with pytest.raises(InfrastructureError, match="503") as caught:
        ask(server, provider)
    assert len(server.requests) == 3
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("status", "kind"), [(400, PassagentError), (401, UsageError), (403, UsageError), (404, UsageError)]
)
def test_refusals_are_told_at_once(
    server: WireServer, provider: str, status: int, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    server.answers = [(status, {}, error_body(f"no, not with\n{KEY}"))]
    with pytest.raises(kind) as caught:
        ask(server, provider)
    assert len(server.requests) == 1
    told = str(caught.value)
    assert f"{provider}/m-1" in told
    assert str(status) in told
    assert "\n" not in told
    assert KEY not in told + caplog.text
    if status == 401:
        assert f"{provider.upper()}_API_KEY" in told
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_reply_never_carries_the_key_or_a_lone_surrogate(server: WireServer, provider: str) -> None:
    body = json.dumps(text_body(provider, f"header said {KEY} and \ud83d.")).encode()
    server.answers = [(200, {}, body), (200, {}, text_body(provider, "ok"))]
    reply = ask(server, provider)
    text = reply.message["content"]
    assert KEY not in text and text.startswith("header said <") and text.endswith("_API_KEY> and \ufffd.")
    ask(server, provider, [*ASK, reply.message, {"role": "user", "content": "odd \udc00 text"}])
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("provider", "message", "name", "settings"),
    [
        ("openai", "'temperature' does not support 0 with this model", "temperature", {"temperature": 0.0}),
        ("anthropic", "`temperature` is not permitted for this model", "temperature", {"temperature": 0.0}),
        ("openai", "'max_tokens' is not supported. Use 'max_completion_tokens' instead.", "max_tokens", {}),
        ("openai", "`stream` is not supported with tools", "stream", {"stream": True}),
    ],
)
def test_refused_parameter_is_dropped_and_remembered(
    server: WireServer,
    caplog: pytest.LogCaptureFixture,
    provider: str,
    message: str,
    name: str,
    settings: Any,
) -> None:
    server.answers = [(400, {}, error_body(message)), *[(200, {}, text_body(provider, "ok"))] * 2]
    ask(server, provider, times=2, **settings)
    assert [name in body for body in server.bodies()] == [True, False, False]
    assert caplog.text.count(f"refuses '{name}'") == 1
    if name == "max_tokens":
        assert server.bodies()[-1]["max_completion_tokens"] == 16000


def test_too_large_a_limit_is_told_and_not_dropped(server: WireServer) -> None:
    server.answers = [
        (400, {}, error_body("max_tokens: 16000 > 8192, the maximum allowed number of output tokens"))
    ]
    with pytest.raises(PassagentError, match="8192"):
        ask(server, "openai")
    assert len(server.requests) == 1


@pytest.mark.parametrize("provider", PROVIDERS)
def test_overflow_is_told_apart(server: WireServer, provider: str) -> None:
    said = "This model's maximum context length is 8192 tokens, you asked for 9000 and max_tokens 16000"
    server.answers = [(400, {}, error_body(said))]
    with pytest.raises(ContextOverflow):
        ask(server, provider)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_server_of_ones_own_needs_no_key(
    server: WireServer, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"{provider.upper()}_API_KEY")
    server.answers = [(200, {}, text_body(provider, "ok"))]
    assert ask(server, provider).message["content"] == "ok"
    with pytest.raises(UsageError, match=f"{provider.upper()}_API_KEY is not set"):
        open_model(ModelConfig(name=f"{provider}/m-1"))


def test_retry_after_forms() -> None:
    assert retry_after({"retry-after": "2.5"}) == 2.5
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None
