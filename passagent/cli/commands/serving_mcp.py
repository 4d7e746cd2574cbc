"""`passagent mcp`: the evaluator as tools for any coding agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from passagent.config import load_config
from passagent.errors import UsageError


def serve(
    tasks: Sequence[str],
    http: str | None,
    preset: str | None,
    settings: dict[str, Any],
    runs_dir: str,
    trust_files: bool,
    max_wait: float,
) -> None:
    """Serve on stdin and stdout, or at the address `http`, until the client leaves. Raises UsageError."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise UsageError("mcp is not installed; pip install 'passagent[mcp]'") from error
    from passagent.view.mcp.client_service import Service
    from passagent.view.mcp.pass_server import build, serve_http, serve_stdio

    service = Service(tasks, load_config(preset, settings), runs_dir, trust_files, max_wait_s=max_wait)
    server = build(service)
    if http is not None:
        serve_http(service, server, http)
        return
    if sys.stdin.isatty():
        print(
            "passagent mcp: a client's messages are read from stdin; --http serves an address",
            file=sys.stderr,
        )
    serve_stdio(service, server)
