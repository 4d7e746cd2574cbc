"""Files by content: `<root>/ab/cdef...`, named by the sha256 of what they hold, whole or not there at all.

A file is visible as soon as `put` returns, and survives the death of the process. That it survives a loss of
power, too, takes the disk some milliseconds: it happens beside, and `settle` waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from passagent.errors import InfrastructureError, PassagentError
from passagent.store.faults import os_fault

_SYNCS = 8
"""Files that are forced to disk at the same time: the file system's journal takes them together."""


class Objects:
    """A content-addressed directory. Any number of processes may write to it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._syncing: dict[str, Future[None]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._numbers = itertools.count()

    def path(self, key: str) -> Path:
        """Where the object of this key lies."""
        return self.root / key[:2] / key[2:]

    def put(self, content: bytes) -> str:
        """Store `content`, return its key. Raises PassagentError (a full disk, no permission)."""
        key = hashlib.sha256(content).hexdigest()
        try:
            descriptor = self._open(key, content)
        except OSError as error:
            raise os_fault(error, self.root) from error
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_SYNCS, thread_name_prefix="sync")
        syncing = self._syncing[key] = self._threads.submit(_sync, descriptor)
        syncing.add_done_callback(lambda done: done.exception() or self._syncing.pop(key, None))
        return key

    async def settle(self, key: str) -> None:
        """Return when the object, put by this process, survives a loss of power. Raises PassagentError."""
        syncing = self._syncing.get(key)
        if syncing is not None:
            try:
                await asyncio.shield(asyncio.wrap_future(syncing))
            except OSError as error:
                raise os_fault(error, self.root) from error

    def close(self) -> None:
        """Wait for what is being forced to disk."""
        if self._threads is not None:
            self._threads.shutdown()

    def get(self, key: str) -> bytes:
        """The object's content. Raises PassagentError if it is gone, InfrastructureError if it is damaged."""
        try:
            content = self.path(key).read_bytes()
        except FileNotFoundError:
            raise PassagentError(
                f"{self.path(key)}: this stored file is gone; was objects/ cleaned by hand?"
            ) from None
        except OSError as error:
            raise os_fault(error, self.root) from error
        if hashlib.sha256(content).hexdigest() != key:
            raise InfrastructureError(
                f"{self.path(key)}: the stored file is damaged; restore it or remove it"
            )
        return content

    def put_files(self, files: dict[str, str]) -> str:
        """Store a directory of texts (name to text) as one JSON object; equal directories have equal keys."""
        return self.put(json.dumps(files, sort_keys=True).encode())

    def get_files(self, key: str) -> dict[str, str]:
        """The directory of texts behind `key`."""
        files: dict[str, str] = json.loads(self.get(key))
        return files

    def _open(self, key: str, content: bytes) -> int:
        """A descriptor of the object's file, which is written if it is not there whole."""
        folder = f"{self.root}/{key[:2]}"
        path = f"{folder}/{key[2:]}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        else:
            if os.fstat(descriptor).st_size == len(content):  # a loss of power may leave it empty
                return descriptor
            os.close(descriptor)
        temporary = f"{folder}/.tmp-{os.getpid()}-{next(self._numbers)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(temporary, flags, 0o600)
        try:
            with open(descriptor, "wb", buffering=0, closefd=False) as file:
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
            os.replace(temporary, path)
        except BaseException:
            os.close(descriptor)
            os.unlink(temporary)
            raise
        return descriptor


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
