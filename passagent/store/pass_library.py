"""The library: what runs found, for later ones. One SQLite file, `library.db`.

Each runs directory has one, and so has the user, whose is that of `optimize`.

Many runs write to it at the same time. Each write is one transaction, so that a process that is killed leaves
the library whole, and whatever a run writes it may write again: a row that is there stays as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from passagent.errors import UsageError
from passagent.sandbox.faults import writing
from passagent.store.database import Connection, now

SCHEMA = 2
"""The version of TABLES (`PRAGMA user_version`)."""
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


def library_path(chosen: str | Path | None, runs_dir: Path | None = None) -> Path | None:
    """The file of a setting: `given`, else `$PASSAGENT_LIBRARY`, else that of `runs_dir`; None for `off`.

    Without a runs directory it is the user's.
    """
    usual = runs_dir / FILE if runs_dir else default_path()
    named = str(chosen or "") or os.environ.get("PASSAGENT_LIBRARY") or str(usual)
    return None if named == OFF else Path(named)


def library_text(path: Path | None) -> str:
    """`library: FILE (passes: 3)`: what a command begins with. Raises UsageError."""
    if path is None:
        return "library: off"
    with PassLibrary.open(path) as library:
        [row] = library.rows("SELECT count(*) AS passes FROM exemplars")
    return f"library: {path} (passes: {row['passes']})"


@dataclass(frozen=True)
class KeptPass:
    """A pass of the library: a row of `exemplars`."""

    instance: str
    """Hash of the region with its sizes and dtypes."""
    structure: str
    """Hash of the region without them."""
    device: str
    """The model of the device that it was measured on."""
    torch: str
    operators: str
    """The region's operators, as a person reads them."""
    task: str
    """JSON: the files of the region's subgraph, by name."""
    files: str
    """JSON: the files of the pass, by name."""
    plan: str
    """Key of the plan that was measured."""
    dispatch: str
    reference: str
    """The reference of the speedup: `eager`, or `inductor` measured in the same blocks."""
    speedup: float
    """Over the reference, on this region."""
    as_score: float
    as_low: float | None
    as_high: float | None
    run: str
    """Where it was found: `RUNS_DIR RUN`."""
    model: str
    """The author's name."""
    licence: str
    """The licence under the author model's terms."""
    kept_at: str = ""
    status: str = "ok"
    """The status of the last evaluation."""
    verified_at: str | None = None
    shapes: str = ""
    """The region's shape class: see exemplars.shape_class."""

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
        """Return the entry as plain data, without the region's own files."""
        return {k: v for k, v in asdict(self).items() if k not in ("task", "files")} | {"files": self.sources}


_COLUMNS = [field.name for field in fields(KeptPass)]
_KEY = "instance = :instance AND device = :device AND torch = :torch AND reference = :reference"


class PassLibrary(Connection):
    """An open library; see `open`."""

    @classmethod
    def open(cls, path: str | Path | None = None, create: bool = True, to_look: bool = False) -> Self:
        """The library at `path` (see library_path), made if `create`; nothing can be written `to_look`.

        Raises UsageError where there is none, and for a file of another version; InfrastructureError.
        """
        place = Path(path) if path is not None else library_path(None)
        if place is None or str(place) == OFF:
            raise UsageError("the library is off; name a file with --library, or unset PASSAGENT_LIBRARY")
        if (to_look or not create) and not place.is_file():
            raise UsageError(f"{place}: there is no library here; passagent run and optimize make it")
        with writing(place.parent, "--library"):
            place.parent.mkdir(parents=True, exist_ok=True)
        library = cls(place, to_look)
        try:
            if not to_look and library.version != SCHEMA:
                library.make_tables(TABLES, SCHEMA)
            if library.version != SCHEMA:
                raise UsageError(
                    f"{place}: was written by another version of passagent; move it away, or name another "
                    "file with --library"
                )
        except BaseException:
            library.close()
            raise
        return library

    def keep(self, entry: KeptPass) -> bool:
        """Keep a pass, unless a faster one that holds is known for the same. Whether it was kept."""
        names = ", ".join(_COLUMNS)
        update = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)
        sql = (
            f"INSERT INTO exemplars ({names}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "
            f"ON CONFLICT (instance, device, torch, reference) DO UPDATE SET {update} "
            "WHERE excluded.speedup > exemplars.speedup OR exemplars.status != 'ok'"
        )
        values = asdict(entry) | {"kept_at": entry.kept_at or now()}
        return self.execute(sql, values).rowcount > 0

    def find(self, instance: str, device: str, torch: str, reference: str) -> KeptPass | None:
        """The pass that is known for a region here; None if there is none, or it no longer held."""
        key = {"instance": instance, "device": device, "torch": torch, "reference": reference}
        return next(iter(self._passes(f"{_KEY} AND status = 'ok'", key)), None)

    def passes(self) -> list[KeptPass]:
        """Every pass, the fastest first."""
        return self._passes("1", {})

    def named(self, word: str) -> KeptPass:
        """The pass whose instance hash begins with `word`. Raises UsageError for none and for several."""
        matches = [entry for entry in self.passes() if entry.instance.rpartition(":")[2].startswith(word)]
        matches = matches or [entry for entry in self.passes() if entry.instance.startswith(word)]
        if len(matches) != 1:
            count = f"{len(matches)} passes begin with" if matches else "no pass has"
            raise UsageError(f"{self.path}: {count} {word!r}; passagent library list shows all")
        return matches[0]

    def note(self, entry: KeptPass, status: str) -> None:
        """Note what a pass's evaluation came to."""
        self.execute(
            f"UPDATE exemplars SET status = :status, verified_at = :at WHERE {_KEY} AND plan = :plan",
            asdict(entry) | {"status": status, "at": now()},
        )

    def _passes(self, where: str, parameters: dict[str, Any]) -> list[KeptPass]:
        sql = f"SELECT {', '.join(_COLUMNS)} FROM exemplars WHERE {where} ORDER BY speedup DESC, instance"
        return self.all(KeptPass, sql, parameters)

    def keep_task(self, key: str, name: str, hashes: Sequence[str]) -> None:
        """Keep the hashes of a task's subgraphs, of both levels."""
        self.execute(
            "INSERT OR REPLACE INTO tasks (key, name, hashes) VALUES (:key, :name, :hashes)",
            {"key": key, "name": name, "hashes": json.dumps(list(hashes))},
        )

    def task_hashes(self, key: str) -> list[str] | None:
        """Return the hashes that were kept for a task, if any."""
        rows = self.rows("SELECT hashes FROM tasks WHERE key = :key", {"key": key})
        return list(json.loads(rows[0]["hashes"])) if rows else None


def licence_of(model: str) -> str:
    """Name the licence of a model's output, as far as it is known here."""
    if model == "expert":
        return "Apache-2.0, as passagent"
    return f"the terms of {model}'s provider"
