"""`passagent view` from its options to a server that answers until Ctrl-C."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from passagent.errors import UsageError


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    runs_dir: Path
    host: str = "127.0.0.1"
    port: int = 8640
    token: str | None = None
    """Asked for of whoever looks; None: one is made, unless only this machine can look."""
    allowed: Sequence[str] = ()
    """Other names by which the page is reached."""
    control: bool = False
    library: Path | None = None
    """The file of a library to show; None: none."""


def serve(request: Request) -> None:
    """Serve the page until a signal ends it; its address is printed once it answers.

    Raises UsageError where what it needs is not installed, or the port is taken.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"view needs {' and '.join(missing)}, not installed here; run: pip install 'passagent[web]'"
        )
    import uvicorn

    from passagent.view.page.app import create_app
    from passagent.view.page.guard import Access

    token = request.token or (None if _is_loopback(request.host) else secrets.token_urlsafe(24))
    names = {name.lower() for name in (*request.allowed, request.host)}
    access = Access(token, frozenset(names))
    app = create_app(request.runs_dir.absolute(), access, request.control, request.library)
    with _listening(request.host, request.port) as listener:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2
        )
        shown = f"[{request.host}]" if ":" in request.host else request.host
        told = f"?token={token}" if token else ""
        print(f"http://{shown}:{listener.getsockname()[1]}/{told}", flush=True)
        uvicorn.Server(config).run(sockets=[listener])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        raise UsageError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror}); --port 0 takes a free one"
        ) from error
    return listener
