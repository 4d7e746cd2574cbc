"""A file of JSON lines as parquet, for `datasets` and for SQL: needs pyarrow, the extra `passagent[parquet]`.

Arrow gives every object of a column the keys of all of them: a call's arguments would get those of other
calls, as nulls. So a column of such objects has Arrow's JSON type. `datasets` (4.7 or newer) gives the
objects back as they were; others read text.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from passagent.errors import UsageError

BATCH = 256
"""Rows that are in memory at a time."""
_INT64 = 2**63
_JSON = "json"
_SCALARS = {"bool": "bool", "int": "int64", "float": "float64", "str": "string"}


def write_parquet(lines: Path, target: Path) -> int:
    """Write the rows of `lines` to `target`; their number. Each column has one type over the whole file.

    A null in place of a column that a row has not. Raises UsageError without pyarrow.
    """
    check_pyarrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = column_kinds(_rows(lines))
    types: dict[str, Any] = {kind: pa.type_for_alias(name) for kind, name in _SCALARS.items()}
    types[_JSON] = pa.json_()
    features = {
        name: {"_type": "Json"} if kind == _JSON else {"_type": "Value", "dtype": _SCALARS[kind]}
        for name, kind in kinds.items()
    }
    schema = pa.schema(
        [(name, types[kind]) for name, kind in kinds.items()],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    rows, count = _rows(lines), 0
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        while batch := list(islice(rows, BATCH)):
            columns = [
                pa.array([_stored(row.get(name), kinds[name]) for row in batch], schema.field(name).type)
                for name in schema.names
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            count += len(batch)
    return count


def check_pyarrow() -> None:
    """Raise UsageError if pyarrow is not there."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError("parquet needs pyarrow: pip install 'passagent[parquet]'")


def column_kinds(rows: Iterator[dict[str, Any]]) -> dict[str, str]:
    """Find each column's kind: a scalar's type, or `json`."""
    kinds: dict[str, str | None] = {}
    for row in rows:
        for name, value in row.items():
            earlier, kind = kinds.setdefault(name, None), _kind(value)
            if earlier is None or kind in (None, earlier):
                kinds[name] = earlier or kind
            elif {earlier, kind} == {"int", "float"}:
                kinds[name] = "float"
            else:
                kinds[name] = _JSON
    return {name: kind or "str" for name, kind in kinds.items()}


def _kind(value: Any) -> str | None:
    if value is None:
        return None
    is_large = isinstance(value, int) and not -_INT64 <= value < _INT64
    return _JSON if is_large or type(value).__name__ not in _SCALARS else type(value).__name__


def _stored(value: Any, kind: str) -> Any:
    return json.dumps(value, ensure_ascii=False) if kind == _JSON and value is not None else value


def _rows(lines: Path) -> Iterator[dict[str, Any]]:
    with lines.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
