"""The common part of the providers' wires: valid history, clean text, refused parameters, errors."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from passagent.config import ModelConfig
from passagent.errors import UsageError
from passagent.models.retry import Transient, is_overflow, judge_status, one_line
from passagent.models.types import Message, Reply, ToolSpec, Usage
from passagent.system.redaction import secrets

log = logging.getLogger("passagent.models")

PLACEHOLDER_KEY = "no-key-needed"
REDACTED = "[redacted]"
MAX_COUNT = 2**53
"""Tokens: a count beyond is none."""
_UNKNOWN = re.compile(
    r"unsupported|not supported|unrecognized|unknown|unexpected|not permitted|extra|instead", re.I
)
_NO_SYSTEM = re.compile(
    r"\bsystem\b.{0,40}(not |un)support|(not |un)support.{0,30}\bsystem\b|only user and assistant roles", re.I
)
"""How OpenAI and the chat templates of models refuse the role `system`."""
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
"""Characters that no API takes in a tool's name, though replies hold them."""
MAX_NAME = 64
EMPTY = "(empty)"
"""Sent for a blank text that cannot be left out."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_STATUS = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
}
"""The HTTP status that an error inside a reply would have had."""


class StreamedError(Exception):
    """A server's error inside a reply that began with status 200: `(message, code)`."""


class Stream(Protocol):
    """Puts a streamed reply together, event by event."""

    is_done: bool
    """The stream's terminal event was seen."""

    def take(self, event: str, data: Any) -> None:
        """One event's JSON. Raises StreamedError."""
        ...

    def whole(self) -> dict[str, Any]:
        """Return what came so far, in the form of a reply that is not streamed."""
        ...


class Wire(Protocol):
    """One API: how a request is written, and a reply read."""

    OPTIONAL: tuple[str, ...]
    """Parameters that can be left out where a model refuses them."""

    def request(
        self, config: ModelConfig, messages: list[Message], tools: list[ToolSpec], refused: set[str]
    ) -> dict[str, Any]:
        """The arguments of the SDK's `create`."""
        ...

    def send(self, client: Any, request: dict[str, Any]) -> Any:
        """The SDK's call: an async context manager that gives the raw response."""
        ...

    def stream(self) -> Stream:
        """For a reply that comes in pieces."""
        ...

    def usage(self, data: Any) -> Usage | None:
        """Return what a reply, whole or not, says that it counted."""
        ...

    def parse(self, data: Any, usage: Usage) -> Reply:
        """The reply. Raises Transient unless it is complete."""
        ...


def clean(value: Any, hidden: tuple[str, ...] = ()) -> Any:
    """`value` (JSON-able) without secrets and without lone surrogates, which UTF-8 cannot hold."""
    if isinstance(value, str):
        for secret in hidden:
            value = value.replace(secret, REDACTED)
        return value if value.isascii() else _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {clean(key, hidden): clean(item, hidden) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item, hidden) for item in value]
    return value


def arguments_object(text: str) -> dict[str, Any]:
    """A call's arguments as an object; what is no JSON object comes as `{"invalid_json": text}`.

    Servers parse the arguments of earlier calls too, and refuse the whole request over a broken one.
    """
    try:
        value = json.loads(text or "{}")
        json.dumps(value, allow_nan=False)  # NaN is no JSON, though Python reads it: it cannot be sent back
    except (ValueError, RecursionError):
        return {"invalid_json": text}
    return value if isinstance(value, dict) else {"invalid_json": text}


def arguments_text(text: str) -> str:
    """A call's arguments as the text of a JSON object; see arguments_object."""
    parsed = arguments_object(text)
    return json.dumps(clean(parsed)) if "invalid_json" in parsed or not text else clean(text)


def valid_history(
    messages: Sequence[Message], tools: Sequence[ToolSpec], plain_ids: bool = False
) -> list[Message]:
    """Return `messages` in a form that every API takes.

    Blank replies are left out. User messages in a row become one, as chat templates want turns to alternate.
    Each call has a name of allowed characters, an object as arguments, and an id of its own, which its result
    has, too; with `plain_ids` the id has a name's characters. A result of no call becomes a user message.
    """
    names = [tool.name for tool in tools]
    valid, waiting, used = list[Message](), list[tuple[str, str]](), set[str]()
    for message in messages:
        role, content = message["role"], clean(message["content"])
        if role == "assistant":
            calls, waiting = [], []
            for call in message["tool_calls"]:
                id_ = call["id"]
                if not id_ or id_ in used or (plain_ids and _NO_NAME.search(id_)):
                    id_ = f"made{len(used):05}"  # nine characters: Mistral takes no others
                used.add(id_)
                waiting.append((call["id"], id_))
                name = (
                    meant_tool(call["name"], names) or _NO_NAME.sub("_", call["name"]).strip("_")[:MAX_NAME]
                )
                arguments = arguments_text(call["arguments"])
                calls.append({"id": id_, "name": name or "unnamed", "arguments": arguments})
            if content.strip() or calls:  # a request may not end with a reply that ends with a space
                valid.append(message | {"content": content.rstrip(), "tool_calls": calls})
            continue
        content = content if content.strip() else EMPTY
        call_ids = next((ids for ids in waiting if ids[0] == message.get("tool_call_id")), None)
        if call_ids:
            waiting.remove(call_ids)
            valid.append(message | {"content": content, "tool_call_id": call_ids[1]})
        elif role != "system" and valid and valid[-1]["role"] == "user":
            valid[-1] = valid[-1] | {"content": f"{valid[-1]['content']}\n\n{content}"}
        else:
            valid.append({"role": "system" if role == "system" else "user", "content": content})
    return valid


def meant_tool(name: str, tools: Sequence[str]) -> str | None:
    """Return the one of `tools` that `name` holds as a word, as `functions.check` does; else None."""
    named = set(re.findall(r"[\w-]+", name)) & set(tools)
    return named.pop() if len(named) == 1 else None


def has_call_as_text(text: str, tools: Sequence[ToolSpec]) -> bool:
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
    key = os.environ.get(variable, "").strip()
    if key:
        return key
    if address:
        return PLACEHOLDER_KEY
    raise UsageError(f"--model {name}: {variable} is not set; export {variable}=... or give --base-url")


def hidden_values(key: str, base_url: str | None) -> tuple[str, ...]:
    """Strings that must never be shown or stored: the key, the environment's secrets, a URL's password."""
    password = urlsplit(base_url).password if base_url else None
    values = [value for value in (key, password) if value and value != PLACEHOLDER_KEY and len(value) >= 4]
    return tuple(dict.fromkeys([*values, *(value for value in secrets() if value != PLACEHOLDER_KEY)]))


class Refused:
    """Optional parameters that this model refuses: dropped with a warning, and remembered."""

    def __init__(self, name: str) -> None:
        self.name, self.parameters = name, set[str]()

    def drops(self, error: Exception, sent: list[str], hidden: tuple[str, ...]) -> bool:
        """Drop the optional parameter of those `sent` that `error`, an SDK's status error, refuses, if any.

        A limit of tokens is dropped only where its name is unknown, not where its value is too large.
        """
        status = getattr(error, "status_code", 0)
        message, code, param = told(error)
        is_system = _NO_SYSTEM.search(message) is not None
        if status not in (400, 422, 500 if is_system else 400) or is_overflow(status, message, code):
            return False  # 500: llama.cpp's, where a chat template refuses
        for parameter in sent:
            if (parameter == "system") != is_system:
                continue
            if parameter.startswith("max_") and not _UNKNOWN.search(message):
                continue
            is_named = re.search(rf"(?<!\w){re.escape(parameter)}\b", message) or parameter in code
            if is_system or is_named or param == parameter:
                is_new = parameter not in self.parameters  # else another call was refused at the same time
                self.parameters.add(parameter)
                if is_new:
                    text = clean(one_line(message, 120), hidden)
                    log.warning("%s: refuses '%s', dropped: %s", self.name, parameter, text)
                return True
        return False


def told(error: Exception) -> tuple[str, str, str]:
    """`(message, code, param)` in the body of an SDK's status error, in either provider's form."""
    body = getattr(error, "body", None)
    is_page = "<html" in str(body).lower()
    return error_of(body) or ("a page of HTML, not an API's answer" if is_page else str(error), "", "")


def error_of(body: Any) -> tuple[str, str, str] | None:
    """`(message, code, param)` of an error object, bare or under `error`; None if it is no error."""
    inner = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(inner, str):
        return inner, "", ""
    if not isinstance(inner, dict) or not inner.get("message"):
        return None
    code = inner.get("code") or inner.get("type") or ""
    if isinstance(code, int):  # gateways put the HTTP status there
        code = inner.get("type") or ""
    return str(inner["message"]), str(code), str(inner.get("param") or "")


def judge(error: Exception, name: str, key_variable: str, hidden: tuple[str, ...]) -> Exception:
    """The exception to raise for an SDK's APIError: of status, of connection or of time."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return Transient(clean(one_line(f"no complete reply: {error.__cause__ or error}"), hidden))
    message, code, _ = told(error)
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
    if 200 <= status < 400:
        return Transient(f"HTTP {status}: {clean(one_line(message), hidden)}")
    return judge_status(
        name, key_variable, status, message=clean(message, hidden), code=code, headers=headers
    )


def judge_streamed(
    error: StreamedError, name: str, key_variable: str, hidden: tuple[str, ...], usage: Usage | None
) -> Exception:
    """The exception for an error inside a reply: overflow and quota are final, all else is tried again."""
    message, code = error.args
    status = _STATUS.get(code, 500)
    text = clean(message, hidden)
    if is_overflow(status, text, code) or code == "insufficient_quota":
        return judge_status(name, key_variable, status, message=text, code=code, headers={})
    return Transient(
        f"an error instead of the rest of the reply: {one_line(text)}",
        usage=usage,
        is_rate_limit=status in (429, 529),
    )


def count(usage: Any, key: str) -> int:
    """A token count of a usage object; 0 where the server leaves it out."""
    value = usage.get(key) if isinstance(usage, dict) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MAX_COUNT:
        return int(value)  # some servers write 1000.0
    return 0


def openai_usage(data: Any, prompt: str, completion: str) -> Usage | None:
    """Read the usage of an OpenAI API; `prompt` and `completion` begin the names of its counts."""
    usage = data.get("usage") if isinstance(data, dict) else None
    if not isinstance(usage, dict) or not usage:
        return None
    details = usage.get(f"{prompt}_tokens_details")
    return Usage(
        input_tokens=count(usage, f"{prompt}_tokens"),
        output_tokens=count(usage, f"{completion}_tokens"),
        cached_tokens=count(details, "cached_tokens"),
        reasoning_tokens=count(usage.get(f"{completion}_tokens_details"), "reasoning_tokens"),
        cache_write_tokens=count(details, "cache_write_tokens"),
    )
