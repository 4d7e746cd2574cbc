"""The library of passes: what was found for a region is kept for the next model that holds the same region.

One SQLite file for a user. A pass is kept by the region's instance hash (operators, sizes, dtypes), the
device's model and the version of torch; of two for the same the faster stays. Each write is one statement, so
that a process that is killed leaves the library whole, and several may write at once.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from passagent.errors import UsageError
from passagent.faults import os_fault
from passagent.store.database import BUSY_TIMEOUT_S, now, sqlite_fault

_PASSES = """
CREATE TABLE IF NOT EXISTS passes (
    instance TEXT NOT NULL, structure TEXT NOT NULL, device TEXT NOT NULL, torch TEXT NOT NULL,
    operators TEXT NOT NULL, task TEXT NOT NULL, files TEXT NOT NULL, plan TEXT NOT NULL,
    dispatch TEXT NOT NULL, reference TEXT NOT NULL, speedup REAL NOT NULL, as_score REAL NOT NULL,
    as_low REAL, as_high REAL, run TEXT NOT NULL, model TEXT NOT NULL, licence TEXT NOT NULL,
    kept_at TEXT NOT NULL, status TEXT NOT NULL, verified_at TEXT,
    PRIMARY KEY (instance, device, torch))
"""
_STRUCTURES = "CREATE INDEX IF NOT EXISTS passes_by_structure ON passes (structure)"


@dataclass(frozen=True)
class KeptPass:
    """A pass of the library: a row of `passes`."""

    instance: str
    """Hash of the region with its sizes and dtypes."""
    structure: str
    """Hash of the region without them."""
    device: str
    """The model of the device that it was measured on."""
    torch: str
    operators: str
    """Of the region, as a person reads them."""
    task: str
    """JSON: the files of the region's subgraph, by name."""
    files: str
    """JSON: the files of the pass, by name."""
    plan: str
    """Key of the plan that was measured."""
    dispatch: str
    reference: str
    """What it was measured against beside eager: `inductor`."""
    speedup: float
    """Over the reference, on this region."""
    as_score: float
    as_low: float | None
    as_high: float | None
    run: str
    """Where it was found: `RUNS_DIR RUN`."""
    model: str
    """Who wrote it."""
    licence: str
    """What the author model's terms say of it."""
    kept_at: str = ""
    status: str = "ok"
    """Of its last evaluation."""
    verified_at: str | None = None

    @property
    def sources(self) -> dict[str, str]:
        """The files of the pass."""
        return dict(json.loads(self.files))

    def write_task(self, place: Path) -> Path:
        """The region as a subgraph directory in `place`, to be measured again."""
        directory = place / self.instance.rpartition(":")[2][:16]
        directory.mkdir(parents=True)
        for name, text in json.loads(self.task).items():
            (directory / name).write_text(text, encoding="utf-8")
        return directory

    def data(self) -> dict[str, Any]:
        """As plain data, without the region's own files."""
        return {k: v for k, v in asdict(self).items() if k not in ("task", "files")} | {"files": self.sources}


_COLUMNS = [field.name for field in fields(KeptPass)]


def default_path() -> Path:
    """`$XDG_DATA_HOME/passagent/library.db`, else `~/.local/share/passagent/library.db`."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "passagent" / "library.db"


class PassLibrary:
    """An open library."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    @classmethod
    @contextmanager
    def open(cls, path: str | Path | None = None, create: bool = True) -> Iterator[PassLibrary]:
        """The library at `path` (default_path), made if `create`. Raises UsageError, InfrastructureError."""
        place = Path(path) if path is not None else default_path()
        if not create and not place.is_file():
            raise UsageError(f"{place}: there is no library of passes; passagent optimize makes it")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise os_fault(error, place.parent, "--library") from error
        with _explained(place):
            connection = sqlite3.connect(place, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            with _explained(place):
                connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(_PASSES)
                connection.execute(_STRUCTURES)
            yield cls(place, connection)
        finally:
            connection.close()

    def keep(self, kept: KeptPass) -> bool:
        """Keep a pass, unless a faster one that holds is known for the same. Whether it was kept."""
        names = ", ".join(_COLUMNS)
        update = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)
        sql = (
            f"INSERT INTO passes ({names}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "
            f"ON CONFLICT (instance, device, torch) DO UPDATE SET {update} "
            "WHERE excluded.speedup > passes.speedup OR passes.status != 'ok'"
        )
        given = asdict(kept) | {"kept_at": kept.kept_at or now()}
        return self._run(sql, given).rowcount > 0

    def find(self, instance: str, device: str, torch: str) -> KeptPass | None:
        """The pass that is known for a region here; None if there is none, or it no longer held."""
        where = "instance = :instance AND device = :device AND torch = :torch AND status = 'ok'"
        found = self._rows(where, {"instance": instance, "device": device, "torch": torch})
        return found[0] if found else None

    def like(self, structure: str) -> list[KeptPass]:
        """Passes for regions of that structure, of any sizes, dtypes and devices; the fastest first."""
        return self._rows("structure = :structure AND status = 'ok'", {"structure": structure})

    def all(self) -> list[KeptPass]:
        """Every pass, the fastest first."""
        return self._rows("1", {})

    def named(self, word: str) -> KeptPass:
        """The pass whose instance hash begins with `word`. Raises UsageError for none and for several."""
        found = [one for one in self.all() if one.instance.rpartition(":")[2].startswith(word)]
        found = found or [one for one in self.all() if one.instance.startswith(word)]
        if len(found) != 1:
            said = f"{len(found)} passes begin with" if found else "no pass has"
            raise UsageError(f"{self.path}: {said} {word!r}; passagent library list shows all")
        return found[0]

    def note(self, kept: KeptPass, status: str) -> None:
        """Note what a pass's evaluation came to."""
        self._run(
            "UPDATE passes SET status = :status, verified_at = :at "
            "WHERE instance = :instance AND device = :device AND torch = :torch AND plan = :plan",
            {"status": status, "at": now(), **self._key(kept), "plan": kept.plan},
        )

    def remove(self, passes: Sequence[KeptPass]) -> None:
        """Remove passes."""
        for one in passes:
            self._run(
                "DELETE FROM passes WHERE instance = :instance AND device = :device AND torch = :torch",
                self._key(one),
            )

    def _key(self, kept: KeptPass) -> dict[str, str]:
        return {"instance": kept.instance, "device": kept.device, "torch": kept.torch}

    def _rows(self, where: str, given: dict[str, Any]) -> list[KeptPass]:
        sql = f"SELECT {', '.join(_COLUMNS)} FROM passes WHERE {where} ORDER BY speedup DESC, instance"
        return [KeptPass(*row) for row in self._run(sql, given).fetchall()]

    def _run(self, sql: str, given: dict[str, Any]) -> sqlite3.Cursor:
        with _explained(self.path):
            return self._connection.execute(sql, given)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise (sqlite_fault(error, path) or error) from error


def licence_of(model: str) -> str:
    """What may be done with what a model wrote, as far as it is known here."""
    if model == "expert":
        return "Apache-2.0, as passagent"
    return f"the terms of {model}'s provider"
