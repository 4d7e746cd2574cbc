"""The devices of HTTP workers (`passagent worker`)."""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2

from passagent.config import EvaluatorConfig
from passagent.errors import UsageError
from passagent.evaluator.fleet.offers import Survey, make_survey
from passagent.evaluator.fleet.remote_owner import MachineFleet, Silent, Unreachable

HELLO_S = 8.0
TOKEN_FILE = "PASSAGENT_TOKEN_FILE"
"""The variable that names the file with the workers' token."""


def token_in(file: str | None = None) -> str:
    """The workers' token, in `file`, the one that TOKEN_FILE names, or passagent.token. Raises UsageError."""
    file = file or os.environ.get(TOKEN_FILE) or "passagent.token"
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        advice = f"copy the workers' token file there, or name it in {TOKEN_FILE}"
        raise UsageError(f"the workers' token {file}: cannot be read: {why}; {advice}") from error
    if not token.isascii() or len(token) < 16 or len(token.split()) != 1:
        raise UsageError(f"the workers' token {file}: must hold one word of 16 characters or more")
    return token


def addresses(config: EvaluatorConfig) -> list[str]:
    """The workers' addresses. Raises UsageError for what is none."""
    words = [word.strip().rstrip("/") for word in config.pool.split(",") if word.strip()]
    for word in words:
        url = httpx2.URL(word)
        if url.scheme not in ("http", "https") or not url.host or url.path not in ("", "/"):
            raise UsageError(f"--pool {word}: write local, http://HOST:PORT[,...] or ray[://ADDRESS]")
    return words


def _read(address: str, response: httpx2.Response) -> dict[str, Any]:
    """The answer in a response. Raises UsageError for a wrong token, Silent for what is no answer."""
    if response.status_code == 401:
        raise UsageError(
            f"{address}: the token is not the worker's; copy its file, or name it in {TOKEN_FILE}"
        )
    try:
        answer = response.json()
    except ValueError as error:
        raise Silent(f"status {response.status_code}, no JSON") from error
    if response.status_code != 200 or not isinstance(answer, dict):
        raise Silent(f"status {response.status_code}")
    return answer


class HttpLink:
    """A worker; see remote_owner.Link."""

    def __init__(self, address: str, client: httpx2.AsyncClient) -> None:
        self.name = address
        self.incarnation: str | None = None
        self._client = client

    async def call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the machine, as Link.call says."""
        try:
            return _read(self.name, await self._client.post(f"{self.name}/{name}", json=body))
        except httpx2.ConnectError as error:
            raise Unreachable(f"nobody answers at {self.name}") from error
        except httpx2.HTTPError as error:
            raise Silent(str(error) or type(error).__name__) from error

    def refuse(self) -> None:
        """Do nothing: it has other devices, and other programs."""


@functools.cache
def survey(config: EvaluatorConfig) -> Survey:
    """The reference device and what is there, asked of all workers once in a process.

    Raises UsageError: no worker, a wrong token, unlike versions, another kind of device.
    """
    token = token_in()
    silent: list[str] = []

    def hello(address: str) -> dict[str, Any] | None:
        try:
            with httpx2.Client(timeout=HELLO_S, **_how(token)) as client:
                return _read(address, client.post(f"{address}/hello", json={}))
        except (httpx2.HTTPError, Silent) as error:
            silent.append(f"{address}: no worker answers yet ({str(error) or type(error).__name__})")
            return None

    places = addresses(config)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(hello, places))
    heard = {place: answer for place, answer in zip(places, answers, strict=True) if answer is not None}
    if not heard:
        raise UsageError(f"--pool {config.pool}: {'; '.join(silent)}; start passagent worker there")
    return make_survey(config, heard, silent)


def _how(token: str) -> dict[str, Any]:
    """A client's options: token; no proxy; certificates as OpenSSL knows them, with those of
    SSL_CERT_FILE."""
    headers = {"Authorization": f"Bearer {token}"}
    return {"headers": headers, "trust_env": False, "verify": ssl.create_default_context()}


class HttpFleet(MachineFleet):
    """The machines of HTTP workers, as a Fleet."""

    def __init__(self, config: EvaluatorConfig, notify: Callable[[str], None]) -> None:
        """Raises UsageError as `survey`."""
        offered = survey(config)
        self._client = httpx2.AsyncClient(
            timeout=None, limits=httpx2.Limits(max_connections=None), **_how(token_in())
        )
        links = [HttpLink(place, self._client) for place in addresses(config)]
        super().__init__(config, notify, links, offered)

    async def close(self) -> None:
        """Close the clients, as Fleet.close says."""
        await self._client.aclose()
