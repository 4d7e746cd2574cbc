"""The definition of a tool, and the words that our agent's tools share with those served over MCP.

Our agent has a workspace: its tools work on the files there; each one's schema stands beside its function. A
client of `passagent mcp` sends its own files along (view/mcp/served_tools.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

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


@dataclass(frozen=True)
class Tool:
    """A tool: its schema, and `await run(arguments, call_id)`, which may raise ToolError."""

    spec: ToolSpec
    run: Callable[[dict[str, Any], str], Awaitable[ToolAnswer]]
    replay: Callable[[dict[str, Any], dict[str, Any], str], None] | None = None
    """`replay(arguments, data, call_id)`: do to the workspace what a call did whose answer carries `data`; a
    resume begins with it."""


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
