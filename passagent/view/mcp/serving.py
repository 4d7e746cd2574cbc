"""The server's life: on stdin and stdout for one client, or at an address for many."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from mcp.server.transport_security import TransportSecuritySettings

from passagent.errors import EXIT_INTERRUPTED, UsageError
from passagent.view.mcp.client_service import Service
from passagent.view.mcp.pass_server import PassServer

TOKEN = "PASSAGENT_MCP_TOKEN"
"""The environment variable with the token that clients must send."""
MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request: a candidate of several files of 256 kB fits."""
LEAVE_S = 3.0
"""Requests under way have so long when the server is asked to end, s."""

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def serve_stdio(service: Service, server: PassServer) -> None:
    """Serve the client behind stdin and stdout until it closes stdin, or a signal ends the process."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        ending: list[asyncio.Task[None]] = []

        async def leave(code: int) -> None:
            await service.close()
            if code == EXIT_INTERRUPTED:
                print("passagent: interrupted", file=sys.stderr, flush=True)
            os._exit(code)  # a thread reads stdin, and nothing ends it

        def end(code: int) -> None:
            ending.append(loop.create_task(leave(code)))

        loop.add_signal_handler(signal.SIGINT, end, EXIT_INTERRUPTED)
        loop.add_signal_handler(signal.SIGTERM, end, 128 + signal.SIGTERM)
        try:
            await server.run_stdio_async()
        finally:
            await service.close()

    anyio.run(work)


def serve_http(service: Service, server: PassServer, address: str) -> None:
    """Serve clients at `HOST:PORT` (port 0: a free one) below /mcp. Raises UsageError; KeyboardInterrupt."""
    import uvicorn

    host, port = parse_address(address)
    listener = _listen(host, port)
    is_local = is_loopback(host)
    token = os.environ.get(TOKEN) or ("" if is_local else secrets.token_urlsafe(24))
    shown = f"[{host}]" if ":" in host else host
    at = f"http://{shown}:{listener.getsockname()[1]}/mcp"
    app = guarded(_app(server, is_local), token, is_local)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=int(LEAVE_S))

    class Serving(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            await service.close()  # before the signal that ended it is raised once more

    print(f"passagent mcp: serving at {at}", file=sys.stderr, flush=True)
    if token and TOKEN not in os.environ:
        print(f"clients must send the header Authorization: Bearer {token}", file=sys.stderr, flush=True)
    asyncio.run(Serving(config).serve(sockets=[listener]))


def _app(server: PassServer, is_local: bool) -> App:
    hosts = ["127.0.0.1:*", "localhost:*", "[::1]:*"]
    security = TransportSecuritySettings(
        # elsewhere the host may have any name; what guards there is the token
        enable_dns_rebinding_protection=is_local,
        allowed_hosts=hosts,
        allowed_origins=[f"http://{one}" for one in hosts],
    )
    return server.streamable_http_app(transport_security=security, max_request_body_size=MAX_BODY)


def guarded(app: App, token: str, is_local: bool) -> App:
    """The application behind the token, if there is one; from elsewhere no web page is let in."""

    async def guard(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.lower(): value for name, value in scope["headers"]}
            given = headers.get(b"authorization", b"")
            if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
                return await _refuse(send, 401, "a bearer token is wanted")
            if not is_local and b"origin" in headers:
                return await _refuse(send, 403, "web pages are not served")
        return await app(scope, receive, send)

    return guard


async def _refuse(send: Any, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"--http {text}: write HOST:PORT, such as 127.0.0.1:8765")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"--http {host}:{port}: {error.strerror or error}") from error
