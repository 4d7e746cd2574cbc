"""The page as a starlette application: addresses to views, views to templates, and what was not changed."""

from __future__ import annotations

import hashlib
import inspect
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

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
from passagent.store.database import DATABASE
from passagent.view.page import views
from passagent.view.page.guard import Access, Guard
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
        self.freshness = Freshness(runs_dir)

    def page(
        self,
        template: str,
        view: View,
        of_files: bool = False,
        of_library: bool = False,
        is_part: bool = False,
    ) -> Callable[..., Any]:
        """The endpoint that shows `view`, a function of the store and of what the address names.

        of_files: it shows files beside the database, too, so that the database shows no change.
        of_library: it shows the library.
        is_part: of the page whose address is one level above: links are seen from there.
        """
        names = inspect.signature(view).parameters.keys() - {"store"}

        async def endpoint(request: Request) -> Response:
            query = {key: value for key, value in request.query_params.items() if key in names}
            address, asked_tag = str(request.url), request.headers.get("if-none-match")
            library = self.library if of_library else None
            version = None if of_files else await run_in_threadpool(self.freshness.version, library)
            tag = self.freshness.known_tag(address, version)
            if tag is not None and tag == asked_tag:
                return Response(status_code=304, headers={"ETag": tag})
            arguments = query | request.path_params
            path = request.url.path.removeprefix(request.scope.get("root_path", ""))
            here = path.rpartition("/")[2] + (f"?{request.url.query}" if request.url.query else "")
            base = {"go": Relative(path.rpartition("/")[0] if is_part else path), "here": here or "./"}
            status, body = await run_in_threadpool(self._made, template, view, arguments, base)
            if status != 200:
                return HTMLResponse(body, status)
            tag = self.freshness.tag(address, version, body)
            if tag == asked_tag:
                return Response(status_code=304, headers={"ETag": tag})
            return HTMLResponse(body, headers={"ETag": tag})

        return endpoint

    def _made(
        self, template: str, view: View, given: dict[str, Any], base: dict[str, Any]
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
                return 200, self._text(template, base | view(store, **given))
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
        try:
            await run_in_threadpool(self._ask, name, what)
        except UsageError as error:
            return PlainTextResponse(str(error), 409)
        return RedirectResponse(f"./{name}", 303)

    def _ask(self, name: str, what: str) -> None:
        if what not in ("stop", "stop_after_episodes"):
            raise UsageError(f"{what:.40}: not something that a run can be asked")
        with Store.open(self.runs_dir, create=False) as store:
            sessions.ask_to_stop(store, runs.get_run(store, name), after_episodes=what != "stop")

    async def file(self, request: Request) -> Response:
        """A candidate's file as it is, for one that a page cuts."""
        try:
            text = await run_in_threadpool(
                self._file, request.path_params["number"], request.path_params["file"]
            )
        except PassagentError as error:
            return PlainTextResponse(str(error), 404)
        name = request.path_params["file"].rpartition("/")[2]
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quoted(name)}"}
        return PlainTextResponse(text.encode(errors="backslashreplace"), headers=headers)

    def _file(self, number: int, name: str) -> str:
        with Store.open(self.runs_dir, create=False, to_look=True) as store:
            files = nodes.get_files(store, nodes.get_node(store, number))
        if name not in files:
            raise UsageError(f"node {number} has no file {name!r:.80}")
        return files[name]


def quoted(name: str) -> str:
    """A file's name in a header."""
    return quote(name, safe="", errors="replace")


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
            Route("/task/{key}", page("task.html", views.task, of_files=True)),
            Route("/compare", page("compare.html", views.compare)),
            Route("/collect", page("collect.html", views.collect)),
            Route("/hints", page("hints.html", views.hints)),
            Route("/library", page("library.html", lambda store: views.library(library), of_library=True)),
            Route(
                "/library/{word}",
                page("kept.html", lambda store, word: views.kept_pass(library, word), of_library=True),
            ),
            Route("/bench", page("benches.html", views.all_benches, of_files=True)),
            Route("/bench/{name}", page("bench.html", views.bench, of_files=True)),
            Mount("/assets", StaticFiles(directory=HERE / "assets")),
        ],
        middleware=[Middleware(Guard, access=access), Middleware(GZipMiddleware, minimum_size=2000)],
    )


_REMEMBERED = 512
"""Addresses whose last answer is known."""
LOOK_AGAIN_S = 5.0
"""A page is made anew after this time at the latest: a process that dies changes no file."""


class Freshness:
    """The version of a runs directory, and the tags (ETag) of what was made of it.

    A tag is a hash of the page, so that who has it need not be sent it again. Where the version is that of
    the last answer, its tag is known without making the page.
    """

    def __init__(self, runs_dir: Path) -> None:
        self.database = runs_dir / DATABASE
        self._tags: dict[str, tuple[str, str]] = {}

    def version(self, library: Path | None = None) -> str:
        """Return what changes with every commit to the database, or to a library, and every LOOK_AGAIN_S."""
        stamps = [time.time() // LOOK_AGAIN_S]
        for database in (self.database, library) if library else (self.database,):
            for path in (database, database.with_name(f"{database.name}-wal")):
                with suppress(FileNotFoundError):  # the log goes when the last one who writes does
                    state = path.stat()
                    stamps += [state.st_ino, state.st_mtime_ns, state.st_size]
        return str(stamps)

    def known_tag(self, address: str, version: str | None) -> str | None:
        """Return the tag of the page at `address`, if it was made of this version."""
        last_version, tag = self._tags.get(address, (None, None))
        return tag if version is not None and last_version == version else None

    def tag(self, address: str, version: str | None, body: bytes) -> str:
        """Return the tag of a page that was just made of `version`; None: of files that may change."""
        tag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
        if version is not None:
            if len(self._tags) >= _REMEMBERED:
                self._tags.clear()
            self._tags[address] = version, tag
        return tag
