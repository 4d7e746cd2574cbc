"""Write a graph as a subgraph directory in GraphNet's layout; `graph_net.json` comes last."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from passagent.tasks.extract.graph_text import model_text
from passagent.tasks.extract.structural_hash import StructuralHash, structural_hash
from passagent.tasks.meta import TensorMeta, meta_source
from passagent.tasks.reader import GRAPH_LIST

LITERAL = 64
"""Elements up to which an input that is no weight is kept as values."""
BUFFER = 4096
"""Elements up to which a buffer is: position ids, rope tables, masks."""
LEVELS = 4
"""So few different values of a larger float input are kept as such: 0 and -inf of a mask."""


def input_metas(names: Sequence[str], values: Sequence[Any]) -> list[TensorMeta]:
    """The metadata of in_0, in_1, ...; `names`: of each in the model."""
    metas: list[TensorMeta] = []
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        if not isinstance(value, torch.Tensor):
            dtype = "float" if isinstance(value, float) else "int"
            metas.append(TensorMeta(f"in_{number}", name, (), dtype, "cpu", data=value))
            continue
        metas.append(_meta(f"in_{number}", name, value.detach(), value.requires_grad))
    return metas


def _meta(name: str, original: str, value: torch.Tensor, requires_grad: bool) -> TensorMeta:
    is_weight = "_parameters_" in original
    facts: dict[str, Any] = {}
    most = (
        0 if is_weight else BUFFER if "_buffers_" in original or original.startswith("constant_") else LITERAL
    )
    if value.layout == torch.strided and not value.is_contiguous():
        facts["stride"] = tuple(value.stride())
    if 0 < value.numel() <= most and not value.is_complex():
        facts["data"] = value.cpu().reshape(-1).tolist()
    elif value.numel():
        facts |= _statistics(value, is_weight)
    return TensorMeta(
        name=name,
        original_name=original,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        device=str(value.device),
        requires_grad=requires_grad,
        **facts,
    )


def _statistics(value: torch.Tensor, is_weight: bool) -> dict[str, Any]:
    if value.dtype == torch.bool or value.is_complex():
        return {}
    if not value.is_floating_point():
        return {"min_val": int(value.min()), "max_val": int(value.max())}
    wide = value.float() if value.dtype != torch.float64 else value
    distinct = wide.reshape(-1)[: 64 * LEVELS].unique()
    if not is_weight and 1 < len(distinct) <= LEVELS:
        distinct = wide.unique()
        if len(distinct) <= LEVELS:
            return {"levels": tuple(distinct.tolist())}
    # Taking elements out needs 8 bytes of each for each of its indices: a large tensor has no room for it.
    finite = wide if all(math.isfinite(end) for end in wide.aminmax()) else wide[wide.isfinite()]
    if not finite.numel():
        return {"levels": tuple(wide.unique().tolist()[:LEVELS])}
    low, high = float(finite.min()), float(finite.max())
    std = float(finite.std()) if finite.numel() > 1 else 0.0
    facts = {"mean": float(finite.mean()), "std": std if math.isfinite(std) else 0.0}
    if low >= 0 and low != high and not is_weight:
        facts["min_val"] = low  # what is never negative stays so, and a probability below 1
        if high <= 1:
            facts["max_val"] = high
    return facts


_FIXED = """from sympy import Symbol, symbols

dynamic_dim_constraint_symbols = []
dynamic_dim_constraint_symbol2example_value = {}
dynamic_dim_constraint_relations = []
dynamic_dim_constraint_input_shapes = []
"""


def write_sample(
    path: Path, graph: fx.Graph, metas: Sequence[TensorMeta], name: str, extra: dict[str, Any]
) -> StructuralHash:
    """Write the subgraph directory `path`, and return the graph's hash.

    `metas`: of the placeholders; `extra`: further facts for graph_net.json.
    """
    path.mkdir(parents=True)
    hashes = structural_hash(graph, metas)
    files = {
        "model.py": model_text(graph),
        "weight_meta.py": meta_source(metas),
        "input_meta.py": "",
        "graph_hash.txt": f"{hashes.instance}\n",
    }
    if not extra.get("dynamic"):
        files["input_tensor_constraints.py"] = _FIXED
    for file, text in files.items():
        (path / file).write_text(text, encoding="utf-8")
    facts = {
        "framework": "torch",
        "num_devices_required": 1,
        "num_nodes_required": 1,
        "dynamic": False,
        "model_name": name,
        "structure_hash": hashes.structure,
        **extra,
    }
    (path / "graph_net.json").write_text(json.dumps(facts, indent=4) + "\n", encoding="utf-8")
    return hashes


def write_list(path: Path, names: Sequence[str]) -> None:
    """Write the task's graph_list.txt."""
    (path / GRAPH_LIST).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
