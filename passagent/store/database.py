"""The store: one SQLite database (WAL) under a runs directory.

The database is the one source of truth. Everything is committed as it happens, so that a process killed at
any moment loses nothing but the call in flight.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlite_utils import Database

from passagent import __version__
from passagent.errors import InfrastructureError, PassagentError, UsageError
from passagent.system.faults import os_fault

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
_STATEMENTS = 256
"""Compiled statements that are kept."""

T = TypeVar("T")


class Store:
    """An open runs directory. The functions of passagent/store's other modules read and write it."""

    def __init__(self, runs_dir: Path, db: Database) -> None:
        self.runs_dir = runs_dir
        self.db = db
        self.only_reads = False
        """True while a `reading` is open."""
        self._file = _file_number(runs_dir / DATABASE)

    @classmethod
    def open(cls, runs_dir: str | Path, create: bool = True, to_look: bool = False) -> Store:
        """Open `<runs_dir>/passagent.db`, made if `create`.

        Without `create` a directory that cannot be written is opened to be looked at, and with `to_look` any
        one: nothing can be written then, and several threads may ask, one at a time. Raises UsageError for
        one that cannot be written, for another schema, and without `create` for one that holds no runs.
        """
        root = Path(runs_dir).absolute()
        path = root / DATABASE
        try:
            if not create and not path.is_file():
                raise UsageError(f"{root}: holds no runs; start one with passagent run, or give --runs-dir")
            if create:
                root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise os_fault(error, root) from error
        is_writable = create or (not to_look and os.access(root, os.W_OK) and os.access(path, os.W_OK))
        try:
            # transactions are begun and ended by `transaction` alone; any other statement is one of its own
            connection = sqlite3.connect(
                f"{path.as_uri()}?{'' if is_writable else read_only(path)}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                cached_statements=_STATEMENTS,
                check_same_thread=not to_look,
            )
            try:
                if is_writable:
                    connection.execute(f"PRAGMA page_size = {_PAGE}")  # of a new database
                    # SQLite does not wait by itself where two make the same database
                    _when_free(connection, "PRAGMA journal_mode = WAL", {})
                    for pragma in _PRAGMAS:
                        connection.execute(f"PRAGMA {pragma}")
                    create_or_check(connection, path)
                else:
                    check(connection, path)
                connection.execute("PRAGMA foreign_keys = ON")
                # `_when_free` waits from here on: SQLite looks again after up to 100 ms only
                connection.execute("PRAGMA busy_timeout = 0")
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            fault = sqlite_fault(error, path)
            if fault is None:
                raise
            raise fault from error
        return cls(root, Database(connection, execute_plugins=False))

    def check_in_place(self) -> None:
        """Raise UsageError if the database's file was removed or replaced: what is written now is lost."""
        path = self.runs_dir / DATABASE
        if _file_number(path) != self._file:
            raise UsageError(f"{path}: was removed or replaced while it was in use; put it back, then resume")

    def close(self) -> None:
        """Release the database."""
        self.db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(self) -> Transaction:
        """All writes inside are committed together, or none; an inner transaction joins the outer one.

        The write lock is taken at the start, so that what is read inside stays true. Raises PassagentError.
        """
        return Transaction(self)

    def reading(self) -> Reading:
        """All queries inside see one state of the database, and take its locks once; nothing may be written.

        In an open transaction they see that one's. Raises PassagentError.
        """
        return Reading(self)

    def execute(self, sql: str, parameters: dict[str, Any]) -> sqlite3.Cursor:
        """Run one writing statement, in the open transaction or in one of its own. Raises PassagentError."""
        try:
            return self._run(sql, parameters)
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def execute_many(self, sql: str, parameters: list[dict[str, Any]]) -> None:
        """Run a writing statement once for each of `parameters`, in the open transaction."""
        try:
            self.db.conn.executemany(sql, parameters)
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def rows(self, sql: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of a query, column to value. Raises PassagentError."""
        names, rows = self._ask(sql, parameters)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def row(self, sql: str, parameters: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The first row of a query, None if there is none. Raises PassagentError."""
        names, first_rows = self._ask(sql, parameters, rows=1)
        return dict(zip(names, first_rows[0], strict=True)) if first_rows else None

    def all(self, kind: type[T], sql: str, parameters: dict[str, Any] | None = None) -> list[T]:
        """The rows of a query as `kind`, a dataclass with a field for each column. Raises PassagentError."""
        names, rows = self._ask(sql, parameters)
        return [_filled(kind, names, row) for row in rows]

    def one(self, kind: type[T], sql: str, parameters: dict[str, Any] | None = None) -> T | None:
        """The first row of a query as `kind`, None if there is none; see `all`."""
        names, first_rows = self._ask(sql, parameters, rows=1)
        return _filled(kind, names, first_rows[0]) if first_rows else None

    def columns(
        self, sql: str, parameters: dict[str, Any] | None = None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of a query's columns, and its rows as they are: for many. Raises PassagentError."""
        return self._ask(sql, parameters)

    def _ask(
        self, sql: str, parameters: dict[str, Any] | None, rows: int | None = None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The names of a query's columns, and its first `rows`; None: all."""
        try:
            cursor = self._run(sql, parameters or {})
            fetched = cursor.fetchall() if rows is None else cursor.fetchmany(rows)
        except sqlite3.Error as error:
            raise self._explained(error) from error
        names = [column[0] for column in cursor.description]
        cursor.close()  # a query that is left in the middle would keep its snapshot
        return names, fetched

    def _run(self, sql: str, parameters: dict[str, Any]) -> sqlite3.Cursor:
        try:
            return _when_free(self.db.conn, sql, parameters)
        except (OverflowError, UnicodeEncodeError) as error:  # what only a person can have written
            raise UsageError(_cannot_be_held(parameters)) from error

    def _explained(self, error: sqlite3.Error) -> Exception:
        return sqlite_fault(error, self.runs_dir / DATABASE) or error


class Transaction:
    """The context of Store.transaction: a class, as contextlib's generators would cost measurable time."""

    __slots__ = ("is_outer", "store")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_outer = False

    def __enter__(self) -> None:
        assert not self.store.only_reads
        self.is_outer = not self.store.db.conn.in_transaction
        if self.is_outer:
            self.store.execute("BEGIN IMMEDIATE", {})

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if not self.is_outer:
            return
        try:
            if kind is None:
                self.store.execute("COMMIT", {})
        finally:
            if self.store.db.conn.in_transaction:
                self.store.db.conn.execute("ROLLBACK")


class Reading:
    """The context of Store.reading."""

    __slots__ = ("is_outer", "store")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_outer = False

    def __enter__(self) -> None:
        self.is_outer = not self.store.db.conn.in_transaction
        if self.is_outer:
            self.store.execute("BEGIN", {})
            self.store.only_reads = True

    def __exit__(self, *_: object) -> None:
        if self.is_outer:
            self.store.only_reads = False
            self.store.execute("COMMIT", {})


def _when_free(connection: sqlite3.Connection, sql: str, parameters: dict[str, Any]) -> sqlite3.Cursor:
    """Run a statement, waiting for another process's transaction to end. Raises sqlite3.Error."""
    until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return connection.execute(sql, parameters)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_LOOK_AGAIN_S)


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


def _filled(kind: type[T], names: list[str], row: tuple[Any, ...]) -> T:
    """Make `kind(**row)` without its constructor, which takes ten times as long for a frozen dataclass."""
    record = object.__new__(kind)
    vars(record).update(zip(names, row, strict=True))
    return record


def now() -> str:
    """The time in the form of every `..._at` column: ISO 8601, UTC, milliseconds."""
    return written(int(time.time() * 1000))


def written(milliseconds: int) -> str:
    """A time since 1970 in this form."""
    seconds, rest = divmod(milliseconds, 1000)
    return f"{_second(seconds)}.{rest:03d}Z"


@functools.lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().partition("+")[0]


SCHEMA = 22
"""The version of the tables in schema.sql (`PRAGMA user_version`)."""
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
