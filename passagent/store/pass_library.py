"""Exemplars of the library: passes that were found for a region, kept for the next task that holds it.

A pass is kept by the region's instance hash (operators, sizes, dtypes), the device's model, the version of
torch and what it was measured against; of two for the same the faster stays.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from passagent.errors import UsageError
from passagent.store.database import now
from passagent.store.library import Library


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
    """Of the region, as a person reads them."""
    task: str
    """JSON: the files of the region's subgraph, by name."""
    files: str
    """JSON: the files of the pass, by name."""
    plan: str
    """Key of the plan that was measured."""
    dispatch: str
    reference: str
    """What it was measured against: `eager`, or `inductor` beside it."""
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
        """As plain data, without the region's own files."""
        return {k: v for k, v in asdict(self).items() if k not in ("task", "files")} | {"files": self.sources}


_COLUMNS = [field.name for field in fields(KeptPass)]
_KEY = "instance = :instance AND device = :device AND torch = :torch AND reference = :reference"


class PassLibrary(Library):
    """The passes of an open library."""

    def keep(self, kept: KeptPass) -> bool:
        """Keep a pass, unless a faster one that holds is known for the same. Whether it was kept."""
        names = ", ".join(_COLUMNS)
        update = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)
        sql = (
            f"INSERT INTO exemplars ({names}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "
            f"ON CONFLICT (instance, device, torch, reference) DO UPDATE SET {update} "
            "WHERE excluded.speedup > exemplars.speedup OR exemplars.status != 'ok'"
        )
        given = asdict(kept) | {"kept_at": kept.kept_at or now()}
        return self.run(sql, given).rowcount > 0

    def find(self, instance: str, device: str, torch: str, reference: str) -> KeptPass | None:
        """The pass that is known for a region here; None if there is none, or it no longer held."""
        where = (
            "instance = :instance AND device = :device AND torch = :torch AND reference = :reference "
            "AND status = 'ok'"
        )
        given = {"instance": instance, "device": device, "torch": torch, "reference": reference}
        found = self._rows(where, given)
        return found[0] if found else None

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
        self.run(
            f"UPDATE exemplars SET status = :status, verified_at = :at WHERE {_KEY} AND plan = :plan",
            {"status": status, "at": now(), **self._key(kept), "plan": kept.plan},
        )

    def _key(self, kept: KeptPass) -> dict[str, str]:
        return {name: getattr(kept, name) for name in ("instance", "device", "torch", "reference")}

    def _rows(self, where: str, given: dict[str, Any]) -> list[KeptPass]:
        sql = f"SELECT {', '.join(_COLUMNS)} FROM exemplars WHERE {where} ORDER BY speedup DESC, instance"
        return [KeptPass(*row) for row in self.rows(sql, given)]


def licence_of(model: str) -> str:
    """What may be done with what a model wrote, as far as it is known here."""
    if model == "expert":
        return "Apache-2.0, as passagent"
    return f"the terms of {model}'s provider"
