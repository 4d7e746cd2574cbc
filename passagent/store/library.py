"""The library: what runs found, for later ones. One SQLite file, `library.db`.

Each runs directory has one, and so has the user, whose is that of `optimize`.

Many runs write to it at the same time. Each write is one transaction, so that a process that is killed leaves
the library whole, and whatever a run writes it may write again: a row that is there stays as it is.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from passagent.errors import UsageError
from passagent.store.database import BUSY_TIMEOUT_S, read_only, sqlite_fault
from passagent.system.faults import os_fault

SCHEMA = 2
"""Of TABLES (`PRAGMA user_version`)."""
FILE = "library.db"
OFF = "off"
"""In place of a path: there is no library."""
TABLES = """
CREATE TABLE exemplars (
    instance TEXT NOT NULL, structure TEXT NOT NULL, device TEXT NOT NULL, torch TEXT NOT NULL,
    operators TEXT NOT NULL, shapes TEXT NOT NULL, task TEXT NOT NULL, files TEXT NOT NULL,
    plan TEXT NOT NULL, dispatch TEXT NOT NULL, reference TEXT NOT NULL, speedup REAL NOT NULL,
    as_score REAL NOT NULL, as_low REAL, as_high REAL, run TEXT NOT NULL, model TEXT NOT NULL,
    licence TEXT NOT NULL,
    kept_at TEXT NOT NULL, status TEXT NOT NULL, verified_at TEXT,
    PRIMARY KEY (instance, device, torch, reference));
CREATE INDEX exemplars_by_structure ON exemplars (structure);
CREATE TABLE tasks (
    key TEXT PRIMARY KEY, name TEXT NOT NULL, hashes TEXT NOT NULL)
"""


def default_path() -> Path:
    """`$XDG_DATA_HOME/passagent/library.db`, else `~/.local/share/passagent/library.db`."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "passagent" / FILE


def library_path(given: str | Path | None, runs_dir: Path | None = None) -> Path | None:
    """The file of a setting: `given`, else `$PASSAGENT_LIBRARY`, else that of `runs_dir`; None for `off`.

    Without a runs directory it is the user's.
    """
    usual = runs_dir / FILE if runs_dir else default_path()
    named = str(given or "") or os.environ.get("PASSAGENT_LIBRARY") or str(usual)
    return None if named == OFF else Path(named)


def library_text(path: Path | None) -> str:
    """`library: FILE (passes: 3)`: what a command begins with. Raises UsageError."""
    if path is None:
        return "library: off"
    with Library.open(path) as library:
        [row] = library.rows("SELECT count(*) AS passes FROM exemplars")
    return f"library: {path} (passes: {row['passes']})"


class Library:
    """An open library; see `open`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    @classmethod
    @contextmanager
    def open(
        cls, path: str | Path | None = None, create: bool = True, to_look: bool = False
    ) -> Iterator[Self]:
        """The library at `path` (see library_path), made if `create`; nothing can be written `to_look`.

        Raises UsageError where there is none, and for a file of another version; InfrastructureError.
        """
        place = Path(path) if path is not None else library_path(None)
        if place is None or str(place) == OFF:
            raise UsageError("the library is off; name a file with --library, or unset PASSAGENT_LIBRARY")
        if (to_look or not create) and not place.is_file():
            raise UsageError(f"{place}: there is no library here; passagent run and optimize make it")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise os_fault(error, place.parent, "--library") from error
        how = read_only(place) if to_look else ""
        with _explained(place):
            connection = sqlite3.connect(
                f"{place.absolute().as_uri()}?{how}", uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None
            )
        try:
            connection.row_factory = sqlite3.Row
            library = cls(place, connection)
            if to_look:
                library._check()
            else:
                with _explained(place):
                    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute("PRAGMA synchronous = NORMAL")
                library._create_or_check()
            yield library
        finally:
            connection.close()

    def _create_or_check(self) -> None:
        if self._version() == SCHEMA:
            return
        with self.transaction():
            if self._version() == SCHEMA:  # another process made it meanwhile
                return
            if self.rows("SELECT name FROM sqlite_master WHERE type = 'table'"):
                self._check()
            for statement in TABLES.split(";\n"):
                self.run(statement)
            self.run(f"PRAGMA user_version = {SCHEMA}")

    def _check(self) -> None:
        """Raise UsageError unless the library has the tables of this version."""
        if self._version() != SCHEMA:
            raise UsageError(
                f"{self.path}: was written by another version of passagent; move it away, or name "
                "another file with --library"
            )

    def _version(self) -> int:
        return int(self.run("PRAGMA user_version").fetchone()[0])

    def keep_task(self, key: str, name: str, hashes: Sequence[str]) -> None:
        """Keep the hashes of a task's subgraphs, of both levels."""
        self.run(
            "INSERT OR REPLACE INTO tasks (key, name, hashes) VALUES (:key, :name, :hashes)",
            {"key": key, "name": name, "hashes": json.dumps(list(hashes))},
        )

    def task_hashes(self, key: str) -> list[str] | None:
        """Return the hashes that were kept for a task, if any."""
        rows = self.rows("SELECT hashes FROM tasks WHERE key = :key", {"key": key})
        return list(json.loads(rows[0]["hashes"])) if rows else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One write: all of it or nothing; other writers wait."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            with _explained(self.path):
                self._connection.rollback()
            raise

    def rows(self, sql: str, given: dict[str, Any] | None = None) -> list[sqlite3.Row]:
        """The rows of a question."""
        return self.run(sql, given).fetchall()

    def run(self, sql: str, given: dict[str, Any] | None = None) -> sqlite3.Cursor:
        """Run a statement. Raises UsageError and InfrastructureError for what SQLite cannot do."""
        with _explained(self.path):
            return self._connection.execute(sql, given or {})


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise (sqlite_fault(error, path) or error) from error
