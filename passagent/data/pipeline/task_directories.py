"""Tasks of a data set on disk: `tasks/KIND/NAME`, whole or not there at all."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passagent.errors import UsageError

if TYPE_CHECKING:
    from passagent.data.pipeline.buckets import Group

TASKS, LISTS, RECORD = "tasks", "lists", "dataset.json"
_NAMED = 40
"""Letters of operators in a task's name."""


def task_name(group: Group, instances: list[str]) -> str:
    """The path of a group's task below the data set, by its operators and its subgraphs' hashes."""
    digest = hashlib.sha256(" ".join([str(group.rule), *instances]).encode()).hexdigest()[:10]
    words = "_".join(re.sub(r"\W", "", operator.removeprefix("Tensor.")) for operator in group.operators)
    return f"{TASKS}/{group.kind}/{words[:_NAMED].rstrip('_')}_{digest}"


def written_task(out: Path, name: str, subgraphs: list[dict[str, Any]]) -> None:
    """Write a task that is not there yet."""
    from passagent.data.pipeline.generalisation import instance
    from passagent.tasks.extract.sample import whole_directory, write_files, write_list

    if (out / name).is_dir():
        return
    with whole_directory(out / name) as place:
        names = []
        for number, one in enumerate(subgraphs):
            graph, metas = instance(one["template"], one["sizes"], one["dtype"])
            names.append(f"{number:03}_{one['dtype']}")
            origin = {"sample": one["origin"], "range": one["range"]}
            facts = {"kind": one["kind"], "origin": origin, "sizes": one["sizes"]}
            write_files(place / names[-1], graph, metas, one["origin"], facts)
        write_list(place, names)


def record_of(out: Path) -> Path:
    """The record of a finished data set. Raises UsageError."""
    path = out / RECORD
    if not path.is_file():
        what = (
            "is not finished; the same `tasks build` goes on" if (out / "work").is_dir() else "is no data set"
        )
        raise UsageError(f"{out}: {what}")
    return path


def remove_others(out: Path, names: Collection[str]) -> None:
    """Remove tasks of an earlier build, of other samples, and what a killed build left."""
    for place in (out / TASKS).glob("*/*"):
        if str(place.relative_to(out)) not in names:
            shutil.rmtree(place, ignore_errors=True)
