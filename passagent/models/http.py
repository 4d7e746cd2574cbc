"""A model behind an HTTP API: one request through the provider's SDK, and a whole reply or a named failure.

The SDK sends, authenticates and puts a stream together. It takes a truncated stream for a whole one, so what
makes a reply whole is checked here: its stop reason and its usage. Trying again is retry.Retrying's work.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import logging
import os
import re
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx2

from passagent.config import ModelConfig
from passagent.errors import PassagentError, UsageError, one_line
from passagent.models.retry import ContextOverflow, Transient, retry_after
from passagent.models.types import Message, Reply, ToolSpec, Usage, clean, valid_history
from passagent.store.redaction import redact, redacted

log = logging.getLogger("passagent.models")

TOKENS_A_BYTE = 0.5
"""An upper bound for a prompt: source code has 0.25 to 0.35 tokens a byte."""
PLACEHOLDER_KEY = "no-key-needed"
TRANSIENT_STATUS = {408, 409, 425, 429}
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
_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|limit|size)|(prompt|input) is too long|too many (input|prompt) tokens"
    r"|input token count .{0,40}exceeds|reduce the length of the (messages|prompt)",
    re.I,
)
_OVERFLOW_CODES = {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"}


class PageError(Exception):
    """A page of HTML came in place of a reply."""


_UNREADABLE: tuple[type[Exception], ...] = (
    httpx2.HTTPError, httpx2.StreamError, OSError, AssertionError,
    ValueError, TypeError, LookupError, AttributeError, RuntimeError,
)  # fmt: skip
"""Errors of reading a broken reply: of transport, JSON, fields of another kind, or the SDK's accumulation."""


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates, which all clients share: reading them takes long."""
    return httpx2.create_ssl_context()


class HttpModel(ABC):
    """One model behind one API. `complete` is one try: it raises Transient where another may help."""

    SDK: str
    """The SDK's module; in capitals it begins the variables of key and address."""
    CLIENT: str
    """The SDK's class of asynchronous clients."""
    OPTIONAL: tuple[str, ...]
    """Parameters that can be left out where a model refuses them."""

    def __init__(self, config: ModelConfig) -> None:
        """Raise UsageError without a key."""
        prefix, self._sdk = self.SDK.upper(), importlib.import_module(self.SDK)
        self._key_variable = f"{prefix}_API_KEY"
        key = api_key(self._key_variable, config.name, config.base_url, f"{prefix}_BASE_URL")
        http = self._sdk.DefaultAsyncHttpxClient(verify=_certificates())
        self._client: Any = getattr(self._sdk, self.CLIENT)(
            api_key=key, base_url=config.base_url, timeout=config.timeout_s, max_retries=0, http_client=http
        )
        self.name, self.config = config.name, config
        # it is shown: no password
        self.endpoint = re.sub("//[^/]*@", "//", str(self._client.base_url)).rstrip("/")
        self.is_streamed: bool | None = None
        """True if the last reply came as a stream; None: no reply came yet."""
        self.reports_cache = False
        """True once a reply has reported the prompt cache."""
        self.refused = set[str]()
        """Optional parameters that this model refuses."""
        self._has_warned = False
        """True once a person was warned of calls as text."""

    @abstractmethod
    def request(self, messages: list[Message], tools: list[ToolSpec]) -> dict[str, Any]:
        """Return the arguments of the SDK's `create`; those that are None or refused are not sent."""

    @abstractmethod
    def answers(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        """Ask through the SDK, and yield its object of the reply so far; the last one may be whole.

        Raises what the SDK raises, and PageError.
        """

    @abstractmethod
    def usage(self, data: dict[str, Any]) -> Usage | None:
        """Return what a reply, whole or not, says that it counted."""

    @abstractmethod
    def parse(self, data: dict[str, Any], usage: Usage) -> Reply:
        """Return the reply. Raises Transient unless it is complete."""

    async def complete(self, messages: list[Message], tools: list[ToolSpec]) -> Reply:
        """Implement Model.complete; raises Transient, too."""
        while True:
            request, answer = self._request(messages, tools), None
            try:
                async with asyncio.timeout(self.config.timeout_s):
                    async for answer in self.answers(request):  # noqa: B007
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
        size = len(json.dumps(self._request(messages, tools), ensure_ascii=False).encode())
        return int(size * TOKENS_A_BYTE) + 1, self.config.max_output_tokens

    def limit_silence(self, seconds: float) -> None:
        """Give up on a server that sends nothing for so long."""
        self._client = self._client.with_options(timeout=seconds)

    def check_stream(self, response: Any) -> None:
        """Raise PageError for a page, which an SDK takes for a stream without events."""
        if "text/html" in response.headers.get("content-type", ""):
            raise PageError

    def _request(self, messages: list[Message], tools: list[ToolSpec]) -> dict[str, Any]:
        if "system" in self.refused:  # it becomes the beginning of the first user turn
            messages = [m | {"role": "user"} if m["role"] == "system" else m for m in messages]
        request = self.request(valid_history(messages, tools), tools)
        return {
            name: value for name, value in request.items() if name not in self.refused and value is not None
        }

    def _reply(self, answer: Any, request: dict[str, Any]) -> Reply:
        """The reply, whole. Raises Transient, PageError, or an error of _UNREADABLE."""
        if isinstance(answer, str) and "<html" in answer.lower():
            raise PageError
        data = answer.to_dict(warnings=False)
        if data.get("error"):
            raise self._sdk.APIError("an error", None, body=data)
        usage = self.usage(data)
        reply = self.parse(data, usage or Usage())
        if usage is None:
            raise Transient("the reply has no usage: it was cut off, or the server counts no tokens")
        self.is_streamed = bool(request.get("stream"))
        self.reports_cache |= "cache" in json.dumps(data["usage"])
        return Reply(redacted(clean(reply.message)), usage, reply.stop_reason)

    def _usage(self, answer: Any) -> Usage | None:
        """Return what the server counted of a broken reply, as far as it came to say."""
        try:
            return self.usage(answer.to_dict(warnings=False))
        except _UNREADABLE:
            return None

    def _drops(self, error: Exception, request: dict[str, Any]) -> bool:
        """Drop the optional parameter of the request that `error` refuses, if any, from now on.

        A limit of tokens is dropped only where its name is unknown, not where its value is too large.
        """
        message, code = server_error(getattr(error, "body", None))
        is_system = _NO_SYSTEM.search(message) is not None
        if getattr(error, "status_code", 0) not in (400, 500 if is_system else 400):
            return False
        if is_overflow(400, message, code):
            return False

        def is_refused(name: str) -> bool:
            if is_system or name == "system":
                return is_system and name == "system" and request["messages"][0]["role"] == "system"
            words = "encrypted content|include" if name == "include" else re.escape(name)
            is_named = re.search(rf"(?<!\w)({words})\b", message, re.I) or getattr(error, "param", "") == name
            is_sent = name in request or name in request.get("extra_body", {})
            return bool(is_sent and is_named and (name[:4] != "max_" or _UNKNOWN.search(message)))

        name = next(filter(is_refused, self.OPTIONAL), None)
        if name and name not in self.refused:  # else another call was refused at the same time
            log.warning("%s: refuses '%s', dropped: %s", self.name, name, redact(one_line(message, 120)))
            self.refused.add(name)
        return name is not None

    def _failure(self, error: Exception, usage: Usage | None) -> Exception:
        """Return what to raise for a failed try; `usage`: what its reply counted."""
        name, cause = f"{self.name} at {self.endpoint}", error.__cause__
        if isinstance(error, Transient):
            return Transient(redact(str(error)), usage=usage)
        if isinstance(error, PageError) or isinstance(cause, httpx2.ConnectError):
            why = "it answers with a page of HTML, not with a reply: is it the address of an API?"
            why = f"it cannot be reached: {_why(cause)}" if cause else why
            # another try helps only where an API did answer before
            return UsageError(f"{name}: {why}") if self.is_streamed is None else Transient(why)
        if isinstance(error, TimeoutError):
            return Transient(f"no complete reply within {self.config.timeout_s:g} s", usage=usage)
        if isinstance(error, self._sdk.APITimeoutError):
            return Transient("it does not answer: it may hang, or be loading its model", usage=usage)
        if not isinstance(error, self._sdk.APIError) or isinstance(error, self._sdk.APIConnectionError):
            text = one_line(redact(f"no complete HTTP reply that can be read: {cause or error}"))
            return Transient(text, usage=usage)
        body, status = getattr(error, "body", None), getattr(error, "status_code", 200)
        message, code = server_error(body)
        if not message:
            is_page = "<html" in str(body).lower()
            message = "a page of HTML, not an API's answer" if is_page else str(error)
        text = one_line(redact(message))
        if is_overflow(status, message, code):
            return ContextOverflow(f"{name}: the conversation is longer than the model's window: {text}")
        if code == "insufficient_quota" or status == 402:
            return UsageError(f"{name}: the account's quota is used up (HTTP {status}): {text}")
        if status < 400:
            return Transient(f"an error instead of the rest of the reply: {text}", usage=usage)
        if status in TRANSIENT_STATUS or status >= 500:
            headers = getattr(getattr(error, "response", None), "headers", {})
            return Transient(f"HTTP {status}: {text}", retry_after(headers), usage)
        if status in (401, 403):
            why = f"the server refuses the key (HTTP {status}); check {self._key_variable}: {text}"
            return UsageError(f"{name}: {why}")
        if status == 404:
            return UsageError(f"{name}: no such model or address (HTTP 404): {text}")
        return PassagentError(f"{name}: the server refuses the request (HTTP {status}): {text}")


def is_overflow(status: int, message: str, code: str) -> bool:
    """Return whether an error says that the prompt does not fit into the model's window."""
    has_words = status in (200, 400) and _OVERFLOW.search(message) is not None
    return has_words or status == 413 or code in _OVERFLOW_CODES


def server_error(body: Any) -> tuple[str, str]:
    """`(message, code)` of an API's error object, bare or under `error`; empty where there is none."""
    inner = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(inner, str):
        return inner, ""
    fields = inner if isinstance(inner, dict) else {}
    return str(fields.get("message") or ""), str(fields.get("code") or fields.get("type") or "")


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
