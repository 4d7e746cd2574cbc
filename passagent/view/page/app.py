"""The page as a starlette application: views and templates at their addresses, and a guard before them.

Who gives the token is answered, another site's page never.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import ipaddress
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from passagent import __version__
from passagent.errors import PassagentError, UsageError
from passagent.store import Store
from passagent.view.page import views
from passagent.view.page.rendering import HERE, Relative, environment

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
        return None

    def _entrance(self, scope: Scope) -> Response | None:
        """The answer to who has not shown the token yet; None: who has."""
        token, request = self.access.token, Request(scope)
        if token is None or secrets.compare_digest(request.cookies.get(COOKIE, "").encode(), token.encode()):
            return None
        query = request.query_params
        if not secrets.compare_digest(query.get("token", "").encode(), token.encode()):
            return PlainTextResponse("open the address that passagent view printed: it has the token", 403)
        # on without it: it stays in no history and no bookmark
        rest = urlencode([pair for pair in query.multi_items() if pair[0] != "token"])
        last = scope["path"].rpartition("/")[2]
        answer = RedirectResponse(f"./{last}{f'?{rest}' if rest else ''}", 303)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return answer


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


View = Callable[..., dict[str, Any]]


class Site:
    """A runs directory as pages."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.templates = environment()

    def page(self, template: str, view: View, is_part: bool = False) -> Callable[..., Any]:
        """The endpoint that shows `view`, a function of the store and of what the address names.

        is_part: of the page whose address is one level above: links are seen from there. The tag of a page is
        a hash of it, so that a viewer who has it is not sent it again.
        """
        names = inspect.signature(view).parameters.keys() - {"store"}

        async def endpoint(request: Request) -> Response:
            query = {key: value for key, value in request.query_params.items() if key in names}
            path = request.url.path.removeprefix(request.scope.get("root_path", ""))
            here = path.rpartition("/")[2] + (f"?{request.url.query}" if request.url.query else "")
            base = {"go": Relative(path.rpartition("/")[0] if is_part else path), "here": here or "./"}
            arguments = query | request.path_params
            status, body = await run_in_threadpool(self._made, template, view, arguments, base)
            tag = {"ETag": f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'}
            if status == 200 and tag["ETag"] == request.headers.get("if-none-match"):
                return Response(status_code=304, headers=tag)
            return HTMLResponse(body, status, headers=tag if status == 200 else None)

        return endpoint

    def _made(
        self, template: str, view: View, arguments: dict[str, Any], base: dict[str, Any]
    ) -> tuple[int, bytes]:
        """Status and text of a page, made of one state of the database."""
        base = base | {"version": __version__, "place": str(self.runs_dir), "is_file": False}
        try:
            store = Store.open(self.runs_dir, create=False, to_look=True)
        except PassagentError as error:
            return 200, self._text("nothing.html", base | {"said": str(error)})
        try:
            with store, store.reading():
                return 200, self._text(template, base | view(store, **arguments))
        except UsageError as error:
            return 404, self._text("missing.html", base | {"said": str(error)})
        except PassagentError as error:
            return 500, self._text("missing.html", base | {"said": str(error)})

    def _text(self, template: str, context: dict[str, Any]) -> bytes:
        return self.templates.get_template(template).render(context).encode()


def create_app(runs_dir: Path, access: Access) -> Starlette:
    """The application, for who has access."""
    page = Site(runs_dir).page
    return Starlette(
        routes=[
            Route("/", page("runs.html", views.all_runs)),
            Route("/run/{name}", page("run.html", views.now)),
            Route("/run/{name}/now", page("run_now.html", views.now, is_part=True)),
            Route("/run/{name}/figures", page("run_figures.html", views.figures, is_part=True)),
            Route("/run/{name}/tree", page("tree.html", views.tree)),
            Route("/run/{name}/episode/{number}", page("episode.html", views.episode)),
            Route("/node/{number:int}", page("node.html", views.node)),
            Route("/node/{number:int}/diff/{other:int}", page("diff.html", views.compared_nodes)),
            Route("/node/{number:int}/plan", page("plan.html", views.plan)),
            Route("/task/{key}", page("task.html", views.task)),
            Route("/hints", page("hints.html", views.hints)),
            Mount("/assets", StaticFiles(directory=HERE / "assets")),
        ],
        middleware=[Middleware(Guard, access=access), Middleware(GZipMiddleware, minimum_size=2000)],
    )


def serve(runs_dir: Path, options: Mapping[str, Any]) -> None:
    """Serve the page until a signal ends it; its address is printed once it answers.

    options: those of `passagent view` (PageOptions). Raises UsageError where the port is taken.
    """
    host, port = options["host"], options["port"]
    token = options["token"] or (None if is_loopback(host) else secrets.token_urlsafe(24))
    access = Access(token, frozenset(name.lower() for name in (*(options["allow_host"] or ()), host)))
    app = create_app(runs_dir.absolute(), access)
    with listen(host, port, f"--host {host} --port {port}") as listener:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2
        )
        query = f"?token={token}" if token else ""
        print(f"http://{shown_host(host)}:{listener.getsockname()[1]}/{query}", flush=True)
        uvicorn.Server(config).run(sockets=[listener])
