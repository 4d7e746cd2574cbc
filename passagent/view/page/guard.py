"""Where the page listens, and its guard: who gives the token is answered, another site's page never."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from passagent.errors import UsageError

COOKIE = "passagent_token"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """The right to look at the page."""

    token: str | None = None
    """The token to give; None: nothing, as on the loopback interface."""
    hosts: frozenset[str] = frozenset()
    """Names that the page is reached by, beside addresses and this machine's own names."""
    csrf: str = field(default_factory=secrets.token_urlsafe)
    """A form must send it back: another site's page cannot know it."""

    def is_known(self, host: str) -> bool:
        """Return whether a `Host` header names this machine, which a name that was pointed here does not."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in {"localhost", socket.gethostname().lower()} | self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class Guard:
    """ASGI middleware: refuses what Access does not allow, and puts HEADERS on every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        answer = self._refusal(scope) or self._entrance(scope) or self.app
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request of another site; None: it is none."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.access.is_known(host):
            refusal = (
                f"{host!r:.200} is not a name of this machine; open it by its address, or give --allow-host"
            )
            return PlainTextResponse(refusal, 421)
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return PlainTextResponse("a request of another site's page is refused", 403)
        is_own = origin is not None or headers.get("sec-fetch-site") == "same-origin"
        if scope["method"] not in ("GET", "HEAD") and not is_own:
            return PlainTextResponse("a request without Origin changes nothing", 403)
        return None

    def _entrance(self, scope: Scope) -> Response | None:
        """The answer to who has not shown the token yet; None: who has."""
        token = self.access.token
        if token is None or secrets.compare_digest(_cookie(scope).encode(), token.encode()):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        query_token = next((value for name, value in query if name == "token"), "")
        if not secrets.compare_digest(query_token.encode(), token.encode()):
            return PlainTextResponse("open the address that passagent view printed: it has the token", 403)
        # on without it: it stays in no history and no bookmark
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        last = scope["path"].rpartition("/")[2]
        answer = RedirectResponse(f"./{last}{f'?{rest}' if rest else ''}", 303)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return answer


def _cookie(scope: Scope) -> str:
    try:
        morsel = SimpleCookie(Headers(scope=scope).get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


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
