"""Whole directories, and rows that a later run goes on from: what commands write beside the database.

A row is on the disk when the work behind it counts as done. So Ctrl-C and `kill -9` lose the work under way
and nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from passagent.errors import UsageError
from passagent.sandbox.faults import os_fault


@contextmanager
def whole_directory(out: Path, option: str = "--out") -> Iterator[Path]:
    """A directory to write into, which becomes `out` at once when the block ends; nothing stays if it fails.

    `option`: what names it. Raises UsageError if `out` holds files.
    """
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise UsageError(f"{option} {out}: is there already; name another directory, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{out.name}.", dir=out.parent, ignore_cleanup_errors=True
        ) as part:
            os.chmod(part, 0o755)
            yield Path(part)
            os.rename(part, out)
    except OSError as error:
        raise os_fault(error, out, option) from error


Row = TypeVar("Row", bound=BaseModel)
_key, _stands = attrgetter("key"), attrgetter("stands")


class RowFile(Generic[Row]):
    """The rows of a file, one line of JSON each, by their attribute `key`; of equal keys the last counts.

    Their attribute `stands` says that the work behind a row need not be done again.
    """

    def __init__(self, path: Path, kind: type[Row], what: str) -> None:
        """Read the rows of a file, or none where there is no file.

        what: the rows in words, for errors. Raises UsageError.
        """
        self.path = path
        self.rows: dict[Hashable, Row] = {}
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise os_fault(error, path, "--out") from error
        whole = content[: content.rfind(b"\n") + 1]  # without a line that a killed process left torn
        for number, line in enumerate(whole.decode(errors="replace").split("\n")[:-1], start=1):
            try:
                row = kind.model_validate(json.loads(line))
            except ValueError as error:
                raise UsageError(f"{path}:{number}: not {what}; give another --out") from error
            self.rows[_key(row)] = row

    def stands(self, key: Hashable) -> bool:
        """Return whether a row of this key is there that stands."""
        return key in self.rows and bool(_stands(self.rows[key]))

    def add(self, row: Row) -> None:
        """Append a row, on the disk when this returns. Raises PassagentError (a full disk)."""
        try:
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # several threads may append
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - 1))
                if file.read() not in (b"", b"\n"):  # a torn line
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
                # plain Python, because pydantic's JSON loses nan and inf
                file.write(json.dumps(row.model_dump()).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise os_fault(error, self.path, "--out") from error
        self.rows[_key(row)] = row
