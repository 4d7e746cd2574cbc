"""The MCP server: tools from agent/tool_specs.py, resources for tasks and nodes, and our system prompt.

It serves one client on stdin and stdout, or many at an address.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import inspect
import ipaddress
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, UnexpectedToolError
from mcp.server.mcpserver.exceptions import ToolError as ToolFailed
from mcp.server.mcpserver.tools import Tool
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import Resource, ToolAnnotations

from passagent import __version__
from passagent.agent.prompt import task_text
from passagent.agent.taskfiles import ToolError
from passagent.agent.toolbox import check_arguments
from passagent.errors import EXIT_INTERRUPTED, PassagentError, UsageError
from passagent.models.types import ToolSpec
from passagent.models.wire import clean
from passagent.search.candidates import tell
from passagent.store import nodes
from passagent.store.runs import CLIENTS
from passagent.view.mcp import answers
from passagent.view.mcp.catalog import read_file
from passagent.view.mcp.client_service import INSTRUCTIONS, Service
from passagent.view.mcp.served_tools import Caller, Tools

MAX_NAME = 60
"""Characters of a client's name and of its version."""
MAX_LISTED = 200
"""Tasks in the list of resources."""
READS = {
    "list_tasks", "read_task", "check", "wait", "search_knowledge", "read_document",
    "search_code", "history", "best", "similar",
}  # fmt: skip
"""Tools that change nothing."""
AGAIN = READS | {"evaluate", "cancel"}
"""Tools that may be called again with the same arguments, to no other effect."""


class ServedTool(Tool):
    """A tool with the schema of its spec. Mistakes and failures are words for the client's model."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """See Tool.run. Raises ToolFailed."""
        try:
            given = check_arguments(ToolSpec(self.name, self.description, self.parameters), clean(arguments))
            return await super().run(given, context, convert_result)
        except ToolError as error:
            raise ToolFailed(answers.harmless(str(error))) from error
        except UnexpectedToolError as error:
            if isinstance(error.__cause__, PassagentError):
                raise ToolFailed(answers.harmless(str(error.__cause__))) from error.__cause__
            raise


class PassServer(MCPServer):
    """Lists the tasks as resources, those that come later, too."""

    service: Service

    async def list_resources(self) -> list[Resource]:
        """Tasks, at most MAX_LISTED."""
        names = list(self.service.catalog.look())[:MAX_LISTED]
        return [
            Resource(uri=f"task://{quote(name, safe='')}", name=name, mime_type="text/markdown")
            for name in names
        ]


def build(service: Service) -> PassServer:
    """The server on `service`, which outlives it."""
    tools = Tools(service)
    served: list[Tool] = [_tool(spec, getattr(tools, spec.name)) for spec in service.specs]
    server = PassServer(
        "passagent",
        title="passagent",
        version=__version__,
        instructions=INSTRUCTIONS,
        tools=served,
        log_level="WARNING",
    )
    server.service = service
    _add_resources(server, service)
    _add_prompts(server, service)
    return server


def client_of(context: Context) -> str:
    """`mcp/NAME/VERSION` of the client, which says of itself what it likes."""
    params = context.session.client_params
    known = (params.client_info.name, params.client_info.version) if params else ("unknown", "")
    words = [re.sub(r"[^\w.+@-]+", "-", word, flags=re.A)[:MAX_NAME].strip("-") for word in known]
    return "/".join([CLIENTS, *filter(None, words)])


def _tool(spec: ToolSpec, method: Any) -> ServedTool:
    """The method as a tool; its first parameter, the caller, is not the client's to give."""

    @functools.wraps(method)
    async def call(*, ctx: Context, **arguments: Any) -> Any:
        async def report(seconds: float, line: str) -> None:
            await ctx.report_progress(seconds, message=answers.harmless(line))

        return await method(Caller(client_of(ctx), report), **arguments)

    signature = inspect.signature(method, eval_str=True)
    parameters = [one for name, one in signature.parameters.items() if name != "caller"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [one.replace(kind=keyword) for one in parameters]
    context = inspect.Parameter("ctx", keyword, annotation=Context)
    call.__signature__ = signature.replace(parameters=[*parameters, context])  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in [*parameters, context]}
    call.__annotations__["return"] = signature.return_annotation
    del call.__wrapped__  # type: ignore[attr-defined]
    made = ServedTool.from_function(
        call,
        name=spec.name,
        description=spec.description,
        context_kwarg="ctx",
        annotations=ToolAnnotations(
            read_only_hint=spec.name in READS,
            destructive_hint=False,
            idempotent_hint=spec.name in AGAIN,
            open_world_hint=spec.name == "extract",
        ),
        structured_output=True,
    )
    made.parameters = spec.parameters
    assert isinstance(made, ServedTool)
    return made


def _add_resources(server: PassServer, service: Service) -> None:
    @server.resource("task://{task}", mime_type="text/markdown")
    async def task(task: str) -> str:
        """A task: its graphs, shapes and dtypes."""
        with _told():
            return answers.harmless(task_text(await service.context(service.catalog.task(task))))

    @server.resource("task://{task}/{+path}", mime_type="text/plain")
    async def task_file(task: str, path: str) -> str:
        """A file of a task."""
        with _told():
            return answers.harmless(read_file(service.catalog.task(task), path))

    @server.resource("run://{run}/node/{node}", mime_type="application/json")
    async def node(run: str, node: str) -> str:
        """A candidate: its files, and what its evaluation says."""
        with _told():
            return json.dumps(_node(service, run, node))


class _told:
    """Inside, a PassagentError says that there is no such resource."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if isinstance(error, PassagentError):
            raise ResourceNotFoundError(answers.harmless(str(error))) from error


def _node(service: Service, run: str, number: str) -> dict[str, Any]:
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise ToolError(f"{number[:40]}: a node's number is wanted")
    found = nodes.get_node(service.store, int(number))
    if found.run_id != run:
        raise ToolError(f"run {run[:40]} has no node {found.id}")
    files = nodes.get_files(service.store, found)
    is_done = found.state == "done"
    return {
        "run": found.run_id,
        "node": found.id,
        "parent": found.parent_id,
        "state": found.state,
        "status": found.status,
        "as_score": answers.finite(found.as_score),
        "files": {answers.harmless(name): answers.harmless(text) for name, text in files.items()},
        "evaluation": answers.fenced(answers.harmless(tell(service.store, found, files)))
        if is_done
        else None,
    }


def _add_prompts(server: PassServer, service: Service) -> None:
    @server.prompt(name="write_pass", description="How to write a pass, and the task to write one for.")
    async def write_pass(task: str, ctx: Context) -> str:
        try:
            found = service.catalog.task(task)
            return answers.harmless(await service.prompt(client_of(ctx), found))
        except PassagentError as error:
            raise ValueError(answers.harmless(str(error))) from error


TOKEN = "PASSAGENT_MCP_TOKEN"
"""The environment variable with the token that clients must send."""
MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request: a candidate of several files of 256 kB fits."""
LEAVE_S = 3.0
"""Requests under way have so long when the server is asked to end, s."""

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def serve_stdio(service: Service, server: PassServer) -> None:
    """Serve the client behind stdin and stdout until it closes stdin, or a signal ends the process."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        ending: list[asyncio.Task[None]] = []

        async def leave(code: int) -> None:
            await service.close()
            if code == EXIT_INTERRUPTED:
                print("passagent: interrupted", file=sys.stderr, flush=True)
            os._exit(code)  # a thread reads stdin, and nothing ends it

        def end(code: int) -> None:
            ending.append(loop.create_task(leave(code)))

        loop.add_signal_handler(signal.SIGINT, end, EXIT_INTERRUPTED)
        loop.add_signal_handler(signal.SIGTERM, end, 128 + signal.SIGTERM)
        try:
            await server.run_stdio_async()
        finally:
            await service.close()

    anyio.run(work)


def serve_http(service: Service, server: PassServer, address: str) -> None:
    """Serve clients at `HOST:PORT` (port 0: a free one) below /mcp. Raises UsageError; KeyboardInterrupt."""
    import uvicorn

    host, port = parse_address(address)
    listener = _listen(host, port)
    is_local = is_loopback(host)
    token = os.environ.get(TOKEN) or ("" if is_local else secrets.token_urlsafe(24))
    shown = f"[{host}]" if ":" in host else host
    at = f"http://{shown}:{listener.getsockname()[1]}/mcp"
    app = guarded(_app(server, is_local), token, is_local)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=int(LEAVE_S))

    class Serving(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            await service.close()  # before the signal that ended it is raised once more

    print(f"passagent mcp: serving at {at}", file=sys.stderr, flush=True)
    if token and TOKEN not in os.environ:
        print(f"clients must send the header Authorization: Bearer {token}", file=sys.stderr, flush=True)
    asyncio.run(Serving(config).serve(sockets=[listener]))


def _app(server: PassServer, is_local: bool) -> App:
    hosts = ["127.0.0.1:*", "localhost:*", "[::1]:*"]
    security = TransportSecuritySettings(
        # elsewhere the host may have any name; what guards there is the token
        enable_dns_rebinding_protection=is_local,
        allowed_hosts=hosts,
        allowed_origins=[f"http://{one}" for one in hosts],
    )
    return server.streamable_http_app(transport_security=security, max_request_body_size=MAX_BODY)


def guarded(app: App, token: str, is_local: bool) -> App:
    """The application behind the token, if there is one; from elsewhere no web page is let in."""

    async def guard(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.lower(): value for name, value in scope["headers"]}
            given = headers.get(b"authorization", b"")
            if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
                return await _refuse(send, 401, "a bearer token is wanted")
            if not is_local and b"origin" in headers:
                return await _refuse(send, 403, "web pages are not served")
        return await app(scope, receive, send)

    return guard


async def _refuse(send: Any, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"--http {text}: write HOST:PORT, such as 127.0.0.1:8765")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"--http {host}:{port}: {error.strerror or error}") from error
