"""What a model is told of each tool: one table for our own agent's tools and for those served over MCP.

Our agent has a workspace: its tools work on the files there. A client of `passagent mcp` has files of its
own, which it sends along. What both tools do is said once, here.
"""

from __future__ import annotations

from typing import Any

from passagent.agent.editor import COMMANDS
from passagent.agent.taskfiles import TASK
from passagent.evaluator.result import MANIFEST
from passagent.experience.code_search import KINDS
from passagent.models.types import ToolSpec

EDITOR, CHECK, EVALUATOR, KNOWLEDGE = "file_editor", "check", "pass_evaluator", "search_knowledge"
PROFILE = "profile"
CODE = "search_code"

_RECORDS = (
    "without running any kernel: every file that does not parse, what your host code may not do, with line "
    "and what to write instead, kernels that do not build; else the plan that a call follows: allocations, "
    "launches with grids, bytes moved."
)
_JUDGES = "on every graph of the task: integrity rules, matching, correctness, then timing against eager."
_TELLS = "the stage reached, what is wrong where, the speedup of each graph and the AS."
_KNOWS = "the optimisation knowledge (constraints, guidance, hardware figures, code samples)"
_LIMITS = (
    "at most 12 lines: memory, compute, tensor, latency, occupancy, spill, divergence, each with the figure "
    "that shows it and its threshold, and what was not measured."
)
_DEEP = {
    "type": "boolean",
    "description": "read hardware counters, too, where there are some: up to 60 s; default false",
}
_QUERY = {"type": "string", "description": "keywords, such as: row softmax half precision"}
_DOCUMENT = {"type": "string", "description": "path of a document that a search named"}


def _schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_CURSOR = {"type": "string", "description": "go on where an answer was cut: its `cursor`"}
_CODE = _schema(
    {
        "query": {
            "type": "string",
            "description": "string: looked for in each line; file: part of a name",
        },
        "kind": {"type": "string", "enum": list(KINDS), "description": "default string"},
        "cursor": _CURSOR,
    },
    ["query"],
)
_SEARCHES_CODE = (
    "Search code: sample passes and the sources of the kernel language that is installed. kind string "
    "gives `file:line: text`; kind file lists files by a part of their name, and shows one whose whole name "
    "(or name:line) you give."
)

SPECS = {
    EDITOR: ToolSpec(
        EDITOR,
        "View and edit the files of your pass directory. Paths are relative to it; "
        f"'{TASK}/...' is the task, read-only. Only *.py modules and {MANIFEST} can be written.\n"
        "- view: a file with line numbers (view_range [first, last]: these lines only; last -1: to the end), "
        "or a directory's listing ('.').\n"
        "- create: write file_text to path, replacing the file if it exists.\n"
        "- str_replace: replace old_str, which must occur exactly once (copied exactly, with its whitespace, "
        "without line numbers), by new_str.\n"
        "- insert: put new_str after line insert_line (0: at the beginning).\n"
        "- undo_edit: take the last edit of path back.\n"
        "- restore: take the whole directory (path '.') back to an evaluated version, by the number that "
        "pass_evaluator gave it; 0 is what the episode began with.",
        _schema(
            {
                "command": {"type": "string", "enum": list(COMMANDS)},
                "path": {
                    "type": "string",
                    "description": f"such as FusedAddRelu.py, {MANIFEST} or {TASK}/graph_list.txt",
                },
                "file_text": {"type": "string", "description": "create: the whole file"},
                "old_str": {"type": "string", "description": "str_replace: the text to replace"},
                "new_str": {"type": "string", "description": "str_replace, insert: the new text"},
                "insert_line": {
                    "type": "integer",
                    "description": "insert: the line after which new_str goes",
                },
                "view_range": {
                    "type": "array",
                    "items": {"type": "integer"},
                    "description": "view: [first, last]",
                },
                "version": {"type": "integer", "description": "restore: the version's number"},
            },
            ["command", "path"],
        ),
    ),
    CHECK: ToolSpec(
        CHECK,
        f"Record your pass directory as it is now {_RECORDS} Takes no "
        "arguments and costs no evaluation. pass_evaluator begins with the same.",
        _schema({}, []),
    ),
    EVALUATOR: ToolSpec(
        EVALUATOR,
        f"Evaluate your pass directory as it is now {_JUDGES} Returns {_TELLS} "
        "Evaluations are limited; what matches nothing or gives no plan uses none. With wait false you go on "
        "at once, such as with the next version, and a later answer ends with the result.",
        _schema(
            {
                "wait": {
                    "type": "boolean",
                    "description": "default true; false: the result comes later; 2 under way at most",
                }
            },
            [],
        ),
    ),
    KNOWLEDGE: ToolSpec(
        KNOWLEDGE,
        f"Search {_KNOWS} by keywords, or read a document by the path that a search named.",
        _schema({"query": _QUERY, "path": _DOCUMENT}, []),
    ),
    PROFILE: ToolSpec(
        PROFILE,
        f"What limits your pass directory as it is now, which must have been evaluated: {_LIMITS} "
        "It uses no evaluation; an episode has 3 of them.",
        _schema({"deep": _DEEP}, []),
    ),
    CODE: ToolSpec(CODE, _SEARCHES_CODE, _CODE),
}
"""Our agent's tools, as a model is told of them; `agent.tools` chooses."""

_TASK = {"type": "string", "description": "a task's name, as list_tasks gives it"}
_FILES = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": f"the pass directory: file name to text, *.py modules and {MANIFEST}",
}
_JOB = {"type": "integer", "description": "the job's number, as evaluate gave it"}


def _served(name: str, does: str, properties: dict[str, Any], required: list[str] | None = None) -> ToolSpec:
    needed = list(properties) if required is None else required
    return ToolSpec(name, does, _schema(properties, needed))


SERVED = {
    spec.name: spec
    for spec in (
        _served("list_tasks", "List the tasks: their names, operators and graphs.", {"cursor": _CURSOR}, []),
        _served(
            "read_task",
            "Read a task: its graphs' sources, shapes and dtypes; or, with path, one of its files.",
            {
                "task": _TASK,
                "path": {"type": "string", "description": "such as graph_list.txt; a directory is listed"},
                "cursor": _CURSOR,
            },
            ["task"],
        ),
        _served(
            CHECK,
            f"Record a pass directory {_RECORDS} It is no evaluation; evaluate begins with the same.",
            {"task": _TASK, "files": _FILES, "cursor": _CURSOR},
            ["task", "files"],
        ),
        _served(
            "evaluate",
            f"Evaluate a pass directory {_JUDGES} Tells {_TELLS} It waits at most 45 s: if the state is "
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
                "cursor": _CURSOR,
            },
            ["job"],
        ),
        _served(
            PROFILE,
            f"What limits the candidate of a job that is done: {_LIMITS}",
            {"job": _JOB, "deep": _DEEP},
            ["job"],
        ),
        _served("cancel", "Stop a job that you no longer need.", {"job": _JOB}),
        _served(
            KNOWLEDGE,
            f"Search {_KNOWS} by keywords; read_document reads a document that was found. With task, what "
            "names its operators comes first.",
            {"query": _QUERY, "task": _TASK},
            ["query"],
        ),
        _served(
            "read_document",
            "Read a knowledge document. index.md is the map of all.",
            {"path": _DOCUMENT, "cursor": _CURSOR},
            ["path"],
        ),
        ToolSpec(CODE, _SEARCHES_CODE, _CODE),
        _served(
            "similar",
            "Read passes that worked for this task or for similar ones, and why each was taken.",
            {"task": _TASK, "cursor": _CURSOR},
            ["task"],
        ),
        _served(
            "history",
            "List what was evaluated on a task so far, by you and by others, the newest first.",
            {"task": _TASK, "cursor": _CURSOR},
            ["task"],
        ),
        _served(
            "best",
            "The best correct pass for a task that was measured on this machine; with path, a file of it.",
            {"task": _TASK, "path": {"type": "string", "description": "a file of it"}, "cursor": _CURSOR},
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
