"""The agent's tools: what the model is told of each, and what a call does. Errors are observations."""

from __future__ import annotations

import ast
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from passagent.agent.workspace import TASK, ToolError, Workspace
from passagent.errors import UsageError, nearest
from passagent.evaluator.result import MANIFEST
from passagent.experience import knowledge
from passagent.experience.knowledge import Passage
from passagent.models.types import ToolSpec

MAX_VIEW = 30_000
"""Characters of a file shown at once."""
MAX_PASSAGE = 900
"""Characters of a passage that a search found; its document can be read whole."""

EVALUATOR = "pass_evaluator"
Submit = Callable[[dict[str, str], str], Awaitable[str]]
"""`await submit(files, call_id)`: evaluate and store a candidate, once for a call_id; the observation."""


@dataclass(frozen=True)
class Tool:
    """A tool: its schema, and `await run(arguments, call_id)`, which may raise ToolError."""

    spec: ToolSpec
    run: Callable[[dict[str, Any], str], Awaitable[str]]
    local: bool = False
    """Its calls change nothing but the workspace: a resumed episode runs them again."""


def file_editor(workspace: Workspace) -> Tool:
    """View and edit the candidate's files, confined to the workspace."""

    async def run(arguments: dict[str, Any], call_id: str) -> str:
        return _edit(workspace, arguments)

    description = (
        "View and edit the files of your pass directory. Paths are relative to it; "
        f"'{TASK}/...' is the task, read-only. Only *.py modules and {MANIFEST} can be written.\n"
        "- view: a file with line numbers (view_range [first, last]: these lines only; last -1: to the end), "
        "or a directory's listing ('.').\n"
        "- create: write file_text to path, replacing the file if it exists.\n"
        "- str_replace: replace old_str, which must occur exactly once (copied exactly, with its whitespace, "
        "without line numbers), by new_str.\n"
        "- insert: put new_str after line insert_line (0: at the beginning).\n"
        "- undo_edit: take the last edit of path back."
    )
    properties: dict[str, Any] = {
        "command": {"type": "string", "enum": list(_COMMANDS)},
        "path": {
            "type": "string",
            "description": f"such as FusedAddRelu.py, {MANIFEST} or {TASK}/graph_list.txt",
        },
        "file_text": {"type": "string", "description": "create: the whole file"},
        "old_str": {"type": "string", "description": "str_replace: the text to replace"},
        "new_str": {"type": "string", "description": "str_replace, insert: the new text"},
        "insert_line": {"type": "integer", "description": "insert: the line after which new_str goes"},
        "view_range": {"type": "array", "items": {"type": "integer"}, "description": "view: [first, last]"},
    }
    return Tool(
        ToolSpec("file_editor", description, _schema(properties, ["command", "path"])), run, local=True
    )


def pass_evaluator(workspace: Workspace, submit: Submit) -> Tool:
    """Evaluate the workspace's files as a candidate on the task."""

    async def run(arguments: dict[str, Any], call_id: str) -> str:
        files = workspace.files()
        if MANIFEST not in files:
            raise ToolError(
                f'nothing to evaluate yet: create your pass and {MANIFEST}, such as ["FusedAddRelu"]'
            )
        if not any(name.endswith(".py") for name in files):
            raise ToolError(
                "nothing to evaluate yet: there is no .py file; create your pass with file_editor"
            )
        return await submit(files, call_id)

    description = (
        "Evaluate your pass directory as it is now on every graph of the task: integrity rules, matching, "
        "correctness, then timing against eager. Takes no arguments; returns the stage reached, what is "
        "wrong where, the speedup of each graph and the AS. Evaluations are limited: check your files first."
    )
    return Tool(ToolSpec(EVALUATOR, description, _schema({}, [])), run)


def search_knowledge(
    search: Callable[..., list[Passage]] = knowledge.search, read: Callable[[str], str] = knowledge.read
) -> Tool:
    """Search and read the knowledge documents: `search(query, limit=6)` and `read(path)`."""

    async def run(arguments: dict[str, Any], call_id: str) -> str:
        query, path = arguments.get("query"), arguments.get("path")
        if (query is None) == (path is None):
            raise ToolError("give either query (to search) or path (to read one of the documents found)")
        if path is not None:
            try:
                return read(path)
            except UsageError as error:
                raise ToolError(str(error)) from error
        found = [f"[{p.path}] {p.heading}\n{_cut(p.text, MAX_PASSAGE)}" for p in search(query, limit=6)]
        return (
            "\n\n".join(found) or "nothing found; try other words, or read index.md, the map of all documents"
        )

    description = (
        "Search the optimisation knowledge (constraints, guidance, hardware figures, code samples) by "
        "keywords, or read a document by the path that a search named."
    )
    properties = {
        "query": {"type": "string", "description": "keywords, such as: triton row softmax large rows"},
        "path": {"type": "string", "description": "path of a document that a search named"},
    }
    return Tool(ToolSpec("search_knowledge", description, _schema(properties, [])), run)


def check_arguments(spec: ToolSpec, arguments: Any) -> dict[str, Any]:
    """The arguments of a call, nulls left out, held against the tool's schema. Raises ToolError."""
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments of {spec.name} must be a JSON object")
    given = {key: value for key, value in arguments.items() if value is not None}
    properties = spec.parameters["properties"]
    for key, value in given.items():
        if key not in properties:
            known = nearest(key, list(properties)) if properties else "; it takes none"
            raise ToolError(f"{spec.name} has no argument '{key}'{known}")
        _check_value(spec.name, key, value, properties[key])
    missing = [key for key in spec.parameters["required"] if key not in given]
    if missing:
        raise ToolError(f"{spec.name}: missing argument {', '.join(missing)}")
    return given


_KINDS: dict[str, Any] = {"string": str, "integer": int, "array": list}


def _check_value(tool: str, key: str, value: Any, schema: dict[str, Any]) -> None:
    kind = schema["type"]
    if type(value) is not _KINDS[kind]:
        raise ToolError(f"{tool}: '{key}' must be of type {kind}, not {json.dumps(value)[:60]}")
    if "enum" in schema and value not in schema["enum"]:
        raise ToolError(f"{tool}: {key} '{value}' is unknown{nearest(value, schema['enum'])}")
    for item in value if kind == "array" else ():
        _check_value(tool, f"{key}[]", item, schema["items"])


def _schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _edit(workspace: Workspace, arguments: dict[str, Any]) -> str:
    command, path = arguments["command"], arguments["path"]
    needs = [key for key in _COMMANDS[command] if key not in arguments]
    if needs:
        raise ToolError(f"{command} needs {', '.join(needs)}")
    if command == "view":
        return _view(workspace, path, arguments.get("view_range"))
    if command == "undo_edit":
        text = workspace.undo(path)
        return (
            f"{path}: removed (the edit undone had created it)" if text is None else _written(path, text, 1)
        )
    if command == "create":
        workspace.write(path, arguments["file_text"])
        return _written(path, arguments["file_text"])
    text = workspace.read(path)
    if command == "insert":
        text, line = _insert(path, text, arguments["insert_line"], arguments["new_str"])
    else:
        text, line = _str_replace(path, text, arguments["old_str"], arguments.get("new_str", ""))
    workspace.write(path, text)
    return _written(path, text, line)


_COMMANDS: dict[str, list[str]] = {
    "view": [],
    "create": ["file_text"],
    "str_replace": ["old_str"],
    "insert": ["insert_line", "new_str"],
    "undo_edit": [],
}
"""Each command's own arguments."""


def _view(workspace: Workspace, path: str, view_range: list[int] | None) -> str:
    if workspace.is_directory(path):
        return "\n".join(workspace.listing(path)) or "(empty)"
    lines = workspace.read(path).splitlines()
    first, last = 1, len(lines)
    if view_range is not None:
        if len(view_range) != 2:
            raise ToolError("view_range must be [first, last]")
        first, last = view_range[0], len(lines) if view_range[1] == -1 else view_range[1]
        if not 1 <= first <= last:
            raise ToolError(f"view_range {view_range}: {path} has lines 1 to {len(lines)}")
    text = _numbered(lines[first - 1 : last], first)
    if len(text) > MAX_VIEW:
        text = text[:MAX_VIEW].rsplit("\n", 1)[0]
        text += f"\n... {path} has {len(lines)} lines; view the rest with view_range"
    return text or "(empty file)"


def _insert(path: str, text: str, after: int, new: str) -> tuple[str, int]:
    lines = text.splitlines(keepends=True)
    if not 0 <= after <= len(lines):
        raise ToolError(f"insert_line {after}: {path} has lines 0 to {len(lines)}")
    if after and not lines[after - 1].endswith("\n"):
        lines[after - 1] += "\n"
    lines.insert(after, new if new.endswith("\n") or after == len(lines) else new + "\n")
    return "".join(lines), after + 1


def _str_replace(path: str, text: str, old: str, new: str) -> tuple[str, int]:
    if not old:
        raise ToolError("old_str is empty; use insert to add text")
    found = text.count(old)
    if found == 0:
        raise ToolError(
            f"old_str does not occur in {path}; view it and copy the text with its exact whitespace"
        )
    if found > 1:
        starts, position = [], text.find(old)
        while position >= 0:
            starts.append(str(text.count("\n", 0, position) + 1))
            position = text.find(old, position + 1)
        raise ToolError(f"old_str occurs at lines {', '.join(starts)} of {path}; take more lines around it")
    return text.replace(old, new), text.count("\n", 0, text.index(old)) + 1


def _written(path: str, text: str, line: int | None = None) -> str:
    """What an edit led to: the lines around it, and whether the file parses."""
    lines = text.splitlines()
    shown = ""
    if line is not None:
        first = max(1, line - 3)
        shown = "\n" + _numbered(lines[first - 1 : line + 8], first)
    return f"{path}: {len(lines)} lines written.{_problem(path, text)}{shown}"


def _problem(path: str, text: str) -> str:
    try:
        if path.endswith(".py"):
            ast.parse(text)
        else:
            names = json.loads(text)
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                return f' But it must be a JSON list of pass names, such as ["{"FusedAddRelu"}"].'
    except SyntaxError as error:
        return f" But it does not parse: line {error.lineno}: {error.msg}."
    except (ValueError, RecursionError, MemoryError) as error:
        return f" But it cannot be read: {error}."
    return ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit].rsplit("\n", 1)[0] + "\n..."


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:>5}\t{line}" for number, line in enumerate(lines, first))
