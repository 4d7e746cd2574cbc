"""What a tool is, the words that our agent's tools share with those served over MCP, and these served ones.

Our agent has a workspace: its tools work on the files there; each one's schema stands beside its function. A
client of `passagent mcp` has files of its own, which it sends along.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from passagent.evaluator.result import MANIFEST
from passagent.experience.code_search import KINDS
from passagent.models.types import ToolSpec

if TYPE_CHECKING:
    from passagent.agent.evaluator_tool import PendingEvaluations

EDITOR, CHECK, EVALUATOR, KNOWLEDGE = "file_editor", "check", "pass_evaluator", "search_knowledge"
PROFILE, CODE = "profile", "search_code"


@dataclass(frozen=True)
class Answer:
    """What a tool's call led to."""

    text: str
    """For the model."""
    data: dict[str, Any] = field(default_factory=dict)
    """For programs, stored beside the text as the message's `data` (models/types.py)."""


@dataclass(frozen=True)
class Tool:
    """A tool: its schema, and `await run(arguments, call_id)`, which may raise ToolError."""

    spec: ToolSpec
    run: Callable[[dict[str, Any], str], Awaitable[Answer]]
    replay: Callable[[dict[str, Any], dict[str, Any], str], None] | None = None
    """`replay(arguments, data, call_id)`: do to the workspace what a call did whose answer carries `data`; a
    resume begins with it."""
    pending: PendingEvaluations | None = None
    """What its calls began and did not wait for."""


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


CURSOR = {"type": "string", "description": "go on where an answer was cut: its `cursor`"}
CODE_SPEC = ToolSpec(
    CODE,
    "Search code: sample passes and the sources of the kernel language that is installed. kind string "
    "gives `file:line: text`; kind file lists files by a part of their name, and shows one whose whole name "
    "(or name:line) you give.",
    schema(
        {
            "query": {
                "type": "string",
                "description": "string: looked for in each line; file: part of a name",
            },
            "kind": {"type": "string", "enum": list(KINDS), "description": "default string"},
            "cursor": CURSOR,
        },
        ["query"],
    ),
)
"""The same for our agent and for clients."""

_TASK = {"type": "string", "description": "a task's name, as list_tasks gives it"}
_FILES = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": f"the pass directory: file name to text, *.py modules and {MANIFEST}",
}
_JOB = {"type": "integer", "description": "the job's number, as evaluate gave it"}


def _served(name: str, does: str, properties: dict[str, Any], required: list[str] | None = None) -> ToolSpec:
    needed = list(properties) if required is None else required
    return ToolSpec(name, does, schema(properties, needed))


SERVED = {
    spec.name: spec
    for spec in (
        _served("list_tasks", "List the tasks: their names, operators and graphs.", {"cursor": CURSOR}, []),
        _served(
            "read_task",
            "Read a task: its graphs' sources, shapes and dtypes; or, with path, one of its files.",
            {
                "task": _TASK,
                "path": {"type": "string", "description": "such as graph_list.txt; a directory is listed"},
                "cursor": CURSOR,
            },
            ["task"],
        ),
        _served(
            CHECK,
            f"Record a pass directory {RECORDS} It is no evaluation; evaluate begins with the same.",
            {"task": _TASK, "files": _FILES, "cursor": CURSOR},
            ["task", "files"],
        ),
        _served(
            "evaluate",
            f"Evaluate a pass directory {JUDGES} Tells {TELLS} It waits at most 45 s: if the state is "
            "`running` then, go on with wait(job). The same files again are the same job.",
            {"task": _TASK, "files": _FILES},
        ),
        _served(
            "wait",
            "Wait for a job, and read its result. Call it as often as you like, also after a restart of the "
            "server.",
            {
                "job": _JOB,
                "seconds": {"type": "integer", "description": "wait so long at most, 0 to 45; default 45"},
                "cursor": CURSOR,
            },
            ["job"],
        ),
        _served(
            PROFILE,
            f"What limits the candidate of a job that is done: {LIMITS}",
            {"job": _JOB, "deep": DEEP},
            ["job"],
        ),
        _served("cancel", "Stop a job that you no longer need.", {"job": _JOB}),
        _served(
            KNOWLEDGE,
            f"Search {KNOWS} by keywords; read_document reads a document that was found. With task, what "
            "names its operators comes first.",
            {"query": QUERY, "task": _TASK},
            ["query"],
        ),
        _served(
            "read_document",
            "Read a knowledge document. index.md is the map of all.",
            {"path": DOCUMENT, "cursor": CURSOR},
            ["path"],
        ),
        CODE_SPEC,
        _served(
            "similar",
            "Read passes that worked for this task or for similar ones, and why each was taken.",
            {"task": _TASK, "cursor": CURSOR},
            ["task"],
        ),
        _served(
            "history",
            "List what was evaluated on a task so far, by you and by others, the newest first.",
            {"task": _TASK, "cursor": CURSOR},
            ["task"],
        ),
        _served(
            "best",
            "The best correct pass for a task that was measured on this machine; with path, a file of it.",
            {"task": _TASK, "path": {"type": "string", "description": "a file of it"}, "cursor": CURSOR},
            ["task"],
        ),
        _served(
            "package",
            "Write the best passes of tasks as one package, which torch.compile loads.",
            {
                "tasks": {"type": "array", "items": _TASK, "description": "tasks that have a correct pass"},
                "name": {"type": "string", "description": "of the package: letters, digits, - and _"},
            },
        ),
        _served(
            "extract",
            "Write the graphs of a model as tasks. It runs the model's code without a sandbox.",
            {
                "factory": {
                    "type": "string",
                    "description": "FILE.py:FUNCTION; the function returns `module, example_inputs`",
                },
                "name": {"type": "string", "description": "of the new tasks: letters, digits, - and _"},
                "regions": {
                    "type": "boolean",
                    "description": "cut the model into the regions that Inductor would fuse; default true",
                },
            },
            ["factory", "name"],
        ),
    )
}
"""The tools that `passagent mcp` serves, as a client is told of them."""
