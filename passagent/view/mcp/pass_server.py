"""The MCP server: tools from agent/tool_specs.py, resources for tasks and nodes, and our system prompt."""

from __future__ import annotations

import functools
import inspect
import json
import re
from typing import Any
from urllib.parse import quote

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, UnexpectedToolError
from mcp.server.mcpserver.exceptions import ToolError as ToolFailed
from mcp.server.mcpserver.tools import Tool
from mcp_types import Resource, ToolAnnotations

from passagent import __version__
from passagent.agent.prompt import task_text
from passagent.agent.taskfiles import ToolError
from passagent.agent.toolbox import check_arguments
from passagent.errors import PassagentError
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
