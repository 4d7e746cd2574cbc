"""What both providers' wires have in common: clean text, tool arguments, refused parameters, SDK errors."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from passagent.errors import UsageError
from passagent.models.retry import Transient, is_overflow, judge_status, one_line

log = logging.getLogger("passagent.models")

PLACEHOLDER_KEY = "no-key-needed"
REDACTED = "[redacted]"
_UNKNOWN = re.compile(
    r"unsupported|not supported|unrecognized|unknown|unexpected|not permitted|extra|instead", re.I
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(value: Any, secrets: tuple[str, ...] = ()) -> Any:
    """`value` (JSON-able) without secrets and without lone surrogates, which UTF-8 cannot hold."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REDACTED)
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: clean(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item, secrets) for item in value]
    return value


def arguments_object(text: str) -> dict[str, Any]:
    """A call's arguments as an object; what is no JSON object comes as `{"invalid_json": text}`.

    Servers parse the arguments of earlier calls too, and refuse the whole request over a broken one.
    """
    try:
        value = json.loads(text)
    except ValueError:
        return {"invalid_json": text}
    return value if isinstance(value, dict) else {"invalid_json": text}


def api_key(variable: str, name: str, base_url: str | None, base_url_variable: str) -> str:
    """The key in `variable`, or a placeholder for a server of one's own. Raises UsageError without either."""
    key = os.environ.get(variable, "").strip()
    if key:
        return key
    if base_url or os.environ.get(base_url_variable):
        return PLACEHOLDER_KEY
    raise UsageError(f"--model {name}: {variable} is not set; export {variable}=... or give --base-url")


def secrets_of(key: str, base_url: str | None) -> tuple[str, ...]:
    """Strings that must never be shown or stored: the key, and a password inside the URL."""
    password = urlsplit(base_url).password if base_url else None
    return tuple(s for s in (key if key != PLACEHOLDER_KEY else "", password or "") if len(s) >= 4)


class Refused:
    """Optional parameters that this model refuses: dropped with a warning, and remembered."""

    def __init__(self, name: str) -> None:
        self.name, self.parameters = name, set[str]()

    def drops(self, error: Exception, sent: list[str]) -> bool:
        """Whether `error` (an SDK's status error) refuses one of the optional parameters `sent`, now dropped.

        A limit of tokens is dropped only where its name is unknown, not where its value is too large.
        """
        status = getattr(error, "status_code", 0)
        message, code, param = told(error)
        if status not in (400, 422) or is_overflow(status, message, code):
            return False
        for parameter in sent:
            if parameter.startswith("max_") and not _UNKNOWN.search(message):
                continue
            if param == parameter or re.search(rf"\b{parameter}\b", message):
                self.parameters.add(parameter)
                log.warning("%s: refuses '%s', dropped: %s", self.name, parameter, one_line(message, 120))
                return True
        return False


def told(error: Exception) -> tuple[str, str, str]:
    """`(message, code, param)` in the body of an SDK's status error, in either provider's form."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(inner, dict):
        inner = {"message": inner if isinstance(inner, str) else str(error)}
    message, code = inner.get("message") or str(error), inner.get("code") or inner.get("type") or ""
    return str(message), str(code), str(inner.get("param") or "")


def judge(error: Exception, name: str, key_variable: str, secrets: tuple[str, ...]) -> Exception:
    """The exception to raise for an SDK's APIError: of status, of connection or of time."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return Transient(clean(one_line(f"no complete reply: {error}"), secrets))
    message, code, _ = told(error)
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
    if 200 <= status < 400:
        return Transient(f"HTTP {status}: {clean(one_line(message), secrets)}")
    return judge_status(
        name, key_variable, status, message=clean(message, secrets), code=code, headers=headers
    )


def as_json(reply: Any) -> Any:
    """An SDK's reply object as plain JSON; what the SDK could not read as one (a str) as it is."""
    return reply.to_dict(mode="json", warnings=False) if hasattr(reply, "to_dict") else reply


def count(usage: Any, key: str) -> int:
    """A token count of a usage object; 0 where the server leaves it out."""
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value >= 0 else 0
