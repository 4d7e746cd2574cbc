"""The tables of passagent.db, as numbered migrations. docs/database.md says what each column means.

A database is brought up to date when it is opened; one that a newer passagent wrote is refused.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from contextlib import suppress
from pathlib import Path

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from passagent.errors import UsageError
from passagent.store import tables
from passagent.store.files import pack_text
from passagent.store.pairs import pairs_of

migrations = Migrations("passagent")

OBJECTS = "objects"
"""Where older versions kept candidates' files, beside the database."""


@migrations(name="0001_tables")
def _tables(db: Database) -> None:
    for statement in tables.TABLES.split(";\n"):
        db.execute(statement)


@migrations(name="0002_calls")
def _calls(db: Database) -> None:
    for statement in tables.CALLS.split(";\n"):
        db.execute(statement)


@migrations(name="0003_distilled_hints")
def _distilled_hints(db: Database) -> None:
    for statement in tables.DISTILLED_HINTS.split(";\n"):
        db.execute(statement)


@migrations(name="0004_queue")
def _queue(db: Database) -> None:
    for statement in tables.QUEUE.split(";\n"):
        db.execute(statement)


@migrations(name="0005_algorithm")
def _algorithm(db: Database) -> None:
    for statement in tables.ALGORITHM.split(";\n"):
        db.execute(statement)


@migrations(name="0006_fork")
def _fork(db: Database) -> None:
    # no reference: the run that was forked may be removed
    db.execute("ALTER TABLE runs ADD COLUMN forked_run TEXT")
    db.execute("ALTER TABLE runs ADD COLUMN forked_node INTEGER")


@migrations(name="0007_packed")
def _packed(db: Database) -> None:
    """Messages are packed against others, and known by a shorter digest; those stored before stay texts."""
    db.execute("ALTER TABLE messages ADD COLUMN base INTEGER")
    for message_id, digest in db.execute("SELECT id, digest FROM messages").fetchall():
        short = bytes.fromhex(digest)[:16]
        db.execute("UPDATE messages SET digest = :short WHERE id = :id", {"short": short, "id": message_id})


@migrations(name="0008_similar_tasks")
def _similar(db: Database) -> None:
    for statement in tables.SIMILAR.split(";\n"):
        db.execute(statement)
    for key, operators in db.execute("SELECT task_key, min(operators) FROM runs GROUP BY 1").fetchall():
        pairs = pairs_of(json.loads(operators))
        db.execute("INSERT INTO tasks VALUES (:key, :count)", {"key": key, "count": len(pairs)})
        for pair in pairs:
            db.execute(
                "INSERT INTO operator_pairs VALUES (:pair, 1) ON CONFLICT DO UPDATE SET tasks = tasks + 1",
                {"pair": pair},
            )
            db.execute("INSERT INTO task_pairs VALUES (:pair, :key)", {"pair": pair, "key": key})


@migrations(name="0009_no_heartbeats")
def _no_heartbeats(db: Database) -> None:
    db.execute("ALTER TABLE runs DROP COLUMN heartbeat")
    db.execute("ALTER TABLE nodes DROP COLUMN heartbeat")


@migrations(name="0010_smaller")
def _smaller(db: Database) -> None:
    """What is written with every node takes less room: no second index, no copy of a key."""
    for statement in tables.SMALLER.split(";\n"):
        db.execute(statement)


@migrations(name="0011_leaner")
def _leaner(db: Database) -> None:
    """Messages lie beside others and need no digest; times of steps are numbers; hints shown are a row."""
    for statement in tables.LEANER.split(";\n"):
        db.execute(statement)


@migrations(name="0012_less_twice")
def _less_twice(db: Database) -> None:
    """No index that no query needs, of hashes their first 64 bits; results are packed against another one."""
    for statement in tables.LESS_TWICE.split(";\n"):
        db.execute(statement)


@migrations(name="0013_files")
def _files(db: Database) -> None:
    """Candidates' files lie in the database, not beside it."""
    for statement in tables.FILES.split(";\n"):
        db.execute(statement)
    # those that were on their way to the disk
    texts = {
        key: zlib.decompress(content) for key, content in db.execute("SELECT key, content FROM unsettled")
    }
    root = Path(db.execute("SELECT file FROM pragma_database_list WHERE name = 'main'").fetchone()[0]).parent
    for (key,) in db.execute("SELECT DISTINCT files FROM nodes").fetchall():
        text = texts.get(key)
        with suppress(FileNotFoundError):  # `passagent doctor` tells
            text = text or (root / OBJECTS / key[:2] / key[2:]).read_bytes()
        if text is not None and hashlib.sha256(text).hexdigest() == key:
            db.execute(
                "INSERT INTO files (mark, content) VALUES (substr(:key, 1, 16), :content)",
                pack_text(key, text)._asdict(),
            )
    db.execute("DROP TABLE unsettled")


@migrations(name="0014_held_all")
def _held_all(db: Database) -> None:
    """Whether a series held all correct nodes: of older ones nobody knows."""
    db.execute("ALTER TABLE confirmations ADD COLUMN held_all INTEGER NOT NULL DEFAULT 0")


def migrate(db: Database, path: Path) -> None:
    """Apply what is missing. Raises UsageError for a database of a newer passagent."""
    known = {migration.name for migration in migrations.pending(db)}
    applied = {migration.name for migration in migrations.applied(db)}
    newer = sorted(applied - {migration.name for migration in migrations._migrations})
    if newer:
        raise UsageError(
            f"{path}: written by a newer passagent (schema {newer[-1]}); upgrade passagent to open it"
        )
    if known:
        # taken before looking again: two processes may open a new database at the same moment
        db.execute("BEGIN IMMEDIATE")
        try:
            if not list(migrations.applied(db)) and set(db.table_names()) - {migrations.migrations_table}:
                raise UsageError(
                    f"{path}: a database of another program; choose another place with --runs-dir"
                )
            migrations.apply(db)
            db.commit()
        except BaseException:
            db.rollback()
            raise
