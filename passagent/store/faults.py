"""What SQLite's errors mean to a person: one line each."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from passagent.errors import InfrastructureError, PassagentError, UsageError

BUSY_TIMEOUT_S = 15.0
"""How long a write waits for another process's transaction, s."""


def sqlite_fault(error: sqlite3.Error, path: Path) -> PassagentError | None:
    """An error of SQLite on the database at `path`; None if it is a mistake of passagent's own."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        return InfrastructureError(f"{path}: the disk is full; free some space")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return InfrastructureError(
            f"{path}: locked by another process for over {BUSY_TIMEOUT_S:.0f} s; end that one, then try again"
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return UsageError(f"{path}: cannot be written ({error}); choose another place with --runs-dir")
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return UsageError(f"{path}: not a healthy SQLite database ({error}); move it away or restore it")
    if name.startswith(("SQLITE_IOERR", "SQLITE_NOMEM", "SQLITE_PROTOCOL")):
        return InfrastructureError(f"{path}: {error}; check the disk, then go on")
    return None
