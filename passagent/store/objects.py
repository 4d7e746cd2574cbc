"""Files by content: `<root>/ab/cdef...`, named by the sha256 of what they hold, whole or not there at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from passagent.errors import InfrastructureError, PassagentError
from passagent.store.faults import os_fault


class Objects:
    """A content-addressed directory. Any number of processes may write to it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: str) -> Path:
        """Where the object of this key lies."""
        return self.root / key[:2] / key[2:]

    def put(self, content: bytes) -> str:
        """Store `content`, return its key. Raises PassagentError (a full disk, no permission)."""
        key = hashlib.sha256(content).hexdigest()
        path = self.path(key)
        if path.is_file():
            return key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tmp-", delete=False) as file:
                try:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                    os.replace(file.name, path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError as error:
            raise os_fault(error, self.root) from error
        return key

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
