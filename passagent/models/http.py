"""A model behind an HTTP API: one request through the provider's SDK, and a whole reply or a named failure.

The SDK sends and authenticates; the body is read here, raw, because an SDK takes a truncated stream for a
whole one. What makes a reply whole is its stop reason and its usage. Trying again is retry.Retrying's work.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from passagent.config import ModelConfig
from passagent.errors import UsageError
from passagent.models.retry import Limiter, NoApi, Retrying, Transient, one_line
from passagent.models.types import Message, Reply, ToolSpec, Usage
from passagent.models.wire import (
    Refused,
    Stream,
    StreamedError,
    Wire,
    api_key,
    clean,
    error_of,
    has_call_as_text,
    hidden_values,
    judge,
    judge_streamed,
    log,
)

TOKENS_A_BYTE = 0.5
"""An upper bound for a prompt: source code has 0.25 to 0.35 tokens a byte."""
CALL_AS_TEXT = (
    "a tool call came as text: the server does not read the model's calls; start it with a parser "
    "(vLLM: --enable-auto-tool-choice --tool-call-parser NAME; SGLang: --tool-call-parser NAME; "
    "llama.cpp: --jinja; Ollama: a model that `ollama show` lists with tools)"
)
_LINE_END = re.compile(rb"\r\n|\n|\r")
_WHY: dict[type[BaseException], str] = {
    ConnectionRefusedError: "connection refused",
    socket.gaierror: "unknown host",
}
_UNREADABLE: tuple[type[Exception], ...] = (
    httpx2.HTTPError, httpx2.StreamError, OSError,
    ValueError, TypeError, LookupError, AttributeError, RecursionError,
)  # fmt: skip
"""Errors of reading a broken reply: of transport, bytes, JSON, or fields of another kind."""


class HttpModel:
    """One model behind one API. `complete` is one try: it raises Transient where another may help."""

    def __init__(self, config: ModelConfig, wire: Wire, sdk: Any, client: Any, prefix: str) -> None:
        """`sdk` is the SDK's module, `client` its class of asynchronous clients.

        Key and address stand in variables that begin with `prefix`. Raises UsageError without a key.
        """
        self._key_variable = f"{prefix}_API_KEY"
        key = api_key(self._key_variable, config.name, config.base_url, f"{prefix}_BASE_URL")
        self._client = client(api_key=key, base_url=config.base_url, timeout=config.timeout_s, max_retries=0)
        self.name, self.config, self.wire, self._sdk = config.name, config, wire, sdk
        self.endpoint = re.sub("//[^/]*@", "//", str(self._client.base_url)).rstrip(
            "/"
        )  # it is shown: no password
        self.is_streamed: bool | None = None
        """True if the last reply came as a stream."""
        self.reports_cache = False
        """True once a reply has reported the prompt cache."""
        self._hidden = hidden_values(key, config.base_url)
        self._refused = Refused(config.name)
        self._ratio = TOKENS_A_BYTE
        self._reports_usage: bool | None = None
        self._has_warned = False
        """True once a person was warned of calls as text."""

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """Implement Model.complete; raises Transient, too."""
        while True:
            request = self.wire.request(self.config, messages, tools, self._refused.parameters)
            try:
                reply = await self._once(request)
                is_silent = self._has_warned or reply.message["tool_calls"]
                if not is_silent and has_call_as_text(reply.message["content"], tools):
                    self._has_warned = True
                    log.warning("%s: %s", self.name, CALL_AS_TEXT)
                return reply
            except self._sdk.APIError as error:
                if not self._refused.drops(error, self._optional(request), self._hidden):
                    raise self._judged(error) from None

    async def close(self) -> None:
        """Implement Model.close."""
        await self._client.close()

    def bound(self, messages: list[Message], tools: list[ToolSpec]) -> tuple[int, int]:
        """`(input, output)` tokens that a call may take at most."""
        return int(self._size(messages, tools) * self._ratio) + 1, self.config.max_output_tokens

    def limit_silence(self, seconds: float) -> None:
        """Give up on a server that sends nothing for so long."""
        self._client = self._client.with_options(timeout=seconds)

    def _judged(self, error: Exception) -> Exception:
        """Return what an SDK's APIError means, with the address."""
        cause = error.__cause__
        if isinstance(cause, httpx2.ConnectError):
            root: BaseException = cause
            while inner := root.__cause__ or root.__context__:
                root = inner
            text = f"it cannot be reached: {_WHY.get(type(root)) or one_line(str(cause))}"
            is_first = self.is_streamed is None
            return UsageError(f"{self.name} at {self.endpoint}: {text}") if is_first else NoApi(text)
        if isinstance(cause, httpx2.RemoteProtocolError):
            return Transient(one_line(f"no complete answer in HTTP: {cause}"))
        if isinstance(cause, httpx2.TimeoutException):
            return Transient("it does not answer: it may hang, or be loading its model")
        return judge(error, f"{self.name} at {self.endpoint}", self._key_variable, self._hidden)

    async def _once(self, request: dict[str, Any]) -> Reply:
        stream, data = self.wire.stream(), None
        try:
            async with (
                asyncio.timeout(self.config.timeout_s),
                self.wire.send(self._client, request) as response,
            ):
                kind = response.headers.get("content-type", "")
                self.is_streamed = "text/event-stream" in kind
                if "text/html" in kind:
                    raise NoApi(
                        "it answers with a page of HTML, not with a reply: is it the address of an API?"
                    )
                if self.is_streamed:
                    await _collect(stream, response.iter_bytes())
                    data = stream.whole()
                else:
                    body = await response.read()
                    data = json.loads(body.decode("utf-8", "replace"))
                    body.decode("utf-8")
            return self._reply(data, request, may_lack_usage=not self.is_streamed or stream.is_done)
        except Transient as error:
            text = clean(str(error), self._hidden)
            raise type(error)(text, usage=self._said(stream, data)) from None
        except StreamedError as error:
            usage = self._said(stream, data)
            raise judge_streamed(error, self.name, self._key_variable, self._hidden, usage) from None
        except _UNREADABLE as error:
            late = isinstance(error, TimeoutError)
            why = f"within {self.config.timeout_s:g} s" if late else f"that can be read: {error}"
            text = clean(one_line(f"no complete reply {why}"), self._hidden)
            raise Transient(text, usage=self._said(stream, data)) from None

    def _reply(self, data: Any, request: dict[str, Any], may_lack_usage: bool) -> Reply:
        """The reply, whole. Raises Transient or StreamedError."""
        error = error_of(data) if isinstance(data, dict) and data.get("error") else None
        if error:
            raise StreamedError(error[0], error[1])
        usage = self.wire.usage(data)
        reply = self.wire.parse(data, usage or Usage())
        if usage:
            self._reports_usage = True
            self.reports_cache |= "cache" in json.dumps(data.get("usage"))
            size = len(json.dumps(request, ensure_ascii=False).encode("utf-8", "replace"))
            self._ratio = max(self._ratio, usage.input_tokens / size)
        elif self._reports_usage or not (may_lack_usage and self.config.is_compatible):
            raise Transient("the reply was cut off: it has no usage")
        elif self._reports_usage is None:  # a fault, or a server that never tells: asked once more
            self._reports_usage = False
            log.warning("%s: no token usage in a reply; without it tokens are estimated", self.name)
            raise Transient("the reply has no usage")
        else:
            usage = _estimate(reply, request)
        return Reply(clean(reply.message, self._hidden), usage, clean(reply.stop_reason, self._hidden))

    def _said(self, stream: Stream, data: Any) -> Usage | None:
        """Return what the server counted, as far as it came to say."""
        try:
            return self.wire.usage(data if data is not None else stream.whole())
        except _UNREADABLE:
            return None

    def _optional(self, request: dict[str, Any]) -> list[str]:
        """The parameters of the request that can be left out."""
        text = json.dumps(request)
        return [name for name in self.wire.OPTIONAL if f'"{name}"' in text]

    def _size(self, messages: list[Message], tools: list[ToolSpec]) -> int:
        request = self.wire.request(self.config, messages, tools, self._refused.parameters)
        return len(json.dumps(request, ensure_ascii=False).encode("utf-8", "replace"))


def _estimate(reply: Reply, request: dict[str, Any]) -> Usage:
    """Return what a server that reports no usage may have counted: four characters a token."""
    out = len(json.dumps(reply.message, ensure_ascii=False)) // 4
    return Usage(len(json.dumps(request, ensure_ascii=False)) // 4, out, is_estimate=True)


async def _collect(stream: Stream, chunks: AsyncIterator[bytes]) -> None:
    """Read a stream to its end, or to its terminal event. Raises StreamedError, and what reading raises.

    Behind an event that cannot be read the usage may still come: the first such error is raised at the end.
    """
    fault: Exception | None = None
    async for event, data in events(chunks):
        try:
            if data.strip() == b"[DONE]":
                stream.is_done = True
            else:
                stream.take(event, json.loads(data.decode("utf-8", "replace")))
                data.decode("utf-8")
        except _UNREADABLE as error:
            fault = fault or error
        if stream.is_done:
            break
    if fault:
        raise fault


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield `(event, data)` of each server-sent event of the body; `event` is empty where none is named.

    The data are bytes: the SDKs' and httpx2's readers put U+FFFD for what is no UTF-8, and a damaged reply
    would pass for a whole one. Raises what `chunks` raises.
    """
    event, data, rest = "", list[bytes](), b""
    async for chunk in _and_the_end(chunks):
        rest += chunk
        if chunk.endswith(b"\r"):  # the first half of an end of line, maybe
            continue
        *lines, rest = _LINE_END.split(rest)
        for line in lines:
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                event = value.decode("utf-8", "replace")
            elif field == b"data":
                data.append(value)
            elif not line and data:
                yield event, b"\n".join(data)
                event, data = "", []


async def _and_the_end(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks and an empty line: servers forget the one after the last event."""
    async for chunk in chunks:
        yield chunk
    yield b"\n\n"


def open_openai(config: ModelConfig) -> Retrying:
    """Open a model behind Chat Completions or Responses. Raises UsageError if the key is missing."""
    import openai

    from passagent.models.chat import Chat
    from passagent.models.responses import Responses

    api = config.api or ("chat" if config.is_compatible else "responses")
    wire: Wire = Chat() if api == "chat" else Responses()
    return _retrying(HttpModel(config, wire, openai, openai.AsyncOpenAI, "OPENAI"))


def open_anthropic(config: ModelConfig) -> Retrying:
    """Open a model behind the Messages API. Raises UsageError if the key is missing."""
    import anthropic

    from passagent.models.anthropic import Messages

    return _retrying(HttpModel(config, Messages(), anthropic, anthropic.AsyncAnthropic, "ANTHROPIC"))


def _retrying(model: HttpModel) -> Retrying:
    return Retrying(model, Limiter(), model.config.max_retries)
