"""Streams by the real SDKs: whole ones say what a whole reply says, broken ones are never taken for whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from test_models_wire import ASK, KEY, TOOL, keys, server
from wire_server import FAULTS, PAID, Said, WireServer, event, message_of, stream_of

from passagent.config import ModelConfig
from passagent.errors import UsageError
from passagent.models import open_model
from passagent.models.retry import ContextOverflow, Retrying, Transient
from passagent.models.types import Message, Reply, Usage

__all__ = ["keys", "server"]

pytestmark = pytest.mark.usefixtures("quick_retries")
APIS = {"chat": "openai", "responses": "openai", "anthropic": "anthropic"}
SSE = {"content-type": "text/event-stream; charset=utf-8"}
SAID = Said(
    "look:", [("a", "file_editor", '{"path": "x.py"}'), ("b", "file_editor", '{"path": "日本"}')], 100, 20, 64
)


def try_once(url: str, api: str, messages: list[Message] | None = None, **config: Any) -> Reply:
    """One request, without retries."""

    async def go() -> Reply:
        base = url + ("" if api == "anthropic" else "/v1")
        choice = None if api == "anthropic" else api
        settings = {"name": f"{APIS[api]}/m-1", "base_url": base, "api": choice, "stream": False, **config}
        model = open_model(ModelConfig.model_validate(settings))
        assert isinstance(model, Retrying)
        try:
            return await model.inner.complete(messages or ASK, [TOOL])
        finally:
            await model.close()

    return asyncio.run(go())


@pytest.mark.parametrize("api", APIS)
def test_a_stream_says_what_a_whole_reply_says(api: str) -> None:
    with WireServer(lambda body: SAID) as there:
        streamed, whole = (try_once(there.url, api, stream=flag) for flag in (True, False))
        assert [body.get("stream") for _, _, body in there.requests] == [True, None]
    assert streamed == whole
    assert streamed.message["content"] == "look:"
    assert [(c["id"], json.loads(c["arguments"])) for c in streamed.message["tool_calls"]] == [
        ("a", {"path": "x.py"}),
        ("b", {"path": "日本"}),
    ]
    assert (streamed.usage, streamed.stop_reason) == (Usage(100, 20, 64), "tools")


@pytest.mark.parametrize("api", APIS)
def test_every_way_to_cut_a_stream_is_noticed(server: WireServer, api: str) -> None:
    """Nothing but a reply whose stop reason and usage have arrived is whole, wherever the stream ends."""
    pieces = list(stream_of(api, SAID))
    enough = max(i for i, (_, usage) in enumerate(pieces) if usage) + 1
    for kept in range(len(pieces) + 1):
        server.answers = [(200, SSE, b"".join(data for data, _ in pieces[:kept]))]
        if kept >= enough:
            assert try_once(server.url, api, stream=True).usage == Usage(100, 20, 64)
            continue
        with pytest.raises(Transient) as caught:
            try_once(server.url, api, stream=True)
        said = [usage for _, usage in pieces[:kept] if usage]
        usage = caught.value.usage
        assert (usage.input_tokens, usage.output_tokens) == said[-1] if usage else not said


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("fault", "stream"), [*((fault, True) for fault in PAID), *((fault, False) for fault in FAULTS)]
)
def test_broken_replies_are_tried_again_and_counted(api: str, fault: str, stream: bool) -> None:
    with WireServer(lambda body: SAID) as there:
        faults = iter([fault, None])
        there.fault = lambda: next(faults)  # type: ignore[method-assign]
        with pytest.raises(Transient) as caught:
            try_once(there.url, api, stream=stream)
        assert try_once(there.url, api, stream=stream).stop_reason == "tools"
        billed = there.ledger[0]
    usage = caught.value.usage or Usage()
    assert (usage.input_tokens, usage.output_tokens) == (billed.input_tokens, billed.output_tokens)
    assert KEY not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "stream", "streams"),
    [(16000, None, True), (1000, None, False), (1000, True, True), (16000, False, False)],
)
def test_streaming_is_for_long_replies(limit: int, stream: bool | None, streams: bool) -> None:
    assert ModelConfig(max_output_tokens=limit, stream=stream).streams == streams


def failing(api: str, code: str, message: str) -> bytes:
    """A stream that ends in the API's own kind of error."""
    pieces = [data for data, _ in stream_of(api, SAID)][:2]
    inner = {"message": message, "code": code}
    response = {"status": "failed", "output": [], "error": inner, "usage": None}
    name, data = {
        "chat": ("", {"error": inner}),
        "anthropic": ("error", {"type": "error", "error": {"type": code, "message": message}}),
        "responses": ("response.failed", {"type": "response.failed", "response": response}),
    }[api]
    return b"".join([*pieces, event(api, name, data)])


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("server_error", f"broke with {KEY}", Transient),
        ("overloaded_error", "busy", Transient),
        ("rate_limit_exceeded", "slow down", Transient),
        (
            "context_length_exceeded",
            "Your input exceeds the context window of this model",
            ContextOverflow,
        ),
        ("insufficient_quota", "pay first", UsageError),
    ],
)
def test_errors_inside_a_stream(
    server: WireServer, api: str, code: str, message: str, kind: type[Exception]
) -> None:
    server.answers = [(200, SSE, failing(api, code, message))]
    with pytest.raises(kind) as caught:
        try_once(server.url, api, stream=True)
    assert KEY not in str(caught.value)


def test_a_bare_error_event_of_responses_is_an_error(server: WireServer) -> None:
    """The SDK raises nothing there."""
    data = {"type": "error", "code": "server_error", "message": "it broke", "sequence_number": 3}
    server.answers = [(200, SSE, event("responses", "error", data))]
    with pytest.raises(Transient, match="it broke"):
        try_once(server.url, "responses", stream=True)


def test_a_reply_that_never_ends_is_given_up() -> None:
    with (
        WireServer(lambda body: SAID, seconds=10.0) as there,
        pytest.raises(Transient, match=r"within 0\.2 s"),
    ):
        try_once(there.url, "chat", timeout_s=0.2)


def test_reasoning_items_go_back_as_they_came(server: WireServer) -> None:
    server.answers = [(200, {}, message_of("responses", SAID))] * 2
    reply = try_once(server.url, "responses")
    results = [
        {"role": "tool", "tool_call_id": name, "name": "file_editor", "content": f"seen {name}"}
        for name in "ab"
    ]
    try_once(server.url, "responses", [*ASK, reply.message, *results])
    first, second = server.bodies()
    assert first["instructions"] == "be exact"
    assert first["input"] == [{"role": "user", "content": "go"}]
    assert (first["store"], first["include"]) == (False, ["reasoning.encrypted_content"])
    assert second["input"][1:5] == message_of("responses", SAID)["output"]
    assert second["input"][5] == {"type": "function_call_output", "call_id": "a", "output": "seen a"}


def test_a_refusal_is_one_in_every_api(server: WireServer) -> None:
    chat = message_of("chat", Said("no"))
    chat["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": "no"}
    response = message_of("responses", Said("no"))
    response["output"] = [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]
    message = {**message_of("anthropic", Said("no")), "stop_reason": "refusal"}
    for api, body in (("chat", chat), ("responses", response), ("anthropic", message)):
        server.answers = [(200, {}, body)]
        reply = try_once(server.url, api)
        assert (reply.stop_reason, reply.message["content"]) == ("refusal", "no")


def test_incomplete_responses(server: WireServer) -> None:
    body = message_of("responses", SAID)
    body |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    body["output"] = [*body["output"][:1]]  # cut off while it reasoned
    server.answers = [(200, {}, body), (200, {}, message_of("responses", SAID))]
    reply = try_once(server.url, "responses")
    assert reply.stop_reason == "length"
    try_once(
        server.url,
        "responses",
        [*ASK, {**reply.message, "content": "x"}, {"role": "user", "content": "go on"}],
    )
    assert all(item.get("type") != "reasoning" for item in server.bodies()[1]["input"])


def test_openai_itself_is_asked_through_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    for base_url, api, path in ((None, None, "responses"), (None, "chat", "chat/completions")):
        with WireServer() as there:
            config = ModelConfig(name="openai/m-1", base_url=base_url, api=api)
            model = open_model(config)
            assert isinstance(model, Retrying)
            model.inner._client.base_url = f"{there.url}/v1/"  # type: ignore[attr-defined]
            asyncio.run(model.complete(ASK, [TOOL]))
            assert there.requests[0][0] == f"/v1/{path}"
