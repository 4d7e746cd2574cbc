"""The candidate's directory as an episode sees it: everything inside it, nothing outside.

Paths are relative. `task/...` is the task itself, readable only. No path leads out: not `..`, not an absolute
path, not a symbolic link (every component is opened from the directory before it with O_NOFOLLOW, so that it
does not matter when a link was made), no device or pipe, no hard link, no file over 256 kB, nothing that is
not UTF-8 text. Only `.py` modules and the manifest can be written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path, PurePosixPath

from passagent.errors import PassagentError
from passagent.evaluator.result import MANIFEST

MAX_BYTES = 256 * 1024
MAX_FILES = 64
MAX_DEPTH = 5
TASK = "task"
_TASK_SUFFIXES = {".py", ".json", ".txt"}
_ANSWERS = "pass_dir"
"""Directories in a task that hold answers; also a prefix that a model may put before its own paths."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MODULE, _PACKAGE = re.compile(r"[A-Za-z_]\w*\.py", re.A), re.compile(r"[A-Za-z_]\w*", re.A)


class ToolError(PassagentError):
    """A tool call that cannot be done as asked; the message is what the model reads."""


class Workspace:
    """The files of one candidate in `path` (made if missing), beside the task in `task_dir`.

    The files are a function of the edits: on resume give it `reset(parent's files)` and let the episode
    replay its edits.
    """

    def __init__(self, path: str | Path, task_dir: str | Path) -> None:
        self.path, self.task_dir = Path(path).resolve(), Path(task_dir).resolve()
        # `graphs` of a task may be a link to where PassNet keeps them: the one link that is followed
        self._graphs = (self.task_dir / "graphs").resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        self._history: dict[str, list[str | None]] = {}
        self.versions: list[dict[str, str]] = [{}]
        """What `restore` can go back to: the files that the episode began with, then each version kept."""

    def reset(self, files: dict[str, str]) -> None:
        """Make `files` (name to text) the whole content and version 0; the undo history starts anew."""
        with os.scandir(self.path) as entries:
            found = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
        if all(found.values()):
            for name in found.keys() - files.keys():
                os.unlink(self.path / name)
        else:
            shutil.rmtree(self.path)
            self.path.mkdir()
        for name, text in files.items():
            self._replace(_parts(name), text.encode())
        self._history, self.versions = {}, [dict(files)]

    def files(self) -> dict[str, str]:
        """The candidate: every `.py` and `.json` file, relative name to text. Raises ToolError."""
        found = {}
        for folder, at, names in self._walk():
            for name in names:
                found[folder + name] = _read_at(at, name, folder + name, may_be_linked=False)
        return dict(sorted(found.items()))

    def _walk(self) -> Iterator[tuple[str, int, list[str]]]:
        """Each directory's name, a descriptor of it, and the files of a candidate in it."""
        folders = [""]
        while folders:
            folder, names = folders.pop(), []
            with self._directory(_parts(folder)) as at:
                with os.scandir(at) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            folders += [f"{folder}{entry.name}/"] if entry.name != "__pycache__" else []
                        elif entry.name.endswith((".py", ".json")):
                            names.append(entry.name)
                yield folder, at, names

    def read(self, name: str) -> str:
        """Text of a file of the candidate or, under `task/`, of the task. Raises ToolError."""
        parts = _parts(name)
        if not parts:
            raise ToolError(f"{name}: is a directory")
        is_task = parts[0] == TASK
        if is_task and PurePosixPath(parts[-1]).suffix not in _TASK_SUFFIXES:
            raise ToolError(f"{name}: no such file in the task; view '{TASK}' to list it")
        with self._directory(parts[:-1]) as at:
            return _read_at(at, parts[-1], name, may_be_linked=is_task)

    def write(self, name: str, text: str) -> None:
        """Write a file of the candidate, remembering what it was for `undo`. Raises ToolError."""
        parts = _writable(name)
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_BYTES:
            raise ToolError(f"{name}: {len(data)} bytes; a file may hold {MAX_BYTES}")
        try:
            before = self.read(name)
        except _Missing:
            before = None
            self._check_new("/".join(parts))
        if before is None or data != before.encode():
            self._replace(parts, data)
        self._history.setdefault("/".join(parts), []).append(before)

    def undo(self, name: str) -> str | None:
        """Take the last change of a file back; its text then, None if it is gone. Raises ToolError."""
        parts = _writable(name)
        history = self._history.get("/".join(parts))
        if not history:
            raise ToolError(f"{name}: no edit to undo")
        before = history.pop()
        if before is None:
            self._remove(parts)
        else:
            self._replace(parts, before.encode())
        return before

    def keep(self, files: dict[str, str] | None = None) -> int:
        """Remember the files as they are now (`files`, where they were just read); what `restore` takes."""
        self.versions.append(self.files() if files is None else files)
        return len(self.versions) - 1

    def restore(self, number: int) -> list[str]:
        """Go back to a kept version; the files changed, each of which `undo` takes back."""
        if not 0 <= number < len(self.versions):
            raise ToolError(f"version {number}: there are versions 0 to {len(self.versions) - 1}")
        wanted, now = self.versions[number], self.files()
        changed = [name for name in sorted(wanted | now) if wanted.get(name) != now.get(name)]
        for name in changed:
            parts = _parts(name)
            if name in wanted:
                self._replace(parts, wanted[name].encode())
            else:
                self._remove(parts)
            self._history.setdefault(name, []).append(now.get(name))
        return changed

    def exists(self, name: str) -> bool:
        """Whether a file of the candidate is there. Raises ToolError for a directory or a link."""
        parts = _parts(name)
        try:
            with self._directory(parts[:-1]) as at:
                mode = os.stat(parts[-1], dir_fd=at, follow_symlinks=False).st_mode
        except (OSError, _Missing):
            return False
        if not stat.S_ISREG(mode):
            raise ToolError(f"{name}: is a {'directory' if stat.S_ISDIR(mode) else 'link or a device'}")
        return True

    def listing(self, name: str) -> list[str]:
        """Names under a directory of the candidate (`.`) or of the task, directories with a slash."""
        parts = _parts(name)
        is_task = parts[:1] == (TASK,)
        with self._directory(parts) as at, os.scandir(at) as entries:
            names = []
            for entry in entries:
                is_link_to_graphs = parts == (TASK,) and entry.name == "graphs" and self._graphs.is_dir()
                is_directory = entry.is_dir(follow_symlinks=False) or is_link_to_graphs
                is_shown = is_directory or PurePosixPath(entry.name).suffix in _TASK_SUFFIXES
                is_hidden = entry.name == "__pycache__" or (is_task and entry.name.casefold() == _ANSWERS)
                if is_shown and not is_hidden:
                    names.append(entry.name + "/" * is_directory)
        return sorted(names) + ([f"{TASK}/"] if not parts else [])

    def is_directory(self, name: str) -> bool:
        """Whether `name` is a directory of the candidate or the task. Raises ToolError for a path outside."""
        parts = _parts(name)
        try:
            with self._directory(parts):
                return True
        except _Missing:
            return False

    @contextlib.contextmanager
    def _directory(self, parts: tuple[str, ...], create: bool = False) -> Iterator[int]:
        """A descriptor of the directory `parts`, reached without following a link. Raises ToolError."""
        root, rest = self.path, parts
        if parts[:1] == (TASK,):
            if any(part.casefold() == _ANSWERS for part in parts):
                raise ToolError(f"{'/'.join(parts)}: not a file of the task")
            in_graphs = parts[1:2] == ("graphs",)
            root, rest = (self._graphs, parts[2:]) if in_graphs else (self.task_dir, parts[1:])
        name = "/".join(parts) or "."
        try:
            at = os.open(root, _DIRECTORY)
        except OSError as error:
            raise _explained(name, error) from error
        try:
            for part in rest:
                try:
                    if create:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, dir_fd=at)
                    inner = os.open(part, _DIRECTORY, dir_fd=at)
                except OSError as error:
                    raise _explained(name, error) from error
                os.close(at)
                at = inner
            yield at
        finally:
            os.close(at)

    def _check_new(self, name: str) -> None:
        """Raise ToolError if a further file `name` cannot be had."""
        known = [folder + file for folder, _, names in self._walk() for file in names]
        if len(known) >= MAX_FILES:
            raise ToolError(f"{name}: the directory holds {len(known)} files; more are not allowed")
        twin = next((other for other in known if other.casefold() == name.casefold()), None)
        if twin:
            raise ToolError(f"{name}: differs from {twin} only by upper and lower case; take another name")

    def _replace(self, parts: tuple[str, ...], data: bytes) -> None:
        """Write a file whole: over itself if it is a file of ours alone, else as a new one in its place.

        So nothing that a name points to is written to. A new file costs a hundred times as much.
        """
        name = "/".join(parts)
        with self._directory(parts[:-1], create=True) as at:
            try:
                made = os.open(parts[-1], _WRITE, dir_fd=at)
            except OSError:
                made = None
            if made is not None:
                with open(made, "wb", buffering=0) as file:
                    status = os.fstat(made)
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                        _write(file, data)
                        if status.st_size > len(data):
                            file.truncate(len(data))
                        return
            temporary = ".new"
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=at)
                made = os.open(temporary, _WRITE | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=at)
                with open(made, "wb", buffering=0) as file:
                    _write(file, data)
                os.replace(temporary, parts[-1], src_dir_fd=at, dst_dir_fd=at)
            except IsADirectoryError as error:
                raise _explained(name, error) from error

    def _remove(self, parts: tuple[str, ...]) -> None:
        with self._directory(parts[:-1]) as at, contextlib.suppress(FileNotFoundError):
            os.unlink(parts[-1], dir_fd=at)


class _Missing(ToolError):
    """There is nothing of this name, or no directory."""


def _parts(name: str) -> tuple[str, ...]:
    """Components of a relative path, a leading `pass_dir/` left out. Raises ToolError if it leads out."""
    if "\0" in name or name.startswith(("/", "~", "\\")):
        raise ToolError(f"{name[:80]!r}: paths are relative to your directory, such as 'FusedAddRelu.py'")
    parts = PurePosixPath(name).parts
    if ".." in parts:
        raise ToolError(f"{name[:80]}: '..' leads out of your directory")
    if len(parts) > 20 or any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        raise ToolError(f"{name[:80]}...: the path is too long")
    parts = parts[1:] if parts[:1] == (_ANSWERS,) else parts
    if parts and parts[0] != TASK and parts[0].casefold() in (TASK, _ANSWERS):
        raise ToolError(f"{name[:80]}: write '{parts[0].casefold()}' in lower case")
    return parts


def _writable(name: str) -> tuple[str, ...]:
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
    return parts


def _explained(name: str, error: OSError) -> ToolError:
    """What an OSError means to a model."""
    if isinstance(error, FileNotFoundError):
        return _Missing(f"{name}: no such file; view '.' to list the files")
    if isinstance(error, NotADirectoryError):
        return _Missing(f"{name}: no such file: a component of the path is a file or a link")
    if isinstance(error, IsADirectoryError):
        return ToolError(f"{name}: is a directory")
    return ToolError(f"{name}: {'is a link' if error.errno == errno.ELOOP else error.strerror}")


def _read_at(at: int, file: str, name: str, may_be_linked: bool) -> str:
    """The text of `file` in the directory `at`. Raises ToolError."""
    try:
        descriptor = os.open(file, _READ, dir_fd=at)
    except OSError as error:
        raise _explained(name, error) from error
    return _text(descriptor, name, may_be_linked)


def _write(file: RawIOBase, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _text(descriptor: int, name: str, may_be_linked: bool) -> str:
    """The text behind a descriptor, which is closed. Raises ToolError."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(f"{name}: {'is a directory' if stat.S_ISDIR(status.st_mode) else 'no file'}")
        if status.st_nlink > 1 and not may_be_linked:
            raise ToolError(f"{name}: is a hard link")
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
