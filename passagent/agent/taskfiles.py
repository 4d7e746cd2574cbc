"""The task as an episode sees it, under `task/`: read-only, without answers, and nothing that lies elsewhere.

Every component of a path is opened from the directory before it with O_NOFOLLOW, so a link leads nowhere,
whenever it was made. Only regular UTF-8 files of at most 256 kB are read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from passagent.errors import PassagentError

MAX_BYTES = 256 * 1024
TASK = "task"
ANSWERS = "pass_dir"
"""Directories in a task that hold answers; also a prefix that a model may put before its own paths."""
_SUFFIXES = {".py", ".json", ".txt"}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Parts = tuple[str, ...]
"""Components of a path under `task/`, which is left out."""


class ToolError(PassagentError):
    """A tool call that cannot be done as asked; the message is what the model reads."""


class Missing(ToolError):
    """There is nothing of this name, or no directory."""


class TaskFiles:
    """The files of the task in `directory`."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).resolve()
        # `graphs` of a task may be a link to where PassNet keeps them: the one link that is followed
        self._graphs = (self.directory / "graphs").resolve()

    def read(self, parts: Parts) -> str:
        """Text of a file. Raises ToolError."""
        name = _name(parts)
        if not parts:
            raise ToolError(f"{name}: is a directory")
        if PurePosixPath(parts[-1]).suffix not in _SUFFIXES:
            raise ToolError(f"{name}: no such file in the task; view '{TASK}' to list it")
        with self._opened(parts[:-1]) as at:
            try:
                descriptor = os.open(parts[-1], _READ, dir_fd=at)
            except OSError as error:
                raise _explained(name, error) from error
            return _text(descriptor, name)

    def listing(self, parts: Parts) -> list[str]:
        """Names in a directory, sorted, directories with a slash. Raises ToolError."""
        names = []
        with self._opened(parts) as at, os.scandir(at) as entries:
            for entry in entries:
                is_link_to_graphs = not parts and entry.name == "graphs" and self._graphs.is_dir()
                is_directory = entry.is_dir(follow_symlinks=False) or is_link_to_graphs
                is_hidden = entry.name == "__pycache__" or entry.name.casefold() == ANSWERS
                if (is_directory or PurePosixPath(entry.name).suffix in _SUFFIXES) and not is_hidden:
                    names.append(entry.name + "/" * is_directory)
        return sorted(names)

    def is_directory(self, parts: Parts) -> bool:
        """Look for a directory of this name. Raises ToolError for a path that is not the task's."""
        try:
            with self._opened(parts):
                return True
        except Missing:
            return False

    @contextlib.contextmanager
    def _opened(self, parts: Parts) -> Iterator[int]:
        """A descriptor of a directory, reached without following a link. Raises ToolError."""
        name = _name(parts)
        if any(part.casefold() == ANSWERS for part in parts):
            raise ToolError(f"{name}: not a file of the task")
        root, rest = (self._graphs, parts[1:]) if parts[:1] == ("graphs",) else (self.directory, parts)
        try:
            at = os.open(root, _DIRECTORY)
        except OSError as error:
            raise _explained(name, error) from error
        try:
            for part in rest:
                try:
                    inner = os.open(part, _DIRECTORY, dir_fd=at)
                except OSError as error:
                    raise _explained(name, error) from error
                os.close(at)
                at = inner
            yield at
        finally:
            os.close(at)


def _name(parts: Parts) -> str:
    return "/".join((TASK, *parts))


def _explained(name: str, error: OSError) -> ToolError:
    """Return what an OSError means to a model."""
    if isinstance(error, FileNotFoundError):
        return Missing(f"{name}: no such file; view '{TASK}' to list the task's")
    if isinstance(error, NotADirectoryError):
        return Missing(f"{name}: no such file: a component of the path is a file or a link")
    if isinstance(error, IsADirectoryError):
        return ToolError(f"{name}: is a directory")
    return ToolError(f"{name}: {'is a link' if error.errno == errno.ELOOP else error.strerror}")


def _text(descriptor: int, name: str) -> str:
    """The text behind a descriptor, which is closed. Raises ToolError."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(f"{name}: {'is a directory' if stat.S_ISDIR(status.st_mode) else 'no file'}")
        if status.st_size > MAX_BYTES:
            raise ToolError(f"{name}: {status.st_size} bytes, over the limit of {MAX_BYTES}")
        data = bytearray()
        while part := os.read(descriptor, MAX_BYTES - len(data)):
            data += part
        if b"\0" in data:
            raise ToolError(f"{name}: not UTF-8 text")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(f"{name}: not UTF-8 text") from error
    finally:
        os.close(descriptor)
