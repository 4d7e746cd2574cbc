"""Removing a run: all its rows at once, and nothing that another run shares."""

from __future__ import annotations

from typing import NamedTuple

from passagent.errors import PassagentError
from passagent.store.database import Store


class Removed(NamedTuple):
    """What a run was made of."""

    nodes: int
    evaluations: int
    """That no other run refers to."""
    messages: int
    """That no other run's conversations hold."""
    hints: int
    """Distilled from its episodes."""


def remove_run(store: Store, run_id: str) -> Removed:
    """Delete all rows of a run, in the open transaction, of a store opened for it (`for_removal`).

    What is known of hints stays. Raises PassagentError, before anything is committed, if a row of another
    run would be left pointing to nothing.
    """
    names = {"run": run_id}
    tables = _tables_of_runs(store)
    hints = store.execute("SELECT 1 FROM distilled_hints WHERE run_id = :run AND state = 'written'", names)
    evaluated = " UNION ".join(
        f"SELECT evaluation_id FROM {table} WHERE run_id {{is_it}} :run AND evaluation_id IS NOT NULL"
        for table in ("nodes", "confirmations")
    )
    evaluated += (  # and the finalists' rounds as one evaluation, which alone is timed and has no samples
        " UNION SELECT pooled.id FROM confirmations JOIN nodes ON nodes.id = node_id "
        "JOIN evaluations AS pooled ON pooled.candidate_key = nodes.candidate_key "
        "AND substr(pooled.candidate_key, 1, 16) = substr(nodes.candidate_key, 1, 16) "
        "WHERE confirmations.run_id {is_it} :run AND pooled.status = 'ok' AND pooled.as_score IS NOT NULL "
        "AND samples IS NULL"
    )
    written = len(hints.fetchall())
    evaluations = store.execute(
        f"DELETE FROM evaluations WHERE id IN ({evaluated.format(is_it='=')}) "
        f"AND id NOT IN ({evaluated.format(is_it='!=')})",
        names,
    ).rowcount
    episodes = "(SELECT id FROM episodes WHERE run_id = :run)"
    store.execute("CREATE TEMP TABLE said (id INTEGER PRIMARY KEY)", {})
    store.execute(
        f"INSERT OR IGNORE INTO said SELECT message_id FROM steps WHERE episode_id IN {episodes}", names
    )
    store.execute(f"DELETE FROM steps WHERE episode_id IN {episodes}", names)
    messages = store.execute(
        "DELETE FROM messages WHERE id IN (SELECT id FROM said) AND id NOT IN (SELECT message_id FROM steps)",
        {},
    ).rowcount
    store.execute("DROP TABLE said", {})
    counts = {
        table: store.execute(f"DELETE FROM {table} WHERE run_id = :run", names).rowcount for table in tables
    }
    store.execute(
        "DELETE FROM files WHERE key NOT IN (SELECT candidate_key FROM nodes UNION ALL "
        "SELECT candidate_key FROM evaluations UNION ALL "  # what was measured for another run's twin of it
        "SELECT plans FROM evaluations WHERE plans IS NOT NULL)",
        {},
    )
    store.execute("DELETE FROM runs WHERE id = :run", names)
    dangling = store.rows("PRAGMA foreign_key_check")
    if dangling:
        raise PassagentError(
            f"{run_id}: a row of {dangling[0]['table']} that is not the run's points to its rows; "
            "nothing was removed"
        )
    return Removed(counts["nodes"], evaluations, messages, written)


def for_removal(store: Store) -> None:
    """Let rows be deleted in any order; `remove_run` checks at the end that none points to nothing.

    Row by row, SQLite would look through whole tables for each deleted row. Not to be called in a
    transaction.
    """
    store.execute("PRAGMA foreign_keys = OFF", {})


def _tables_of_runs(store: Store) -> list[str]:
    """Tables whose rows belong to a run."""
    rows = store.rows(
        "SELECT sqlite_master.name FROM sqlite_master, pragma_table_info(sqlite_master.name) AS columns "
        "WHERE sqlite_master.type = 'table' AND columns.name = 'run_id' ORDER BY 1"
    )
    return [row["name"] for row in rows]
