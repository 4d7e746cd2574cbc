"""Which tables a database has: those of this version of passagent, or none yet. Any other one is refused.

There has been no release, so nothing is migrated: whoever changes a table in schema.sql raises SCHEMA.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from passagent import __version__
from passagent.errors import UsageError

SCHEMA = 21
"""Of the tables in schema.sql (`PRAGMA user_version`)."""
_PASSAGENT = 0x70617373
"""`PRAGMA application_id` of passagent's databases: "pass"."""


def create_or_check(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new database. Raises UsageError for one of another schema or another program."""
    if _is_empty(connection):
        # taken before looking again: two processes may open a new database at the same moment
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _is_empty(connection):
                for statement in Path(__file__).with_name("schema.sql").read_text().split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_PASSAGENT}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise
    check(connection, path)


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise UsageError unless the database has the tables of this version."""
    schema = _pragma(connection, "user_version")
    if schema == SCHEMA and _pragma(connection, "application_id") == _PASSAGENT:
        return
    if _is_empty(connection):
        raise UsageError(f"{path}: holds nothing yet; start a run with passagent run, or give --runs-dir")
    try:
        newest = connection.execute("SELECT version FROM runs ORDER BY rowid DESC LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        raise UsageError(
            f"{path}: a database of another program; choose another place with --runs-dir"
        ) from error
    writer = f"passagent {newest[0]}" if newest else "passagent"
    raise UsageError(
        f"{path}: has schema {schema}, which the {writer} that wrote it reads; this is passagent "
        f"{__version__} with schema {SCHEMA}: open it with that one, or choose another place with --runs-dir"
    )


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
