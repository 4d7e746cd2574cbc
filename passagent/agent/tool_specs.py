"""The definition of a tool, and the words that our agent's tools share with those served over MCP.

Our agent has a workspace: its tools work on the files there; each one's schema stands beside its function. A
client of `passagent mcp` sends its own files along (view/mcp/served_tools.py).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin, get_type_hints

from passagent.models.types import ToolSpec

EDITOR, CHECK, EVALUATOR, KNOWLEDGE = "file_editor", "check", "pass_evaluator", "search_knowledge"
PROFILE = "profile"

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class ToolAnswer:
    """The answer to a tool's call."""

    text: str
    """For the model."""
    data: dict[str, Any] = field(default_factory=dict)
    """For programs, stored beside the text as the message's `data` (models/types.py)."""


MOST = 2
"""Evaluations of an episode under way at once."""


class PendingEvaluations:
    """Evaluations whose results the model has not seen yet, the oldest first.

    An async context: at its end what is under way is waited for, and cancelled if the episode is.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Future[ToolAnswer]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, call_id: str, work: Awaitable[ToolAnswer]) -> None:
        """Evaluate from now on; `work` gives the evaluator's answer."""
        self._tasks[call_id] = asyncio.ensure_future(work)

    async def room(self) -> None:
        """Wait until one more evaluation may be under way."""
        while len(running := [task for task in self._tasks.values() if not task.done()]) >= MOST:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    def take(self) -> tuple[str, ToolAnswer] | None:
        """Return a call and its result, the oldest that is there. Raises what the evaluation raised."""
        call_id = next((name for name, task in self._tasks.items() if task.done()), None)
        if call_id is None:
            return None
        answer = self._tasks.pop(call_id).result()
        return call_id, ToolAnswer(f"[result of {EVALUATOR}, call {call_id}]\n{answer.text}", answer.data)

    async def settle(self) -> None:
        """Wait until all results are there."""
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind and not issubclass(kind, Exception):
            for task in self._tasks.values():
                task.cancel()
        # what one of them raises is either being raised, or is raised again on resume
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@dataclass(frozen=True)
class Tool:
    """A tool: its schema, and `await run(arguments, call_id)`, which may raise ToolError."""

    spec: ToolSpec
    run: Callable[[dict[str, Any], str], Awaitable[ToolAnswer]]
    replay: Callable[[dict[str, Any], dict[str, Any], str], None] | None = None
    """`replay(arguments, data, call_id)`: do to the workspace what a call did whose answer carries `data`; a
    resume begins with it."""
    pending: PendingEvaluations | None = None
    """Evaluations that its calls began and did not wait for."""


RECORDS = (
    "without running any kernel: every file that does not parse, what your host code may not do, with line "
    "and what to write instead, kernels that do not build; else the plan that a call follows: allocations, "
    "launches with grids, bytes moved."
)
JUDGES = "on every graph of the task: integrity rules, matching, correctness, then timing against eager."
TELLS = "the stage reached, what is wrong where, the speedup of each graph and the AS."
KNOWS = "the optimisation knowledge (constraints, guidance, hardware figures, code samples)"
LIMITS = (
    "at most 12 lines: memory, compute, tensor, latency, occupancy, spill, divergence, each with the figure "
    "that shows it and its threshold, and what was not measured."
)
DEEP = {
    "type": "boolean",
    "description": "read hardware counters, too, where there are some: up to 60 s; default false",
}
QUERY = {"type": "string", "description": "keywords, such as: row softmax half precision"}
DOCUMENT = {"type": "string", "description": "path of a document that a search named"}


def schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def described(text: str) -> Callable[[Method], Method]:
    """Make `text` a method's docstring, where it shares words with our agent's tools."""

    def mark(method: Method) -> Method:
        method.__doc__ = text
        return method

    return mark


def method_spec(name: str, method: Callable[..., Any]) -> ToolSpec:
    """Return what a client sees of a tool: its docstring, and its signature as a JSON schema."""
    properties, required = dict[str, Any](), list[str]()
    hints = get_type_hints(method, include_extras=True)
    for parameter in list(inspect.signature(method).parameters.values())[2:]:  # after self and caller
        properties[parameter.name] = _schema(hints[parameter.name])
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return ToolSpec(name, " ".join((method.__doc__ or "").split()), schema(properties, required))


def _schema(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type; of one that may be None that of the other."""
    kinds = {str: "string", int: "integer", bool: "boolean"}
    if get_origin(hint) is Annotated:
        return _schema(hint.__origin__) | {"description": hint.__metadata__[0]}
    if get_origin(hint) is list:
        return {"type": "array", "items": _schema(get_args(hint)[0])}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _schema(get_args(hint)[1])}
    return {"type": kinds[hint]} if hint in kinds else _schema(get_args(hint)[0])


CURSOR = {"type": "string", "description": "go on where an answer was cut: its `cursor`"}
