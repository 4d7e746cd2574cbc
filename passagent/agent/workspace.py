"""The candidate's directory as an episode sees it: files in memory, the task beside them under `task/`.

Nothing of it lies on a disk: what the agent writes is stored with its messages and its nodes, and no path can
lead anywhere else. Only `.py` modules and the manifest can be written. Of the task there are no answers, and
nothing that lies elsewhere.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from passagent.errors import PassagentError
from passagent.evaluator.result import MANIFEST

MAX_BYTES = 256 * 1024
TASK = "task"
ANSWERS = "pass_dir"
"""Directories in a task that hold answers; also a prefix that a model may put before its own paths."""
_SUFFIXES = {".py", ".json", ".txt"}
MAX_FILES = 64
MAX_DEPTH = 5
_MODULE, _PACKAGE = re.compile(r"[A-Za-z_]\w*\.py", re.A), re.compile(r"[A-Za-z_]\w*", re.A)


class ToolError(PassagentError):
    """A tool call that cannot be done as asked; the message is what the model reads."""


def read_task_files(directory: str | Path) -> dict[str, str]:
    """Read a task's files: relative name, which begins with `task/`, to text.

    Only regular UTF-8 files of at most MAX_BYTES are there. No link is followed but a task's own `graphs`,
    which may lead to where PassNet keeps them.
    """
    top, texts = Path(directory).resolve(), dict[str, str]()
    places = {top: TASK}
    if (graphs := top / "graphs").is_symlink():
        places[graphs.resolve()] = f"{TASK}/graphs"
    for place, name in places.items():
        for root, folders, files in os.walk(place):
            folders[:] = [f for f in folders if f != "__pycache__" and f.casefold() != ANSWERS]
            for path in (Path(root, file) for file in files if Path(file).suffix in _SUFFIXES):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES:
                    with contextlib.suppress(UnicodeDecodeError):
                        texts[f"{name}/{path.relative_to(place).as_posix()}"] = path.read_text("utf-8")
    return {name: text for name, text in texts.items() if "\0" not in text}


class Workspace:
    """The files of one candidate, beside those of its task.

    They are a function of what the episode began with and of its edits: on resume it replays these.
    """

    def __init__(self, task: Mapping[str, str], files: Mapping[str, str]) -> None:
        """`task`: see read_task_files; `files`: name to text, what the episode begins with."""
        self._task, self._files = task, dict(files)
        self._history: dict[str, list[str | None]] = {}
        self.versions: list[dict[str, str]] = [self.files()]
        """Versions for `restore`: the files that the episode began with, then each version kept."""

    def files(self) -> dict[str, str]:
        """The candidate: every file, relative name to text, sorted."""
        return dict(sorted(self._files.items()))

    def read(self, name: str) -> str:
        """Text of a file of the candidate or, under `task/`, of the task. Raises ToolError."""
        key = "/".join(_parts(name))
        text = self._task.get(key, self._files.get(key))
        if text is None:
            is_directory = self.is_directory(name)
            problem = (
                "is a directory" if is_directory else "no such file; view '.' or 'task' to list the files"
            )
            raise ToolError(f"{name}: {problem}")
        return text

    def write(self, name: str, text: str) -> None:
        """Write a file of the candidate, remembering what it was for `undo`. Raises ToolError."""
        key = _writable(name)
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_BYTES:
            raise ToolError(f"{name}: {len(data)} bytes; a file may hold {MAX_BYTES}")
        if "\0" in text:
            raise ToolError(f"{name}: holds a NUL character; a file holds UTF-8 text")
        before = self._files.get(key)
        if before is None and len(self._files) >= MAX_FILES:
            raise ToolError(f"{name}: the directory holds {MAX_FILES} files; more are not allowed")
        self._set(key, data.decode())
        self._history.setdefault(key, []).append(before)

    def undo(self, name: str) -> str | None:
        """Take the last change of a file back; its text then, None if it is gone. Raises ToolError."""
        key = _writable(name)
        history = self._history.get(key)
        if not history:
            raise ToolError(f"{name}: no edit to undo")
        before = history.pop()
        self._set(key, before)
        return before

    def keep(self) -> int:
        """Remember the files as they are now; what `restore` takes."""
        self.versions.append(self.files())
        return len(self.versions) - 1

    def restore(self, number: int) -> list[str]:
        """Go back to a kept version; the files changed, each of which `undo` takes back."""
        if not 0 <= number < len(self.versions):
            raise ToolError(f"version {number}: there are versions 0 to {len(self.versions) - 1}")
        version, now = self.versions[number], self.files()
        changed = [name for name in sorted(version | now) if version.get(name) != now.get(name)]
        for name in changed:
            self._set(name, version.get(name))
            self._history.setdefault(name, []).append(now.get(name))
        return changed

    def listing(self, name: str) -> list[str]:
        """Names under a directory of the candidate (`.`) or of the task, directories with a slash."""
        start = "".join(f"{part}/" for part in _parts(name))
        inside = [file.removeprefix(start) for file in self._names() if file.startswith(start)]
        return sorted({first + slash for first, slash, _ in (file.partition("/") for file in inside)})

    def is_directory(self, name: str) -> bool:
        """Look for a directory of the candidate or the task. Raises ToolError for a path outside."""
        start = "".join(f"{part}/" for part in _parts(name))
        return not start or any(file.startswith(start) for file in self._names())

    def _names(self) -> list[str]:
        return [*self._files, *self._task]

    def _set(self, key: str, text: str | None) -> None:
        if text is None:
            self._files.pop(key, None)
        else:
            self._files[key] = text


def _parts(name: str) -> tuple[str, ...]:
    """Components of a relative path, a leading `pass_dir/` left out. Raises ToolError if it leads out."""
    if "\0" in name or name.startswith(("/", "~", "\\")):
        raise ToolError(f"{name[:80]!r}: paths are relative to your directory, such as 'FusedAddRelu.py'")
    parts = PurePosixPath(name).parts
    if ".." in parts:
        raise ToolError(f"{name[:80]}: '..' leads out of your directory")
    if len(parts) > 20 or any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        raise ToolError(f"{name[:80]}...: the path is too long")
    return parts[1:] if parts[:1] == (ANSWERS,) else parts


def _writable(name: str) -> str:
    """The file's name, as it is kept. Raises ToolError if it cannot be one of a candidate."""
    parts = _parts(name)
    if parts[:1] == (TASK,):
        raise ToolError(f"{name}: the task's files are read-only; write your pass files beside them")
    *folders, file = parts or ("",)
    if not (_MODULE.fullmatch(file) or parts == (MANIFEST,)):
        raise ToolError(f"{name}: only Python modules (*.py) and {MANIFEST} can be written")
    if len(parts) > MAX_DEPTH or not all(_PACKAGE.fullmatch(folder) for folder in folders):
        raise ToolError(f"{name}: directories must be few and named like Python packages")
    if "__pycache__" in folders:
        raise ToolError(f"{name}: __pycache__ is not part of a candidate")
    return "/".join(parts)


def candidate_files(workspace: Workspace, verb: str) -> dict[str, str]:
    """Return the workspace's files. Raises ToolError if they are no candidate yet."""
    files = workspace.files()
    if MANIFEST not in files:
        raise ToolError(f'nothing to {verb} yet: create your pass and {MANIFEST}, such as ["FusedAddRelu"]')
    if not any(name.endswith(".py") for name in files):
        raise ToolError(f"nothing to {verb} yet: there is no .py file; create your pass with file_editor")
    return files


class Parsed(NamedTuple):
    """A Python file, parsed."""

    docstring: str
    """Empty where there is none."""
    problem: str | None
    """Why it does not parse."""


@functools.lru_cache(maxsize=8)
def parsed(text: str) -> Parsed:
    """The file of this text."""
    try:
        return Parsed(ast.get_docstring(ast.parse(text)) or "", None)
    except SyntaxError as error:
        return Parsed("", f"it does not parse: line {error.lineno}: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return Parsed("", f"it cannot be read: {error}")
