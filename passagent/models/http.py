"""A model behind an HTTP API: one request through the provider's SDK, and a whole reply or a named failure.

The SDK sends, authenticates and puts a stream together. It takes a truncated stream for a whole one, so what
makes a reply whole is checked here: its stop reason and its usage. Trying again is retry.Retrying's work.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx2

from passagent.config import ModelConfig
from passagent.errors import UsageError
from passagent.models.retry import Retrying, Transient, is_overflow, judge_status, one_line
from passagent.models.types import Message, Reply, ToolSpec, Usage
from passagent.models.wire import PageError, Wire, clean, server_error
from passagent.system.redaction import redact, redacted

log = logging.getLogger("passagent.models")

TOKENS_A_BYTE = 0.5
"""An upper bound for a prompt: source code has 0.25 to 0.35 tokens a byte."""
PLACEHOLDER_KEY = "no-key-needed"
CALL_AS_TEXT = (
    "a tool call came as text: the server does not read the model's calls; start it with a parser "
    "(vLLM: --enable-auto-tool-choice --tool-call-parser NAME; SGLang: --tool-call-parser NAME; "
    "llama.cpp: --jinja; Ollama: a model that `ollama show` lists with tools)"
)
_UNKNOWN = re.compile(
    r"unsupported|not supported|unrecognized|unknown|unexpected|not permitted|extra|instead", re.I
)
_NO_SYSTEM = re.compile(
    r"\bsystem\b.{0,40}(not |un)support|(not |un)support.{0,30}\bsystem\b|only user and assistant roles", re.I
)
"""How OpenAI and the chat templates of models refuse the role `system`."""
_UNREADABLE: tuple[type[Exception], ...] = (
    httpx2.HTTPError, httpx2.StreamError, OSError, AssertionError,
    ValueError, TypeError, LookupError, AttributeError, RuntimeError,
)  # fmt: skip
"""Errors of reading a broken reply: of transport, JSON, fields of another kind, or the SDK's accumulation."""


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
        # it is shown: no password
        self.endpoint = re.sub("//[^/]*@", "//", str(self._client.base_url)).rstrip("/")
        self.is_streamed: bool | None = None
        """True if the last reply came as a stream; None: no reply came yet."""
        self.reports_cache = False
        """True once a reply has reported the prompt cache."""
        self._refused = set[str]()
        """Optional parameters that this model refuses."""
        self._has_warned = False
        """True once a person was warned of calls as text."""

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """Implement Model.complete; raises Transient, too."""
        while True:
            request, answer = self.wire.request(self.config, messages, tools, self._refused), None
            try:
                async with asyncio.timeout(self.config.timeout_s):
                    async for answer in self.wire.answers(self._client, request):  # noqa: B007
                        pass
                reply = self._reply(answer, request)
            except (self._sdk.APIError, Transient, PageError, *_UNREADABLE) as error:
                if not self._drops(error, request):
                    # from None: the SDK's exception holds the request, headers and all
                    raise self._failure(error, self._usage(answer)) from None
                continue
            text = "" if self._has_warned or reply.message["tool_calls"] else reply.message["content"]
            if has_call_as_text(text, tools):
                self._has_warned = True
                log.warning("%s: %s", self.name, CALL_AS_TEXT)
            return reply

    async def close(self) -> None:
        """Implement Model.close."""
        await self._client.close()

    def bound(self, messages: list[Message], tools: list[ToolSpec]) -> tuple[int, int]:
        """`(input, output)` tokens that a call may take at most."""
        request = self.wire.request(self.config, messages, tools, self._refused)
        size = len(json.dumps(request, ensure_ascii=False).encode())
        return int(size * TOKENS_A_BYTE) + 1, self.config.max_output_tokens

    def limit_silence(self, seconds: float) -> None:
        """Give up on a server that sends nothing for so long."""
        self._client = self._client.with_options(timeout=seconds)

    def _reply(self, answer: Any, request: dict[str, Any]) -> Reply:
        """The reply, whole. Raises Transient, PageError, or an error of _UNREADABLE."""
        if isinstance(answer, str) and "<html" in answer.lower():
            raise PageError
        data = answer.to_dict(warnings=False)
        if data.get("error"):
            raise self._sdk.APIError("an error", None, body=data)
        usage = self.wire.usage(data)
        reply = self.wire.parse(data, usage or Usage())
        if usage is None:
            raise Transient("the reply has no usage: it was cut off, or the server counts no tokens")
        self.is_streamed = bool(request.get("stream"))
        self.reports_cache |= "cache" in json.dumps(data["usage"])
        return Reply(redacted(clean(reply.message)), usage, reply.stop_reason)

    def _usage(self, answer: Any) -> Usage | None:
        """Return what the server counted of a broken reply, as far as it came to say."""
        try:
            return self.wire.usage(answer.to_dict(warnings=False))
        except _UNREADABLE:
            return None

    def _drops(self, error: Exception, request: dict[str, Any]) -> bool:
        """Drop the optional parameter of the request that `error` refuses, if any, from now on.

        A limit of tokens is dropped only where its name is unknown, not where its value is too large.
        """
        message, code = server_error(getattr(error, "body", None))
        is_system, status = _NO_SYSTEM.search(message) is not None, getattr(error, "status_code", 0)
        if status not in (400, 500 if is_system else 400) or is_overflow(400, message, code):
            return False
        for name in self.wire.OPTIONAL:
            if is_system != (name == "system"):
                continue
            words = "encrypted content|include" if name == "include" else re.escape(name)
            is_named = re.search(rf"(?<!\w)({words})\b", message, re.I) or getattr(error, "param", "") == name
            is_sent = name in request or name in request.get("extra_body", {})
            is_sent |= is_system and request["messages"][0]["role"] == "system"
            if (
                is_sent
                and (is_named or is_system)
                and (not name.startswith("max_") or _UNKNOWN.search(message))
            ):
                if name not in self._refused:  # else another call was refused at the same time
                    text = redact(one_line(message, 120))
                    log.warning("%s: refuses '%s', dropped: %s", self.name, name, text)
                self._refused.add(name)
                return True
        return False

    def _failure(self, error: Exception, usage: Usage | None) -> Exception:
        """Return what to raise for a failed try; `usage`: what its reply counted."""
        name = f"{self.name} at {self.endpoint}"
        if isinstance(error, Transient):
            return Transient(redact(str(error)), usage=usage)
        cause = error.__cause__
        if isinstance(cause, httpx2.ConnectError):
            return self._no_api(f"it cannot be reached: {_why(cause)}")
        if isinstance(error, PageError):
            text = "it answers with a page of HTML, not with a reply: is it the address of an API?"
            return self._no_api(text)
        if isinstance(error, TimeoutError):
            return Transient(f"no complete reply within {self.config.timeout_s:g} s", usage=usage)
        if isinstance(error, self._sdk.APITimeoutError):
            return Transient("it does not answer: it may hang, or be loading its model", usage=usage)
        if not isinstance(error, self._sdk.APIError) or isinstance(error, self._sdk.APIConnectionError):
            text = one_line(redact(f"no complete HTTP reply that can be read: {cause or error}"))
            return Transient(text, usage=usage)
        body, response = getattr(error, "body", None), getattr(error, "response", None)
        message, code = server_error(body)
        if not message:
            is_page = "<html" in str(body).lower()
            message = "a page of HTML, not an API's answer" if is_page else str(error)
        failure = judge_status(
            name,
            self._key_variable,
            getattr(error, "status_code", 200),
            message=redact(message),
            code=code,
            headers=getattr(response, "headers", {}),
        )
        if isinstance(failure, Transient):
            failure.usage = usage
        return failure

    def _no_api(self, text: str) -> Exception:
        """Return what to raise where no API answers: another try helps only where one did before."""
        is_first = self.is_streamed is None
        return UsageError(f"{self.name} at {self.endpoint}: {text}") if is_first else Transient(text)


def _why(error: BaseException) -> str:
    """Say in a few words why a connection cannot be made."""
    root = error
    while inner := root.__cause__ or root.__context__:
        root = inner
    if isinstance(root, socket.gaierror):
        return "unknown host"
    return "connection refused" if isinstance(root, ConnectionRefusedError) else one_line(str(error))


def has_call_as_text(text: str, tools: list[ToolSpec]) -> bool:
    """Tell whether a text is a call of one of `tools` that the server did not take for one."""
    names = "|".join(re.escape(tool.name) for tool in tools)
    call = rf"""<tool_call>|\[TOOL_CALLS\]|\b(name|functions?)["']?\s*[=:.]\s*["']?({names})\b"""
    return bool(names) and re.search(call, text) is not None


def api_key(variable: str, name: str, base_url: str | None, base_url_variable: str) -> str:
    """The key in `variable`, or a placeholder for a server of one's own.

    Raises UsageError without either, and for an address with a password in it: settings are stored.
    """
    address = base_url or os.environ.get(base_url_variable)
    try:
        url = urlsplit(address or "https://host")
        if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:
            raise ValueError
    except ValueError:
        host = str(address).rpartition("@")[2]
        raise UsageError(f"--model {name}: {host} is no address such as http://127.0.0.1:8000/v1") from None
    if base_url and (url.password or url.query):
        raise UsageError(
            f"--model {name}: the address may hold no password or key, it would be stored with the run; "
            f"export {variable}=... instead"
        )
    key = os.environ.get(variable, "").strip() or (PLACEHOLDER_KEY if address else "")
    if not key:
        raise UsageError(f"--model {name}: {variable} is not set; export {variable}=... or give --base-url")
    return key


def open_openai(config: ModelConfig) -> Retrying:
    """Open a model behind Chat Completions or Responses. Raises UsageError if the key is missing."""
    import openai

    from passagent.models.chat import Chat
    from passagent.models.responses import Responses

    api = config.api or ("chat" if config.is_compatible else "responses")
    wire: Wire = Chat() if api == "chat" else Responses()
    return Retrying(HttpModel(config, wire, openai, openai.AsyncOpenAI, "OPENAI"), config.max_retries)


def open_anthropic(config: ModelConfig) -> Retrying:
    """Open a model behind the Messages API. Raises UsageError if the key is missing."""
    import anthropic

    from passagent.models.anthropic import Messages

    model = HttpModel(config, Messages(), anthropic, anthropic.AsyncAnthropic, "ANTHROPIC")
    return Retrying(model, config.max_retries)
