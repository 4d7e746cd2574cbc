"""Write metadata in GraphNet's form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from passagent.tasks.meta import TensorMeta


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
    optional = {"min_val": meta.min_val, "max_val": meta.max_val, "data": meta.data}
    fields.update({key: value for key, value in optional.items() if value is not None})
    lines = [f"\t{key} = {_literal(value)}" for key, value in fields.items()]
    return "\n".join([f"class Program_weight_tensor_meta_{name}:", *lines])


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f'"{value}"' if isinstance(value, str) else repr(value)
