"""The devices of HTTP workers (`passagent worker`): found, kept by signs of life, added when they come."""

from __future__ import annotations

import asyncio
import functools
import ssl
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2

from passagent.cluster.remote_owner import Asker, RemoteOwner, Silent, Unreachable
from passagent.cluster.survey import Offered, Reference, kind_wanted, mixed, offered, reference_of
from passagent.config import EvaluatorConfig
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.service.device_owner import DeviceOwner

ANSWER_S = 10.0
"""For a whole answer, beyond what the call itself may take, s."""
HELLO_S = 8.0
BEAT_S = 5.0
"""Between two signs of life, s; a worker ends the referees of who has been silent for host.SILENT_S."""


def read_token(config: EvaluatorConfig) -> str:
    """The workers' token. Raises UsageError."""
    if config.token_file is None:
        raise UsageError(
            f"--pool {config.pool}: give --token-file FILE, the one the workers were started with"
        )
    return token_in(Path(config.token_file))


def token_in(path: Path) -> str:
    """The token in a file. Raises UsageError where there is none."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path}: cannot be read: {error}") from error
    if not token.isascii() or len(token) < 16 or len(token.split()) != 1:
        raise UsageError(f"--token-file {path}: must hold one word of 16 characters or more")
    return token


def addresses(config: EvaluatorConfig) -> list[str]:
    """The workers' addresses. Raises UsageError for what is none."""
    found = [word.strip().rstrip("/") for word in config.pool.split(",") if word.strip()]
    for word in found:
        url = httpx2.URL(word)
        if url.scheme not in ("http", "https") or not url.host or url.path not in ("", "/"):
            raise UsageError(f"--pool {word}: write local, http://HOST:PORT[,...] or ray[://ADDRESS]")
    return found


def _read(address: str, response: httpx2.Response) -> dict[str, Any]:
    """The answer in a response. Raises UsageError for a wrong token, Silent for what is no answer."""
    if response.status_code == 401:
        raise UsageError(f"{address}: the token of --token-file is not the worker's")
    try:
        found = response.json()
    except ValueError as error:
        raise Silent(f"status {response.status_code}, no JSON") from error
    if response.status_code != 200 or not isinstance(found, dict):
        raise Silent(f"status {response.status_code}")
    return found


class HttpLink:
    """A worker; see remote_owner.Link."""

    def __init__(self, address: str, client: httpx2.AsyncClient) -> None:
        self.name = address
        self.incarnation: str | None = None
        self._client = client

    async def call(self, name: str, body: dict[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
        """See Link."""
        try:
            # the whole answer in time, not only the next piece of it
            async with asyncio.timeout(wait_s + ANSWER_S):
                response = await self._client.post(f"{self.name}/{name}", json=body)
            return _read(self.name, response)
        except httpx2.ConnectError as error:
            raise Unreachable(f"nobody answers at {self.name}") from error
        except TimeoutError as error:
            raise Silent(f"no answer within {wait_s + ANSWER_S:.0f} s") from error
        except httpx2.HTTPError as error:
            raise Silent(str(error) or type(error).__name__) from error


@functools.cache
def survey(config: EvaluatorConfig) -> tuple[Reference, list[Offered], list[str]]:
    """Reference, devices, and what is to be said, asked of all workers once in a process.

    Raises UsageError: no worker, a wrong token, unlike versions, another kind of device.
    """
    kind, token = kind_wanted(config), read_token(config)
    said: list[str] = []

    def hello(address: str) -> dict[str, Any] | None:
        try:
            with httpx2.Client(timeout=HELLO_S, **_how(token)) as client:
                return _read(address, client.post(f"{address}/hello", json={}))
        except (httpx2.HTTPError, Silent) as error:
            said.append(f"{address}: no worker answers yet ({str(error) or type(error).__name__})")
            return None

    places = addresses(config)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(hello, places))
    heard = [(place, answer) for place, answer in zip(places, answers, strict=True) if answer is not None]
    if not heard:
        raise UsageError(f"--pool {config.pool}: {'; '.join(said)}; start passagent worker there")
    found = [one for place, answer in heard for one in offered(place, answer, kind)]
    if not found:
        there = ", ".join(
            f"{place} has {one['name']}" for place, answer in heard for one in answer["devices"]
        )
        raise UsageError(
            f"--device {config.device}: {there or 'no device is offered'}; give the kind that is there"
        )
    reference = reference_of(found, kind)
    said += [text] if (text := mixed(found, reference)) else []
    return reference, found, said


def _how(token: str) -> dict[str, Any]:
    """Of a client: its token; no proxy; certificates as OpenSSL knows them, with those of SSL_CERT_FILE."""
    headers = {"Authorization": f"Bearer {token}"}
    return {"headers": headers, "trust_env": False, "verify": ssl.create_default_context()}


class HttpFleet:
    """See Fleet."""

    def __init__(self, config: EvaluatorConfig, tell: Callable[[str], None]) -> None:
        """Raises UsageError as `survey`."""
        self.reference, found, self._said = survey(config)
        self._kind, self._tell = kind_wanted(config), tell
        self._asker = Asker(config, tell, uuid.uuid4().hex)
        self._client = httpx2.AsyncClient(
            timeout=None, limits=httpx2.Limits(max_connections=None), **_how(read_token(config))
        )
        self._links = {place: HttpLink(place, self._client) for place in addresses(config)}
        self._refused: set[str] = set()
        """Devices that were told not to be used."""
        self._taken = {one.as_device().name for one in found}
        like = [one for one in found if one.device.words == self.reference.words]
        self.owners: list[DeviceOwner] = [self._owner(one) for one in like]

    def _owner(self, one: Offered) -> RemoteOwner:
        return RemoteOwner(one.as_device(), one.device.name, self._links[one.place], self._asker)

    async def attend(self, add: Callable[[DeviceOwner], None]) -> None:
        """See Fleet: a sign of life to each worker every BEAT_S."""
        for line in self._said:  # not before: who opens a pool may not be ready to hear
            self._tell(line)
        while True:
            await asyncio.gather(*(self._greet(link, add) for link in self._links.values()))
            await asyncio.sleep(BEAT_S)

    async def _greet(self, link: HttpLink, add: Callable[[DeviceOwner], None]) -> None:
        """Say that this pool lives; take up devices that are new."""
        try:
            answer = await link.call("hello", {"session": self._asker.session})
            found = offered(link.name, answer, self._kind)
        except (Silent, Unreachable):
            return
        except PassagentError as error:
            self._refuse(str(error))
            return
        for one in found:
            name = one.as_device().name
            if name in self._taken:
                continue
            self._taken.add(name)
            if text := mixed([one], self.reference):
                self._refuse(text)
                continue
            self._tell(f"{name} ({one.device.label}) joins")
            add(self._owner(one))

    def _refuse(self, text: str) -> None:
        if text not in self._refused:
            self._refused.add(text)
            self._tell(text)

    async def close(self) -> None:
        """See Fleet."""
        await self._client.aclose()
