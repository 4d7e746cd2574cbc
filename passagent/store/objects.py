"""Files by content: `<root>/ab/cdef...`, named by the sha256 of what they hold, whole or not there at all.

A file is visible as soon as `put` returns, and survives the death of the process. That it survives a loss of
power, too, is seen to later: settling.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from passagent.errors import InfrastructureError, PassagentError
from passagent.store.faults import os_fault


class Objects:
    """A content-addressed directory. Any number of processes may write to it at once."""

    def __init__(self, root: Path, kept: Callable[[str], bytes | None] = lambda key: None) -> None:
        """`kept(key)` knows the content of objects whose files may not be on the disk yet."""
        self.root = root
        self._kept = kept
        self._numbers = itertools.count()

    def path(self, key: str) -> Path:
        """Where the object of this key lies."""
        return self.root / key[:2] / key[2:]

    def put(self, content: bytes) -> str:
        """Store `content`, return its key. Raises PassagentError (a full disk, no permission)."""
        key = hashlib.sha256(content).hexdigest()
        try:
            self._write(key, content)
        except OSError as error:
            raise os_fault(error, self.root) from error
        return key

    def get(self, key: str) -> bytes:
        """The object's content. Raises PassagentError if it is gone, InfrastructureError if it is damaged."""
        try:
            content = self.path(key).read_bytes()
        except FileNotFoundError:
            content = None
        except OSError as error:
            raise os_fault(error, self.root) from error
        if content is not None and hashlib.sha256(content).hexdigest() == key:
            return content
        if (kept := self._kept(key)) is not None:  # lost with the power
            self.put(kept)
            return kept
        if content is None:
            raise PassagentError(f"{self.path(key)}: this stored file is gone; was objects/ cleaned by hand?")
        raise InfrastructureError(f"{self.path(key)}: the stored file is damaged; restore it or remove it")

    def put_files(self, files: dict[str, str]) -> str:
        """Store a directory of texts (name to text) as one JSON object; equal directories have equal keys."""
        return self.put(packed_files(files))

    def get_files(self, key: str) -> dict[str, str]:
        """The directory of texts behind `key`."""
        files: dict[str, str] = json.loads(self.get(key))
        return files

    def _write(self, key: str, content: bytes) -> None:
        """Write the object's file if it is not there whole."""
        folder = f"{self.root}/{key[:2]}"
        path = f"{folder}/{key[2:]}"
        try:
            if os.stat(path).st_size == len(content):  # a loss of power may leave it empty
                return
        except FileNotFoundError:
            pass
        temporary = f"{folder}/.tmp-{os.getpid()}-{next(self._numbers)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(temporary, flags, 0o600)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def packed_files(files: Mapping[str, str]) -> bytes:
    """The content of the object for a directory of texts."""
    return json.dumps(files, sort_keys=True).encode()
