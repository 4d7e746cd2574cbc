"""Files that an evaluation needs, by content hash: machines share no disk; each file travels once."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from passagent.errors import PassagentError
from passagent.sandbox.cache import write_whole
from passagent.tasks.reader import FILES, GRAPH_LIST, locate, subgraph_places

LEAST_FREE = 64 << 20
"""Bytes that the disk must have free."""
UNUSED_S = 3600.0
"""A worker forgets contents that nothing has asked for in this time, s."""


def key_of(content: bytes) -> str:
    """sha256 of a content."""
    return hashlib.sha256(content).hexdigest()


def pack(request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A referee's request with hashes in place of its task and files, and the contents behind the hashes.

    Raises UsageError, TaskError for the task.
    """
    contents: dict[str, bytes] = {}

    def keep(content: bytes) -> str:
        contents[key := key_of(content)] = content
        return key

    root = locate(request["task"])
    name = root.resolve().name
    files = [root / GRAPH_LIST, *(place / file for place, _ in subgraph_places(root) for file in FILES)]
    task = {
        os.path.normpath(os.path.join(name, os.path.relpath(path, root))): keep(path.read_bytes())
        for path in files
        if path.is_file()
    }
    packed = request | {"task": {"root": name, "files": task}}
    if "files" in request:
        packed["files"] = {name: keep(text.encode()) for name, text in request["files"].items()}
    return packed, contents


def encode(content: bytes) -> str:
    """A content as it stands in JSON."""
    return base64.b64encode(content).decode()


def decode(text: str) -> bytes:
    """Return the bytes that `encode` was given."""
    return base64.b64decode(text)


class Contents:
    """A worker's contents, and the task directories that are made of them, below `place`."""

    def __init__(self, place: Path) -> None:
        self._blobs, self._tasks = place / "contents", place / "tasks"
        self._blobs.mkdir(parents=True, exist_ok=True)

    def missing(self, packed: Mapping[str, Any]) -> list[str]:
        """The hashes in a packed request whose contents are not here."""
        keys = {*packed["task"]["files"].values(), *packed.get("files", {}).values()}
        lacking = []
        for key in sorted(keys):
            try:
                os.utime(self._path(key))
            except FileNotFoundError:
                lacking.append(key)
        return lacking

    def add(self, key: str, content: bytes) -> None:
        """Keep a content, whole or not at all. Raises OSError; PassagentError for a damaged one."""
        if key_of(content) != key:
            raise PassagentError(
                f"a content of {len(content)} bytes came damaged: its hash is not {key[:12]}"
            )
        write_whole(self._path(key), content)

    def lack(self) -> str | None:
        """Name the fault of the disk that they are on; None if nothing is."""
        free = shutil.disk_usage(self._blobs).free
        return f"{free >> 20} MB free in {self._blobs.parent}" if free < LEAST_FREE else None

    def get(self, key: str) -> bytes:
        """A content. Raises OSError."""
        return self._path(key).read_bytes()

    def unpack(self, packed: Mapping[str, Any]) -> dict[str, Any]:
        """The request with the path of its task, made of contents, and the text of its files.

        Raises OSError; PassagentError for a name that leads elsewhere.
        """
        task = packed["task"]
        digest = key_of(repr(sorted(task["files"].items())).encode())
        place = self._tasks / digest
        for name, key in task["files"].items():
            path = place / _inner(name)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.hardlink_to(self._path(key))
        request = {**packed, "task": str(place / _inner(task["root"]))}
        if "files" in packed:
            request["files"] = {name: self.get(key).decode() for name, key in packed["files"].items()}
        return request

    def forget(self) -> None:
        """Remove the contents that nothing has asked for in UNUSED_S; tasks keep their own link to theirs."""
        for path in self._blobs.iterdir():
            if time.time() - path.stat().st_mtime > UNUSED_S:
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            raise PassagentError(f"{key[:80]!r} is no content hash")
        return self._blobs / key


def _inner(name: str) -> PurePosixPath:
    """A path below the task's parent. Raises PassagentError for any other."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise PassagentError(f"{name[:200]!r}: a subgraph outside of its task's directory cannot be sent")
    return path
