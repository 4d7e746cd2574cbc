"""Where the page and the MCP server listen."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from passagent.errors import UsageError


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def shown_host(host: str) -> str:
    """Write the host as an address names it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int, option: str) -> socket.socket:
    """Listen at a port; 0: a free one. Raises UsageError, which names the `option`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise UsageError(f"{option}: cannot listen there ({reason}); port 0 takes a free one") from error
