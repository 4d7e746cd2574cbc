"""The store: one SQLite database (WAL) under a runs directory.

The database is the one source of truth. Everything is committed as it happens, so that a process killed at
any moment loses nothing but the call in flight.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from passagent import __version__
from passagent.errors import InfrastructureError, PassagentError, UsageError
from passagent.sandbox.faults import writing

DATABASE = "passagent.db"
BUSY_TIMEOUT_S = 15.0
"""How long a write waits for another process's transaction, s."""
_PRAGMAS = (
    "synchronous = NORMAL",  # a commit survives the death of the process; the disk is waited for seldom
    "wal_autocheckpoint = 16000",  # pages (16 MB): a page that is written often is forced to disk once
    "cache_size = -16000",  # kB
)
_PAGE = 1024
"""Bytes. Most rows take one or two kB: larger pages are left half empty, and a commit writes whole pages."""
_LOOK_AGAIN_S = 2e-4
"""After which a database that another process writes to is tried again: about as long as one writes."""

SCHEMA = 25
"""The version of the tables in schema.sql (`PRAGMA user_version`)."""

T = TypeVar("T")


class Connection:
    """An open database: statements, queries, transactions. Each raises what sqlite_fault makes of errors."""

    def __init__(self, path: Path, to_look: bool = False) -> None:
        """Open the database at `path`. With `to_look` nothing can be written, and several threads may ask,
        one at a time.
        """
        self.path = path
        with self._explained():
            # transactions are begun and ended by `transaction` alone; any other statement is one of its own
            self.connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?{read_only(path) if to_look else ''}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=not to_look,
            )
            if not to_look:
                try:
                    self.connection.execute(f"PRAGMA page_size = {_PAGE}")  # of a new database
                    # SQLite does not wait by itself where two make the same database
                    self.execute("PRAGMA journal_mode = WAL", {})
                    for pragma in _PRAGMAS:
                        self.connection.execute(f"PRAGMA {pragma}")
                except BaseException:
                    self.close()
                    raise

    def close(self) -> None:
        """Release the database."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all writes inside together, or none; an inner transaction joins the outer one.

        The write lock is taken at the start, so that what is read inside stays true.
        """
        if self.connection.in_transaction:
            yield
            return
        self.execute("BEGIN IMMEDIATE", {})
        try:
            yield
            self.execute("COMMIT", {})
        finally:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let all queries inside see one state of the database, and take its locks once; nothing is written.

        In an open transaction they see that one's.
        """
        if self.connection.in_transaction:
            yield
            return
        self.execute("BEGIN", {})
        try:
            yield
        finally:
            self.execute("COMMIT", {})

    def execute(self, sql: str, parameters: dict[str, Any] | None = None) -> sqlite3.Cursor:
        """Run one statement, in the open transaction or in one of its own, waiting for other processes'."""
        until = time.monotonic() + BUSY_TIMEOUT_S
        with self._explained():
            while True:
                try:
                    return self.connection.execute(sql, parameters or {})
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                        raise
                    time.sleep(_LOOK_AGAIN_S)
                except (OverflowError, UnicodeEncodeError) as error:  # what only a person can have written
                    raise UsageError(_cannot_be_held(parameters or {})) from error

    def insert(self, table: str, **values: Any) -> int:
        """Add a row. Return its id."""
        places = ", ".join(f":{name}" for name in values)
        sql = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})"
        return self.execute(sql, values).lastrowid or 0

    def update(self, table: str, row_id: int, **values: Any) -> None:
        """Change these columns of the row that has this id."""
        columns = ", ".join(f"{name} = :{name}" for name in values)
        self.execute(f"UPDATE {table} SET {columns} WHERE rowid = :row_id", values | {"row_id": row_id})

    def rows(self, sql: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of a query, column to value."""
        names, rows = self.columns(sql, parameters)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def row(self, sql: str, parameters: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The first row of a query, None if there is none."""
        return next(iter(self.rows(sql, parameters)), None)

    def all(self, kind: type[T], sql: str, parameters: dict[str, Any] | None = None) -> list[T]:
        """The rows of a query as `kind`, a record with a field for each column."""
        return [kind(**row) for row in self.rows(sql, parameters)]

    def one(self, kind: type[T], sql: str, parameters: dict[str, Any] | None = None) -> T | None:
        """The first row of a query as `kind`, None if there is none; see `all`."""
        return next(iter(self.all(kind, sql, parameters)), None)

    def columns(
        self, sql: str, parameters: dict[str, Any] | None = None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of a query's columns, and its rows as they are."""
        cursor = self.execute(sql, parameters)
        with self._explained():
            return [column[0] for column in cursor.description], cursor.fetchall()

    @property
    def version(self) -> int:
        """The version of the tables (`PRAGMA user_version`); 0 before they are made."""
        return int(self.rows("PRAGMA user_version")[0]["user_version"])

    @property
    def is_empty(self) -> bool:
        """Tell whether there are no tables yet."""
        return not self.rows("SELECT 1 FROM sqlite_master LIMIT 1")

    def make_tables(self, script: str, version: int) -> None:
        """Make the tables, unless there are some: another process may have made them meanwhile."""
        with self.transaction():
            if self.is_empty:
                for statement in script.split(";\n"):
                    self.execute(statement)
                self.execute(f"PRAGMA user_version = {version}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise SQLite's errors as passagent's."""
        try:
            yield
        except sqlite3.Error as error:
            raise (sqlite_fault(error, self.path) or error) from error


class Store(Connection):
    """An open runs directory. The functions of passagent/store's other modules read and write it."""

    def __init__(self, runs_dir: Path, to_look: bool) -> None:
        super().__init__(runs_dir / DATABASE, to_look=to_look)
        self.runs_dir = runs_dir
        try:
            if not to_look and self.version != SCHEMA:
                self.make_tables(Path(__file__).with_name("schema.sql").read_text(), SCHEMA)
            self._check()
            self.execute("PRAGMA foreign_keys = ON")
            # `execute` waits from here on: SQLite looks again after up to 100 ms only
            self.execute("PRAGMA busy_timeout = 0")
        except BaseException:
            self.close()
            raise
        self._file = _file_number(self.path)

    def _check(self) -> None:
        """Raise UsageError unless the database has the tables of this version."""
        if self.version == SCHEMA:
            return
        if self.is_empty:
            raise UsageError(
                f"{self.path}: holds nothing yet; start a run with passagent run, or give --runs-dir"
            )
        try:
            newest = self.row("SELECT version FROM runs ORDER BY rowid DESC LIMIT 1")
        except sqlite3.OperationalError as error:
            raise UsageError(
                f"{self.path}: a database of another program; choose another place with --runs-dir"
            ) from error
        writer = f"passagent {newest['version']}" if newest else "passagent"
        raise UsageError(
            f"{self.path}: has schema {self.version}, which the {writer} that wrote it reads; this is "
            f"passagent {__version__} with schema {SCHEMA}: open it with that one, or choose another place "
            "with --runs-dir"
        )

    @classmethod
    def open(cls, runs_dir: str | Path, create: bool = True, to_look: bool = False) -> Store:
        """Open `<runs_dir>/passagent.db`, made if `create`.

        Without `create` a directory that cannot be written is opened to be looked at, and with `to_look` any
        one: nothing can be written then, and several threads may ask, one at a time. Raises UsageError for
        one that cannot be written, for another schema, and without `create` for one that holds no runs.
        """
        root = Path(runs_dir).absolute()
        path = root / DATABASE
        with writing(root):
            if not create and not path.is_file():
                raise UsageError(f"{root}: holds no runs; start one with passagent run, or give --runs-dir")
            if create:
                root.mkdir(parents=True, exist_ok=True)
        is_writable = create or (not to_look and os.access(root, os.W_OK) and os.access(path, os.W_OK))
        return cls(root, not is_writable)

    def keep_files(self, files: Mapping[str, str]) -> str:
        """Store a directory of texts (name to text), unless it is there. Return its key: Candidate.key.

        The key is the sha256 of their JSON, so what several nodes propose is stored once.
        """
        text = json.dumps(files, sort_keys=True).encode()
        key = hashlib.sha256(text).hexdigest()
        self.execute(
            "INSERT OR IGNORE INTO files (key, content) VALUES (:key, :content)",
            {"key": key, "content": zlib.compress(text)},
        )
        return key

    def get_files(self, key: str) -> dict[str, str]:
        """The directory behind `key`. Raises PassagentError if it is gone, InfrastructureError if damaged."""
        row = self.row("SELECT content FROM files WHERE key = :key", {"key": key})
        place = f"{self.runs_dir}: the files {key[:16]} of a candidate"
        if row is None:
            raise PassagentError(f"{place} are gone; restore the database from a backup")
        try:
            text = zlib.decompress(row["content"])
        except zlib.error:
            text = b""
        if hashlib.sha256(text).hexdigest() != key:
            raise InfrastructureError(f"{place} are damaged; restore the database from a backup")
        files: dict[str, str] = json.loads(text)
        return files

    def check_in_place(self) -> None:
        """Raise UsageError if the database's file was removed or replaced: what is written now is lost."""
        if _file_number(self.path) != self._file:
            raise UsageError(
                f"{self.path}: was removed or replaced while it was in use; put it back, then resume"
            )


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


def read_only(path: Path) -> str:
    """How a database is opened to be looked at: as one that nobody writes, where nobody can.

    Without a log nothing is under way, and SQLite would want to make one.
    """
    log = path.with_name(f"{path.name}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    return "mode=ro" if has_log or os.access(path.parent, os.W_OK) else "immutable=1"


def _file_number(path: Path) -> int | None:
    """The number of the file at `path`; None if there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _cannot_be_held(parameters: dict[str, Any]) -> str:
    """Name in a line the values that SQLite does not take."""
    for value in parameters.values():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"{value}: is too large a number; write one below 2^63"
    return "a name is not UTF-8, which the database needs; rename the file or directory"


def now() -> str:
    """The time in the form of every `..._at` column: ISO 8601, UTC, milliseconds."""
    return written(int(time.time() * 1000))


def written(milliseconds: int) -> str:
    """A time since 1970 in this form."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"
