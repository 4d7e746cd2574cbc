"""Write metadata in GraphNet's form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from passagent.tasks.meta import TensorMeta

_MANY = 16
"""Integers from which on a generator is written in place of them."""


def meta_source(metas: Iterable[TensorMeta]) -> str:
    """The text of a weight_meta.py that read_meta reads back as the same metadata."""
    return "\n\n\n".join(map(_class, metas)) + "\n"


def _class(meta: TensorMeta) -> str:
    name = re.sub(r"\W", "_", meta.original_name)
    dtype = meta.dtype if meta.is_python_scalar else f"torch.{meta.dtype}"
    fields: dict[str, Any] = {
        "name": meta.name,
        "original_name": meta.original_name,
        "shape": list(meta.shape),
        "dtype": dtype,
        "device": meta.device,
        "mean": meta.mean,
        "std": meta.std,
    }
    optional = {
        "min_val": meta.min_val,
        "max_val": meta.max_val,
        "data": meta.data,
        "levels": None if meta.levels is None else list(meta.levels),
        "stride": None if meta.stride is None else list(meta.stride),
        "requires_grad": meta.requires_grad or None,
        "shares": meta.shares,
        "storage_offset": meta.storage_offset or None,
    }
    fields.update({key: value for key, value in optional.items() if value is not None})
    lines = [f"\t{key} = {_generated(value) or _literal(value)}" for key, value in fields.items()]
    return "\n".join([f"class Program_weight_tensor_meta_{name}:", *lines])


def _generated(value: Any) -> str | None:
    """Many integers that count up, once or in several equal rows, as an expression that makes them."""
    if not isinstance(value, list) or len(value) < _MANY or {type(item) for item in value} != {int}:
        return None
    step = value[1] - value[0]
    count = next((i for i in range(1, len(value)) if value[i] - value[i - 1] != step), len(value))
    row = list(range(value[0], value[0] + step * count, step)) if step else []
    if not row or len(value) % count or value != row * (len(value) // count):
        return None
    made = f"list(range({row[0]}, {row[0] + step * count}, {step}))"
    return made if count == len(value) else f"{made} * {len(value) // count}"


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f'"{value}"' if isinstance(value, str) else repr(value)
