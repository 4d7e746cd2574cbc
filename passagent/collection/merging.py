"""Many databases made one: every row of each, its numbers raised by what the new database already has.

What is a number of another row is known from the schema's foreign keys, and from _REFERENCES for columns that
have none. So a table that is added later is copied without a change here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from passagent.errors import PassagentError, UsageError
from passagent.faults import os_fault
from passagent.store.database import DATABASE, Store, read_only

_REFERENCES = {
    ("runs", "forked_node"): "nodes",
    ("runs", "forked_run"): "runs",
    ("islands", "best_node"): "nodes",
    ("episodes", "best_node"): "nodes",
}
"""Columns that hold another row's number without being a foreign key."""
_ADDED = {
    "collections": "INSERT INTO main.collections SELECT * FROM source.collections WHERE true "
    "ON CONFLICT (model) DO UPDATE SET elapsed_s = elapsed_s + excluded.elapsed_s",
    "files": "INSERT OR IGNORE INTO main.files SELECT * FROM source.files",
}
"""Tables whose rows belong to no run: equal ones become one."""


class _Table(NamedTuple):
    name: str
    columns: list[str]
    refers: dict[str, str]
    """Of a column, the table whose rows it names."""
    has_numbers: bool
    """Its rows are numbered: `id`."""


def merge(directories: list[Path], target: Path) -> dict[str, int]:
    """Write the runs of the databases in `directories` into a new one in `target`; of each, how many runs.

    A run keeps its id, unless another one has it. Raises UsageError, before anything is written, if `target`
    exists, a database is missing or foreign, or a trial, run or distilled hint is in two of them. A database
    that is not whole never has its final name.
    """
    if target.exists():
        raise UsageError(
            f"{target}: exists; give another --runs-dir, which the merged database is written to"
        )
    fresh = target.absolute().with_name(f".{target.name}.merging-{os.getpid()}")
    for directory in directories:
        Store.open(directory, create=False).close()
    try:
        _refuse_doubles(directories)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        with Store.open(fresh) as store:
            counts = {str(directory): _copy(store, directory) for directory in directories}
            if dangling := store.row("PRAGMA foreign_key_check"):
                raise PassagentError(
                    f"a row of {dangling['table']} would point to nothing; nothing is written"
                )
        fresh.rename(target)
    except OSError as error:
        raise os_fault(error, target) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return counts


def _refuse_doubles(directories: list[Path]) -> None:
    """Raise UsageError for a trial, a run, or a distilled hint, that is in two of the databases."""
    seen: dict[tuple[object, ...], Path] = {}

    def note(what: str, key: tuple[object, ...], directory: Path) -> None:
        if key in seen:
            raise UsageError(f"{what} is in {seen[key]} and in {directory}: leave one of them out")
        seen[key] = directory

    for directory in directories:
        with Store.open(directory, create=False) as store:
            for row in store.rows(
                "SELECT id, task, task_key, model, trial, created_at FROM runs ORDER BY rowid"
            ):
                trial = f"{row['task']} trial {row['trial']} of {row['model']}"
                if row["trial"] is not None:
                    note(trial, (row["task_key"], row["model"], row["trial"]), directory)
                note(f"run {row['id']}", (row["id"], row["created_at"]), directory)
            for row in store.rows("SELECT hint_id FROM distilled_hints WHERE hint_id IS NOT NULL"):
                note(f"hint {row['hint_id']}", (row["hint_id"],), directory)


def _copy(store: Store, directory: Path) -> int:
    """Copy all rows of a database, in one transaction; how many runs."""
    store.execute("PRAGMA foreign_keys = OFF", {})  # rows come table by table; `merge` looks at the end
    with Store.open(directory, create=False) as source:
        path = source.runs_dir / DATABASE
        how = "mode=ro" if os.access(source.runs_dir, os.W_OK) else read_only(path)
        store.execute("ATTACH :path AS source", {"path": f"{path.as_uri()}?{how}"})
        try:
            with store.transaction():
                tables = list(_tables(store))
                above = {table.name: _largest(store, table.name) for table in tables if table.has_numbers}
                _rename_runs(store)
                for table in tables:
                    if table.name in _ADDED:
                        store.execute(_ADDED[table.name], {})
                    else:
                        _copy_table(store, table, above)
                store.execute("DROP TABLE temp.renamed", {})
            [counted] = store.rows("SELECT count(*) AS n FROM source.runs")
        finally:
            store.execute("DETACH source", {})
    return int(counted["n"])


def _tables(store: Store) -> Iterator[_Table]:
    """The tables in the order of the schema, and which of their columns hold what names a row."""
    for row in store.rows("SELECT name FROM main.sqlite_master WHERE type = 'table' ORDER BY rowid"):
        name = row["name"]
        info = store.rows(f"PRAGMA main.table_info({name})")
        keys = {one["name"] for one in info if one["name"] == "id"}
        refers = dict.fromkeys(keys, name)
        refers |= {key["from"]: key["table"] for key in store.rows(f"PRAGMA main.foreign_key_list({name})")}
        refers |= {column: table for (owner, column), table in _REFERENCES.items() if owner == name}
        has_numbers = any(one["name"] == "id" and one["type"] == "INTEGER" for one in info)
        yield _Table(name, [one["name"] for one in info], refers, has_numbers)


def _largest(store: Store, table: str) -> int:
    """The largest number in a table."""
    [row] = store.rows(f"SELECT coalesce(max(id), 0) AS id FROM main.{table}")
    return int(row["id"])


def _rename_runs(store: Store) -> None:
    """Give a run another id where a different one has its own already: eight digits may come twice."""
    store.execute("CREATE TEMP TABLE renamed (id TEXT PRIMARY KEY, fresh TEXT NOT NULL)", {})
    store.execute(
        "INSERT INTO temp.renamed SELECT id, lower(hex(randomblob(4))) FROM source.runs "
        "WHERE id IN (SELECT id FROM main.runs)",
        {},
    )


def _copy_table(store: Store, table: _Table, above: dict[str, int]) -> None:
    """Copy a table's rows, each column that names a row translated."""

    def translated(column: str) -> str:
        owner, value = table.refers.get(column), f"theirs.{column}"
        if owner == "runs":
            return f"coalesce((SELECT fresh FROM temp.renamed WHERE renamed.id = {value}), {value})"
        if owner is None:
            return value
        raised = f"{value} + {above[owner]}"
        return raised

    order = "ORDER BY rowid" if table.name == "runs" else ""
    names, values = ", ".join(table.columns), ", ".join(map(translated, table.columns))
    store.execute(
        f"INSERT INTO main.{table.name} ({names}) SELECT {values} FROM source.{table.name} AS theirs {order}",
        {},
    )
