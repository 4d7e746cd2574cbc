"""The tool `file_editor`: commands on a workspace. What cannot be done is a ToolError that says why."""

from __future__ import annotations

import json
from typing import Any

from passagent.agent.tool_specs import EDITOR, Tool, ToolAnswer, schema
from passagent.agent.workspace import TASK, ToolError, Workspace, parsed
from passagent.evaluator.result import MANIFEST
from passagent.models.types import ToolSpec

MAX_VIEW = 30_000
"""Characters of a file shown at once."""
WROTE, RESTORED = {"edit": "wrote"}, {"edit": "restored"}
"""The data of an answer."""

COMMANDS: dict[str, list[str]] = {
    "view": [],
    "create": ["file_text"],
    "str_replace": ["old_str"],
    "insert": ["insert_line", "new_str"],
    "undo_edit": [],
    "restore": ["version"],
}
"""Each command's own arguments."""


SPEC = ToolSpec(
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
    schema(
        {
            "command": {"type": "string", "enum": list(COMMANDS)},
            "path": {
                "type": "string",
                "description": f"such as FusedAddRelu.py, {MANIFEST} or {TASK}/graph_list.txt",
            },
            "file_text": {"type": "string", "description": "create: the whole file"},
            "old_str": {"type": "string", "description": "str_replace: the text to replace"},
            "new_str": {"type": "string", "description": "str_replace, insert: the new text"},
            "insert_line": {"type": "integer", "description": "insert: the line after which new_str goes"},
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "view: [first, last]",
            },
            "version": {"type": "integer", "description": "restore: the version's number"},
        },
        ["command", "path"],
    ),
)


def file_editor(workspace: Workspace) -> Tool:
    """View and edit the candidate's files, confined to the workspace."""

    async def run(arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        return edit(workspace, arguments)

    def replay(arguments: dict[str, Any], data: dict[str, Any], call_id: str) -> None:
        edit(workspace, arguments)

    return Tool(SPEC, run, replay)


def edit(workspace: Workspace, arguments: dict[str, Any]) -> ToolAnswer:
    """Run one command. Raises ToolError."""
    command, path = arguments["command"], arguments["path"]
    needs = [key for key in COMMANDS[command] if key not in arguments]
    if needs:
        raise ToolError(f"{command} needs {', '.join(needs)}")
    if command == "view":
        return ToolAnswer(_view(workspace, path, arguments.get("view_range")))
    if command == "restore":
        changed = workspace.restore(arguments["version"])
        names = ", ".join(changed) if changed else "nothing: the files are the same"
        return ToolAnswer(
            f"the directory is as in version {arguments['version']}; changed: {names}", RESTORED
        )
    if command == "undo_edit":
        text = workspace.undo(path)
        if text is None:
            return ToolAnswer(f"{path}: removed (the edit undone had created it)", WROTE)
        return ToolAnswer(_written(path, text, 1), WROTE)
    if command == "create":
        workspace.write(path, arguments["file_text"])
        return ToolAnswer(_written(path, arguments["file_text"]), WROTE)
    text = workspace.read(path)
    if command == "insert":
        text, line = _insert(path, text, arguments["insert_line"], arguments["new_str"])
    else:
        text, line = _str_replace(path, text, arguments["old_str"], arguments.get("new_str", ""))
    workspace.write(path, text)
    return ToolAnswer(_written(path, text, line), WROTE)


def lines_of(text: str) -> list[str]:
    """The lines of a file as Python counts them (`splitlines` also breaks at form feeds and the like)."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def numbered(lines: list[str], first: int) -> str:
    """`lines` with their numbers, from `first` on."""
    return "\n".join(f"{number:>5}\t{line}" for number, line in enumerate(lines, first))


def _view(workspace: Workspace, path: str, view_range: list[int] | None) -> str:
    if workspace.is_directory(path):
        return "\n".join(workspace.listing(path)) or "(empty)"
    lines = lines_of(workspace.read(path))
    first, last = 1, len(lines)
    if view_range is not None:
        if len(view_range) != 2:
            raise ToolError("view_range must be [first, last]")
        first, last = view_range[0], len(lines) if view_range[1] == -1 else view_range[1]
        if not 1 <= first <= last or first > len(lines):
            raise ToolError(f"view_range {view_range}: {path} has lines 1 to {len(lines)}")
    text = numbered(lines[first - 1 : last], first)
    if len(text) > MAX_VIEW:
        text = text[:MAX_VIEW].rsplit("\n", 1)[0]
        text += f"\n... {path} has {len(lines)} lines; view the rest with view_range"
    return text or "(empty file)"


def _insert(path: str, text: str, after: int, new: str) -> tuple[str, int]:
    lines = lines_of(text)
    if not 0 <= after <= len(lines):
        raise ToolError(f"insert_line {after}: {path} has lines 0 to {len(lines)}")
    return "".join(f"{line}\n" for line in [*lines[:after], *lines_of(new), *lines[after:]]), after + 1


def _str_replace(path: str, text: str, old: str, new: str) -> tuple[str, int]:
    if not old:
        raise ToolError("old_str is empty; use insert to add text")
    starts, position = [], text.find(old)
    while position >= 0:
        starts.append(text.count("\n", 0, position) + 1)
        position = text.find(old, position + 1)
    if not starts:
        raise ToolError(f"old_str does not occur in {path}; view it and copy the text with its whitespace")
    if len(starts) > 1:
        places = ", ".join(map(str, starts[:12])) + (", ..." if len(starts) > 12 else "")
        raise ToolError(
            f"old_str occurs {len(starts)} times in {path}, at lines {places}; take more lines around it"
        )
    return text.replace(old, new), starts[0]


def _written(path: str, text: str, line: int | None = None) -> str:
    """Return what an edit led to: the lines around it, and whether the file parses."""
    lines = lines_of(text)
    excerpt = ""
    if line is not None:
        first = max(1, line - 3)
        excerpt = "\n" + numbered(lines[first - 1 : line + 8], first)
    return f"{path}: {len(lines)} lines written.{_problem(path, text)}{excerpt}"


def _problem(path: str, text: str) -> str:
    if path.endswith(".py"):
        problem = parsed(text).problem
        return f" But {problem}." if problem else ""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f" But it cannot be read: {error}."
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ' But it must be a JSON list of pass names, such as ["FusedAddRelu"].'
    return ""
