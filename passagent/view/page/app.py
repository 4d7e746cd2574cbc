"""The page as a starlette application: addresses to views, views to templates, and what was not changed."""

from __future__ import annotations

import hashlib
import inspect
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from passagent import __version__
from passagent.errors import PassagentError, UsageError
from passagent.store import Store, nodes, runs, sessions
from passagent.store.pass_library import library_path
from passagent.view.page import views
from passagent.view.page.guard import Access, Guard, is_loopback, listen, shown_host
from passagent.view.page.rendering import HERE, Relative, environment

View = Callable[..., dict[str, Any]]


class Site:
    """A runs directory as pages."""

    def __init__(self, runs_dir: Path, access: Access, control: bool, library: Path | None) -> None:
        self.runs_dir = runs_dir
        self.library = library
        self.access = access
        self.control = control
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
        base = base | {
            "version": __version__,
            "place": str(self.runs_dir),
            "csrf": self.access.csrf if self.control else "",
            "sections": {
                "collect": False,
                "hints": False,
                "bench": bool(views.benches(self.runs_dir)),
                "library": self.library is not None and self.library.is_file(),
            },
            "is_file": False,
        }
        try:
            store = Store.open(self.runs_dir, create=False, to_look=True)
        except PassagentError as error:
            return 200, self._text("nothing.html", base | {"said": str(error)})
        try:
            with store, store.reading():
                base["sections"] |= views.sections(store)
                return 200, self._text(template, base | view(store, **arguments))
        except UsageError as error:
            return 404, self._text("missing.html", base | {"said": str(error)})
        except PassagentError as error:
            return 500, self._text("missing.html", base | {"said": str(error)})

    def _text(self, template: str, context: dict[str, Any]) -> bytes:
        return self.templates.get_template(template).render(context).encode()

    async def ask(self, request: Request) -> Response:
        """POST of a button: stop a live run, as the command does."""
        form = {
            key: value[0] for key, value in parse_qs((await request.body()).decode(errors="replace")).items()
        }
        if not self.control:
            return PlainTextResponse("nothing can be changed here: start passagent view with --control", 403)
        if not secrets.compare_digest(form.get("csrf", "").encode(), self.access.csrf.encode()):
            return PlainTextResponse("the form is of another start of passagent view: load it again", 403)
        what, name = form.get("what", ""), request.path_params["name"]
        if what not in ("stop", "stop_after_episodes"):
            return PlainTextResponse(f"{what:.40}: not something that a run can be asked", 409)

        def stop() -> None:
            with Store.open(self.runs_dir, create=False) as store:
                sessions.ask_to_stop(store, runs.get_run(store, name), after_episodes=what != "stop")

        try:
            await run_in_threadpool(stop)
        except UsageError as error:
            return PlainTextResponse(str(error), 409)
        return RedirectResponse(f"./{name}", 303)

    async def file(self, request: Request) -> Response:
        """A candidate's file as it is, for one that a page cuts."""
        number, path = request.path_params["number"], request.path_params["file"]

        def read() -> str:
            with Store.open(self.runs_dir, create=False, to_look=True) as store:
                files = nodes.get_files(store, nodes.get_node(store, number))
            if path not in files:
                raise UsageError(f"node {number} has no file {path!r:.80}")
            return files[path]

        try:
            text = await run_in_threadpool(read)
        except PassagentError as error:
            return PlainTextResponse(str(error), 404)
        name = path.rpartition("/")[2]
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
        }
        return PlainTextResponse(text.encode(errors="backslashreplace"), headers=headers)


def create_app(
    runs_dir: Path, access: Access, control: bool = False, library: Path | None = None
) -> Starlette:
    """The application; `control`: with buttons that act on live runs; `library`: the file of one."""
    site = Site(runs_dir, access, control, library)
    page = site.page
    return Starlette(
        routes=[
            Route("/", page("runs.html", views.all_runs)),
            Route("/run/{name}", page("run.html", views.run)),
            Route("/run/{name}", site.ask, methods=["POST"]),
            Route("/run/{name}/now", page("run_now.html", views.now, is_part=True)),
            Route("/run/{name}/figures", page("run_figures.html", views.figures, is_part=True)),
            Route("/run/{name}/tree", page("tree.html", views.tree)),
            Route("/run/{name}/episode/{number}", page("episode.html", views.episode)),
            Route("/node/{number:int}", page("node.html", views.node)),
            Route("/node/{number:int}/diff/{other:int}", page("diff.html", views.compared_nodes)),
            Route("/node/{number:int}/plan", page("plan.html", views.plan)),
            Route("/node/{number:int}/file/{file:path}", site.file),
            Route("/task/{key}", page("task.html", views.task)),
            Route("/compare", page("compare.html", views.compare)),
            Route("/collect", page("collect.html", views.collect)),
            Route("/hints", page("hints.html", views.hints)),
            Route("/library", page("library.html", lambda store: views.library(library))),
            Route("/library/{word}", page("kept.html", lambda store, word: views.kept_pass(library, word))),
            Route("/bench", page("benches.html", views.all_benches)),
            Route("/bench/{name}", page("bench.html", views.bench)),
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
    library = library_path(options["library"], runs_dir)
    app = create_app(runs_dir.absolute(), access, options["control"], library)
    with listen(host, port, f"--host {host} --port {port}") as listener:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2
        )
        query = f"?token={token}" if token else ""
        print(f"http://{shown_host(host)}:{listener.getsockname()[1]}/{query}", flush=True)
        uvicorn.Server(config).run(sockets=[listener])
