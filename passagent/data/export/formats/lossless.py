"""passagent's own: the trajectory as it is stored, with the example's columns. Nothing is left out."""

from __future__ import annotations

from collections.abc import Iterator

from passagent.data.export.example import Example
from passagent.data.export.formats.common import FILES, Row

FILE = "episodes.jsonl"


def rows(example: Example) -> Iterator[Row]:
    """A line that `Trajectory` reads, its `columns` and `files` filled in."""
    columns = dict(example.columns)
    files = columns.pop(FILES, None)
    row = {**example.trajectory.model_dump(), "columns": columns}
    yield row if files is None else {**row, FILES: files}
