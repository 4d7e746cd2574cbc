"""The candidate's directory as an episode sees it: everything inside it, nothing outside.

Paths are relative. `task/...` is the task itself, readable only. No path leads out: not `..`, not an
absolute path, not a symbolic link (each component is opened with O_NOFOLLOW), no device or pipe, no file
over 256 kB, nothing that is not UTF-8 text. Only `.py` files and the manifest can be written.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path, PurePosixPath

from passagent.errors import PassagentError
from passagent.evaluator.result import MANIFEST

MAX_BYTES = 256 * 1024
TASK = "task"
_TASK_SUFFIXES = {".py", ".json", ".txt"}
_NOT_THE_TASK = {"pass_dir"}
"""Directories in a task that hold answers."""


class ToolError(PassagentError):
    """A tool call that cannot be done as asked; the message is what the model reads."""


class Workspace:
    """The files of one candidate in `path` (made if missing), beside the task in `task_dir`.

    The files are a function of the edits: on resume give it `reset(parent's files)` and let the episode
    replay its edits.
    """

    def __init__(self, path: str | Path, task_dir: str | Path) -> None:
        self.path, self.task_dir = Path(path).resolve(), Path(task_dir).resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        self._history: dict[str, list[str | None]] = {}

    def reset(self, files: dict[str, str]) -> None:
        """Make `files` (name to text) the whole content; the undo history starts anew."""
        shutil.rmtree(self.path)
        self.path.mkdir()
        self._history = {}
        for name, text in files.items():
            target = self.path.joinpath(*_parts(name))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    def files(self) -> dict[str, str]:
        """The candidate: every `.py` and `.json` file, relative name to text. Raises ToolError."""
        names = []
        for directory, folders, found in os.walk(self.path):
            folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
            at = Path(directory).relative_to(self.path)
            names += [(at / name).as_posix() for name in found if name.endswith((".py", ".json"))]
        return {name: self.read(name) for name in sorted(names)}

    def read(self, name: str) -> str:
        """Text of a file of the candidate or, under `task/`, of the task. Raises ToolError."""
        if self._is_task(name):
            return _read(os.open(self._task_path(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), name)
        return _read(self._open(name, os.O_RDONLY), name)

    def write(self, name: str, text: str) -> None:
        """Write a file of the candidate, remembering what it was for `undo`. Raises ToolError."""
        parts = self._writable(name)
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_BYTES:
            raise ToolError(f"{name}: {len(data)} bytes; a file may hold {MAX_BYTES}")
        before = self.read(name) if self.exists(name) else None
        self._replace(parts, data)
        self._history.setdefault("/".join(parts), []).append(before)

    def undo(self, name: str) -> str | None:
        """Take the last write of a file back; its text then, None where that removed it. Raises ToolError."""
        parts = self._writable(name)
        history = self._history.get("/".join(parts))
        if not history:
            raise ToolError(f"{name}: no edit to undo")
        before = history.pop()
        if before is None:
            self.path.joinpath(*parts).unlink(missing_ok=True)
        else:
            self._replace(parts, before.encode())
        return before

    def exists(self, name: str) -> bool:
        """Whether a file of the candidate is there (as a regular file)."""
        try:
            os.close(self._open(name, os.O_RDONLY))
        except ToolError:
            return False
        return True

    def listing(self, name: str) -> list[str]:
        """Names under a directory of the candidate (`.`) or of the task, directories with a slash."""
        if self._is_task(name):
            directory = self._task_path(name)
            hidden = _NOT_THE_TASK if directory == self.task_dir else set[str]()
            entries = [e for e in directory.iterdir() if e.name not in hidden]
            entries = [e for e in entries if e.is_dir() or e.suffix in _TASK_SUFFIXES]
        else:
            directory = self.path.joinpath(*_parts(name))
            if not directory.is_dir() or directory.resolve() != directory:
                raise ToolError(f"{name}: no such directory")
            entries = [entry for entry in directory.iterdir() if entry.name != "__pycache__"]
        names = sorted(entry.name + "/" * entry.is_dir() for entry in entries)
        return [*names, f"{TASK}/"] if directory == self.path else names

    def is_directory(self, name: str) -> bool:
        """Whether `name` is a directory of the candidate or the task. Raises ToolError for a path outside."""
        path = self._task_path(name) if self._is_task(name) else self.path.joinpath(*_parts(name))
        return path.is_dir() and not (path.is_symlink() and not self._is_task(name))

    def _is_task(self, name: str) -> bool:
        return _parts(name)[:1] == (TASK,)

    def _task_path(self, name: str) -> Path:
        parts = _parts(name)[1:]
        path = self.task_dir.joinpath(*parts).resolve()
        # `graphs` may be a link to where PassNet keeps them; the model cannot make links
        inside = any(
            path.is_relative_to(root) for root in (self.task_dir, (self.task_dir / "graphs").resolve())
        )
        if not inside or (parts and parts[0] in _NOT_THE_TASK):
            raise ToolError(f"{name}: not a file of the task")
        if not path.is_dir() and (not path.is_file() or path.suffix not in _TASK_SUFFIXES):
            raise ToolError(f"{name}: no such file in the task; view '{TASK}' to list it")
        return path

    def _writable(self, name: str) -> tuple[str, ...]:
        parts = _parts(name)
        if self._is_task(name):
            raise ToolError(f"{name}: the task's files are read-only; write your pass files beside them")
        if not parts or not (parts[-1] == MANIFEST or re.fullmatch(r"[A-Za-z_]\w*\.py", parts[-1])):
            raise ToolError(f"{name}: only Python modules (*.py) and {MANIFEST} can be written")
        return parts

    def _open(self, name: str, flags: int) -> int:
        """A descriptor of a file inside, no component of its path a link."""
        parts = _parts(name)
        if not parts:
            raise ToolError(f"{name}: is a directory")
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        at = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                os.close(at)
                at = inner
            return os.open(parts[-1], flags, 0o644, dir_fd=at)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ToolError(f"{name}: no such file; view '.' to list the files") from error
        except IsADirectoryError as error:
            raise ToolError(f"{name}: is a directory") from error
        except OSError as error:
            raise ToolError(f"{name}: {error.strerror}") from error
        finally:
            os.close(at)

    def _replace(self, parts: tuple[str, ...], data: bytes) -> None:
        name = "/".join(parts)
        parent = self.path.joinpath(*parts[:-1])
        if parent.resolve() != parent:
            raise ToolError(f"{name}: the path leads through a link")
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ToolError(f"{name}: a component of the path is a file") from error
        descriptor = self._open(name, os.O_WRONLY | os.O_CREAT)
        with os.fdopen(descriptor, "wb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolError(f"{name}: not a regular file")
            file.truncate(0)
            file.write(data)


def _parts(name: str) -> tuple[str, ...]:
    """Components of a relative path, a leading `pass_dir/` left out. Raises ToolError if it leads out."""
    if "\0" in name or name.startswith(("/", "~", "\\")):
        raise ToolError(f"{name!r}: paths are relative to your directory, such as 'FusedAddRelu.py'")
    parts = PurePosixPath(name).parts
    if ".." in parts:
        raise ToolError(f"{name}: '..' leads out of your directory")
    return parts[1:] if parts[:1] == ("pass_dir",) else parts


def _read(descriptor: int, name: str) -> str:
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(f"{name}: not a regular file")
        if status.st_size > MAX_BYTES:
            raise ToolError(f"{name}: {status.st_size} bytes, over the limit of {MAX_BYTES}")
        try:
            return file.read(MAX_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ToolError(f"{name}: not UTF-8 text") from error
