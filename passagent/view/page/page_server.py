"""`passagent view` from its options to a server that answers until Ctrl-C."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from passagent.errors import UsageError
from passagent.view.listening import is_loopback, listen, shown_host


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

    token = request.token or (None if is_loopback(request.host) else secrets.token_urlsafe(24))
    names = {name.lower() for name in (*request.allowed, request.host)}
    access = Access(token, frozenset(names))
    app = create_app(request.runs_dir.absolute(), access, request.control, request.library)
    option = f"--host {request.host} --port {request.port}"
    with listen(request.host, request.port, option) as listener:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2
        )
        query = f"?token={token}" if token else ""
        print(f"http://{shown_host(request.host)}:{listener.getsockname()[1]}/{query}", flush=True)
        uvicorn.Server(config).run(sockets=[listener])
