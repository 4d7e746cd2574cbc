"""An exported directory held against its own provenance, evaluation tasks, and the database it came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from passagent.data.dataset import door
from passagent.data.dataset.columns import Revision, Told, read_episodes
from passagent.data.dataset.overlap import EvaluationTasks
from passagent.data.dataset.writing import provenance, read_manifest, texts
from passagent.errors import PassagentError
from passagent.store.database import Store


class Changed(PassagentError):
    """An export is not what was written."""


def check_directory(directory: Path, apart: EvaluationTasks, stores: Sequence[Store]) -> int:
    """The number of rows, all of which are in order.

    Checked are each row's sha256, that no file has other rows, secrets, overlap with evaluation tasks and,
    where there are `stores`, that every candidate is there with the files and the score that provenance says.
    Raises UsageError if `directory` is no export, Changed, door.NotFit and overlap.Overlap for what is wrong.
    """
    manifest = read_manifest(directory)
    known = {told.columns["id"]: told for told in read_episodes(stores)}
    counts = dict[str, int]()
    for row, text in texts(directory, provenance(directory)):
        place = f"{directory / row['file']}:{row['line']}"
        if text is None or hashlib.sha256(text.encode()).hexdigest() != row["sha256"]:
            raise Changed(f"{place}: not the row that was written; export again")
        if kind := door.find_secret(json.dumps(json.loads(text), ensure_ascii=False)):
            raise door.NotFit(f"{place}: holds what looks like {kind}; withdraw it, and export again without")
        apart.check([row | {"operators": _words(row["operators"])}])
        if stores:
            _check_nodes(row, known, place)
        counts[row["file"]] = counts.get(row["file"], 0) + 1
    for name, count in counts.items():
        with open(directory / name, encoding="utf-8") as file:
            if (found := sum(1 for _ in file)) != count:
                raise Changed(f"{directory / name}: has {found} rows, {count} were written; export again")
    if sum(counts.values()) != manifest["rows"]:
        raise Changed(
            f"{directory}: has {sum(counts.values())} rows, {manifest['rows']} were written; export again"
        )
    return int(manifest["rows"])


def _words(operators: Any) -> list[str]:
    return operators.split() if isinstance(operators, str) else list(operators)


def _check_nodes(row: dict[str, Any], known: dict[str, Told], place: str) -> None:
    told = known.get(f"{row['run']}/{row['episode']}")
    if told is None:
        raise Changed(f"{place}: the database has no finished episode {row['run']}/{row['episode']}")
    revisions: dict[int, Revision] = {revision.node: revision for revision in told.revisions}
    for node in row["nodes"]:
        revision = revisions.get(node["node"])
        same = revision and (revision.files, revision.status, revision.as_score) == (
            node["files"],
            node["status"],
            node["as_score"],
        )
        if revision is None or not same:
            raise Changed(f"{place}: node {node['node']} is another one in the database")
        door.check_node(told.store, row["id"], revision)
