"""The MCP server: tools from agent/tool_specs.py, resources for tasks and nodes, and our system prompt.

It serves one client on stdin and stdout, or many at an address.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any
from urllib.parse import quote

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, UnexpectedToolError
from mcp.server.mcpserver.exceptions import ToolError as ToolFailed
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import func_metadata
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import Resource, ToolAnnotations
from starlette.responses import PlainTextResponse

from passagent import __version__
from passagent.agent.prompt import task_text
from passagent.agent.toolbox import check_arguments
from passagent.agent.workspace import ToolError
from passagent.errors import EXIT_INTERRUPTED, PassagentError, UsageError
from passagent.models.types import ToolSpec, clean
from passagent.store import nodes
from passagent.store.runs import CLIENTS
from passagent.view.mcp import answers
from passagent.view.mcp.client_service import INSTRUCTIONS, read_file
from passagent.view.mcp.served_tools import NOTED, Caller, PassTools, job_answer
from passagent.view.page.app import is_loopback, listen, shown_host

MAX_NAME = 60
"""Characters of a client's name and of its version."""
MAX_LISTED = 200
"""Tasks in the list of resources."""
READS = {
    "list_tasks", "read_task", "check", "wait", "search_knowledge", "read_document",
    "history", "best",
}  # fmt: skip
"""Tools that change nothing."""
AGAIN = READS | {"evaluate", "cancel"}
"""Tools that may be called again with the same arguments, to no other effect."""


class ServedTool(Tool):
    """A tool with the schema of its spec. Mistakes and failures are words for the client's model."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """Call the tool's method. Raises ToolFailed."""

        async def report(seconds: float, line: str) -> None:
            await context.report_progress(seconds, message=answers.harmless(line))

        client, service = client_of(context), self.fn.__self__  # type: ignore[attr-defined]
        spec = ToolSpec(self.name, self.description, self.parameters)
        try:
            checked = check_arguments(spec, clean(arguments))
            answer = await self.fn(Caller(client, report), **checked)
            if self.name in NOTED and "task" in checked:
                service.note(client, checked["task"], (self.name, checked, answer.text))
        except PassagentError as error:
            raise ToolFailed(answers.harmless(str(error))) from error
        except Exception as error:
            raise UnexpectedToolError(f"Error executing tool {self.name}") from error
        return self.fn_metadata.convert_result(answer) if convert_result else answer


class PassServer(MCPServer):
    """Lists the tasks as resources, those that come later, too."""

    service: PassTools

    async def list_resources(self) -> list[Resource]:
        """Tasks, at most MAX_LISTED."""
        names = list(self.service.places())[:MAX_LISTED]
        return [
            Resource(uri=f"task://{quote(name, safe='')}", name=name, mime_type="text/markdown")
            for name in names
        ]


def build(service: PassTools) -> PassServer:
    """Return the server on `service`, which outlives it."""
    served: list[Tool] = [_tool(spec, getattr(service, spec.name)) for spec in service.specs]
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

    @server.prompt(name="write_pass", description="How to write a pass, and the task to write one for.")
    async def write_pass(task: str, ctx: Context) -> str:
        try:
            loaded_task = service.task(task)
            return answers.harmless(await service.prompt(client_of(ctx), loaded_task))
        except PassagentError as error:
            raise ValueError(answers.harmless(str(error))) from error

    return server


def client_of(context: Context) -> str:
    """`mcp/NAME/VERSION` of the client, which says of itself what it likes."""
    params = context.session.client_params
    client_info = (params.client_info.name, params.client_info.version) if params else ("unknown", "")
    words = [re.sub(r"[^\w.+@-]+", "-", word, flags=re.A)[:MAX_NAME].strip("-") for word in client_info]
    return "/".join([CLIENTS, *filter(None, words)])


def _tool(spec: ToolSpec, method: Any) -> ServedTool:
    """Make a tool of a method."""
    metadata = func_metadata(method, list(inspect.signature(method).parameters), structured_output=True)
    hints = ToolAnnotations(
        read_only_hint=spec.name in READS,
        destructive_hint=False,
        idempotent_hint=spec.name in AGAIN,
        open_world_hint=False,
    )
    return ServedTool(
        fn=method,
        name=spec.name,
        description=spec.description,
        parameters=spec.parameters,
        fn_metadata=metadata,
        is_async=True,
        annotations=hints,
    )


def _add_resources(server: PassServer, service: PassTools) -> None:
    @server.resource("task://{task}", mime_type="text/markdown")
    async def task(task: str) -> str:
        """A task: its graphs, shapes and dtypes."""
        with _resource():
            return answers.harmless(task_text(await service.context(service.task(task))))

    @server.resource("task://{task}/{+path}", mime_type="text/plain")
    async def task_file(task: str, path: str) -> str:
        """A file of a task."""
        with _resource():
            return answers.harmless(read_file(service.task(task), path))

    @server.resource("run://{run}/node/{node}", mime_type="application/json")
    async def node(run: str, node: str) -> str:
        """A candidate: its files, and what its evaluation says."""
        with _resource():
            return json.dumps(_node(service, run, node))


@contextlib.contextmanager
def _resource() -> Iterator[None]:
    """Say of a PassagentError that there is no such resource."""
    try:
        yield
    except PassagentError as error:
        raise ResourceNotFoundError(answers.harmless(str(error))) from error


def _node(service: PassTools, run: str, number: str) -> dict[str, Any]:
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise ToolError(f"{number[:40]}: a node's number is wanted")
    stored_node = nodes.get_node(service.store, int(number))
    if stored_node.run_id != run:
        raise ToolError(f"run {run[:40]} has no node {stored_node.id}")
    files = nodes.get_files(service.store, stored_node)
    texts = {answers.harmless(name): answers.harmless(text) for name, text in files.items()}
    return job_answer(service, stored_node).model_dump(mode="json") | {"files": texts}


TOKEN = "PASSAGENT_MCP_TOKEN"
"""The environment variable with the token that clients must send."""
MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request: a candidate of several files of 256 kB fits."""
LEAVE_S = 3.0
"""Requests under way have so long when the server is asked to end, s."""

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def serve_stdio(service: PassTools, server: PassServer) -> None:
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


def serve_http(service: PassTools, server: PassServer, address: str) -> None:
    """Serve clients at `HOST:PORT` (port 0: a free one) below /mcp. Raises UsageError; KeyboardInterrupt."""
    import uvicorn

    host, port = parse_address(address)
    listener = listen(host, port, f"--http {address}")
    is_local = is_loopback(host)
    token = os.environ.get(TOKEN) or ("" if is_local else secrets.token_urlsafe(24))
    at = f"http://{shown_host(host)}:{listener.getsockname()[1]}/mcp"
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
        allowed_origins=[f"http://{host}" for host in hosts],
    )
    return server.streamable_http_app(transport_security=security, max_request_body_size=MAX_BODY)


def guarded(app: App, token: str, is_local: bool) -> App:
    """The application behind the token, if there is one; from elsewhere no web page is let in."""

    async def guard(scope: Scope, receive: Any, send: Any) -> None:
        chosen: App = app
        if scope["type"] == "http":
            headers = {name.lower(): value for name, value in scope["headers"]}
            authorization = headers.get(b"authorization", b"")
            if token and not hmac.compare_digest(authorization, f"Bearer {token}".encode()):
                needed = {"www-authenticate": "Bearer"}
                chosen = PlainTextResponse("a bearer token is wanted", 401, headers=needed)
            elif not is_local and b"origin" in headers:
                chosen = PlainTextResponse("web pages are not served", 403)
        await chosen(scope, receive, send)

    return guard


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"--http {text}: write HOST:PORT, such as 127.0.0.1:8765")
    return host.strip("[]"), int(port)
