"""`passagent view`: the page, served until Ctrl-C."""

from __future__ import annotations

from importlib.util import find_spec

from passagent.errors import UsageError
from passagent.page.page_server import Request, serve


def view(request: Request) -> None:
    """Serve the page. Raises UsageError where what it needs is not installed, or the port is taken."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"view needs {' and '.join(missing)}, not installed here; run: pip install 'passagent[web]'"
        )
    serve(request)
