"""An HTTP worker: a Host behind starlette and uvicorn (extra `passagent[web]`), for who has the token."""

from __future__ import annotations

import asyncio
import hmac
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from passagent.errors import UsageError
from passagent.evaluator.fleet.host import Host

_BACKLOG = 128


def application(host: Host, token: str) -> Starlette:
    """The worker's one route: POST /CALL with a JSON object."""
    expected = f"Bearer {token}".encode()

    async def call(request: Request) -> JSONResponse:
        token = request.headers.get("authorization", "").encode(errors="replace")
        if not hmac.compare_digest(token, expected):
            return JSONResponse({"error": "wrong token"}, status_code=401)
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return JSONResponse({"error": "the body is no JSON object"}, status_code=400)
        return JSONResponse(await host.answer(request.path_params["call"], body))

    return Starlette(routes=[Route("/{call}", call, methods=["POST"])])


class _Server(uvicorn.Server):
    """SIGTERM drains first; a second one, or Ctrl-C, ends it."""

    def __init__(self, config: uvicorn.Config, host: Host) -> None:
        super().__init__(config)
        self._host = host
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self._draining is None and self.started:
            print("passagent: draining: what is under way is finished", file=sys.stderr, flush=True)
            loop = asyncio.get_running_loop()
            self._draining = loop.create_task(self._drain())
        else:
            super().handle_exit(sig, frame)

    async def _drain(self) -> None:
        await self._host.drain()
        self.should_exit = True


def bind(listen: str) -> socket.socket:
    """A listening socket on `HOST:PORT`. Raises UsageError."""
    name, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        sock = socket.create_server((name.strip("[]"), int(port)), family=family, backlog=_BACKLOG)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"--listen {listen}: {error}; write HOST:PORT, such as 0.0.0.0:8700") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it: no 40 ms for an ACK
    return sock


def serve(
    host: Host,
    listen: str,
    token: str,
    ready: Callable[[str], None],
    certificate: str | None = None,
    key: str | None = None,
) -> None:
    """Serve on `HOST:PORT` (port 0: a free one) until a signal; `ready` gets the address. Raises UsageError.

    By TLS if there are the files of a certificate and its key.
    """
    with bind(listen) as listening:
        scheme = "http" if certificate is None else "https"
        name, port = listening.getsockname()[:2]
        config = uvicorn.Config(
            application(host, token),
            log_level="warning",
            ssl_certfile=certificate,
            ssl_keyfile=key,
            timeout_graceful_shutdown=5,
        )
        try:
            config.load()
        except OSError as error:
            raise UsageError(f"--tls-cert, --tls-key: {error}") from error
        ready(f"{scheme}://{name}:{port}")
        asyncio.run(_serve(_Server(config, host), host, listening))


async def _serve(server: uvicorn.Server, host: Host, listening: socket.socket) -> None:
    try:
        await server.serve(sockets=[listening])
    finally:
        await host.close()
