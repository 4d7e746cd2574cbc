"""`passagent view` from its options to a server that answers until Ctrl-C."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from passagent.errors import UsageError
from passagent.store.pass_library import library_path
from passagent.view.listening import is_loopback, listen, shown_host


def serve(runs_dir: Path, options: Mapping[str, Any]) -> None:
    """Serve the page until a signal ends it; its address is printed once it answers.

    options: those of `passagent view` (PageOptions). Raises UsageError where what it needs is not installed,
    or the port is taken.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"view needs {' and '.join(missing)}, not installed here; run: pip install 'passagent[web]'"
        )
    import uvicorn

    from passagent.view.page.app import create_app
    from passagent.view.page.guard import Access

    host, port = options["host"], options["port"]
    token = options["token"] or (None if is_loopback(host) else secrets.token_urlsafe(24))
    access = Access(token, frozenset(name.lower() for name in (*(options["allow_host"] or ()), host)))
    library = library_path(options["library"], runs_dir)
    app = create_app(runs_dir.absolute(), access, options["control"], library)
    with listen(host, port, f"--host {host} --port {port}") as listener:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2
        )
        query = f"?token={token}" if token else ""
        print(f"http://{shown_host(host)}:{listener.getsockname()[1]}/{query}", flush=True)
        uvicorn.Server(config).run(sockets=[listener])
