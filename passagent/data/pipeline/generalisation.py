"""Other sizes and dtypes of a subgraph (PassNet 3.3).

Sizes of activations are symbols, equal sizes one symbol, and integers of views and factories that equal one
follow it. A symbol is free if the subgraph runs on fake tensors with twice its size. Each candidate is run
like this before it is kept.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from passagent.data.pipeline.cutting import empty_inputs, metas_of
from passagent.tasks.extract.model_capture import quiet
from passagent.tasks.extract.structural_hash import is_sized, structural_hash
from passagent.tasks.graphio import load_graph
from passagent.tasks.meta import TensorMeta, flat

DTYPES = ("float32", "float16", "bfloat16")
SIZES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,), (2,), (4,), (16,), (32,), (64,), (128,), (256,), (512,)),
    2: ((1, 16), (4, 16), (1, 256), (16, 16), (4, 256), (256, 16), (1, 4096), (16, 256), (16, 4096)),
    3: (
        (1, 16, 16), (4, 16, 16), (1, 16, 256), (1, 256, 16), (16, 16, 16), (4, 16, 256), (4, 256, 16),
        (1, 256, 256), (16, 16, 256),
    ),
    4: (
        (1, 16, 16, 16), (4, 16, 16, 16), (1, 16, 16, 256), (1, 16, 256, 16), (1, 256, 16, 16),
        (16, 16, 16, 16), (4, 16, 16, 256), (4, 16, 256, 16), (1, 16, 256, 256),
    ),
}  # fmt: skip
"""GraphNet's candidates, by the number of free symbols."""
PRESERVED = (
    "running_mean", "running_var", "num_batches_tracked", "bn_parameters_weight", "bn_parameters_bias",
    "ln_parameters_weight", "ln_parameters_bias",
)  # fmt: skip
"""Weights that stay float32 (GraphNet's FLOAT32_PRESERVED_WEIGHTS)."""
BATCH = "b"

Sizes = dict[str, int]


def generalise(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the instances of a record: a template, and for each size and dtype the values and the hash."""
    shapes, dtypes = payload["shapes"], payload["dtypes"]
    template, recorded = _template(payload)
    symbols = [
        key for key, size in recorded.items() if _runs(*instance(template, {**recorded, key: 2 * size}, None))
    ][: max(SIZES)]
    template = fixed(template, {key: value for key, value in recorded.items() if key not in symbols})
    recorded = {key: recorded[key] for key in symbols}
    kept_sizes = [recorded]
    for values in SIZES.get(len(symbols), ()):
        sizes = dict(zip(symbols, values, strict=True))
        if len(kept_sizes) == shapes or sizes in kept_sizes:
            continue
        if _runs(*instance(template, sizes, None)):
            kept_sizes.append(sizes)
    instances = []
    for sizes, dtype in itertools.product(kept_sizes, dtypes):
        graph, metas = instance(template, sizes, dtype)
        if dtype != dtypes[0] and not (any(meta.dtype == dtype for meta in metas) and _runs(graph, metas)):
            continue
        facts = {
            "input_dtypes": [meta.dtype for meta in metas],
            "hash": structural_hash(graph, metas)._asdict(),
        }
        instances.append({"sizes": sizes, "dtype": dtype, **facts})
    return {"template": template, "instances": instances, "symbols": symbols}


def instance(template: dict[str, Any], sizes: Sizes, dtype: str | None) -> tuple[fx.Graph, list[TensorMeta]]:
    """Return the graph of a template at these sizes, and its inputs' metadata, in a dtype."""
    sized = fixed(template, sizes)
    metas = metas_of(sized)
    if dtype not in (None, "float32"):
        metas = [
            replace(meta, dtype=dtype)
            if meta.dtype == "float32" and not any(word in meta.original_name for word in PRESERVED)
            else meta
            for meta in metas
        ]
    return load_graph(sized["nodes"]).graph, [_resized(meta) for meta in metas]


def _resized(meta: TensorMeta) -> TensorMeta:
    """Recorded values and strides hold for the recorded shape only; then the values' range is kept."""
    values = [] if meta.data is None or meta.is_python_scalar else flat(meta.data)
    if not values or len(values) == meta.numel:
        return meta
    if meta.is_floating:
        mean = sum(values) / len(values)
        spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        return replace(meta, data=None, mean=mean, std=spread)
    return replace(meta, data=None, min_val=int(min(values)), max_val=int(max(values)))


def _template(record: dict[str, Any]) -> tuple[dict[str, Any], Sizes]:
    """Put symbols in place of a record's sizes; return it, and the recorded value of each."""
    metas = metas_of(record)
    free = [not meta.is_parameter and not meta.is_python_scalar for meta in metas]
    sizes: Sizes = {}
    inputs = []
    has_batch = any(
        is_free and len(meta.shape) > 1 and meta.shape[0] == 1
        for meta, is_free in zip(metas, free, strict=True)
    )
    for meta, is_free in zip(metas, free, strict=True):
        shape: list[Any] = list(meta.shape)
        for dim, size in enumerate(meta.shape if is_free else ()):
            if size > 1:
                shape[dim] = {"symbol": f"s{size}"}
                sizes[f"s{size}"] = size
            elif size == 1 and dim == 0 and len(shape) > 1:
                shape[dim] = {"symbol": BATCH}
        inputs.append({**asdict(meta), "shape": shape, "stride": None})
    graph = load_graph(record["nodes"]).graph
    sized = {node.name for node in graph.nodes if node.op.startswith("call") and is_sized(node)}
    nodes = []
    for node in record["nodes"]:
        is_sized_node = node["name"] in sized
        nodes.append(node | {"args": _symbolic(node["args"], sizes, [has_batch])} if is_sized_node else node)
    template = {"nodes": nodes, "inputs": inputs}
    if has_batch:
        lifted = next(n for n in itertools.count(3) if f"s{n}" not in sizes)
        if _runs(*instance(template, {**sizes, BATCH: lifted}, None)):
            return template, {BATCH: 1, **sizes}
        template = fixed(template, {BATCH: 1})
    return template, sizes


def _symbolic(value: Any, sizes: Sizes, first: list[bool]) -> Any:
    """Put symbols into the arguments of a sized operator; its first size, if 1, is the batch."""
    if type(value) is int:
        is_batch, first[0] = first[0] and value == 1, False
        return {"symbol": BATCH} if is_batch else {"symbol": f"s{value}"} if f"s{value}" in sizes else value
    if isinstance(value, list):
        return [_symbolic(item, sizes, first) for item in value]
    if isinstance(value, dict) and next(iter(value)) in ("tuple", "list", "size", "slice"):
        return {key: _symbolic(item, sizes, first) for key, item in value.items()}
    return value


def fixed(value: Any, sizes: Sizes) -> Any:
    """Put these symbols' values into a template, or a part of one."""
    if isinstance(value, list):
        return [fixed(item, sizes) for item in value]
    if isinstance(value, dict):
        if "symbol" in value:
            return sizes.get(value["symbol"], value)
        return {key: fixed(item, sizes) for key, item in value.items()}
    return value


def _runs(graph: fx.Graph, metas: list[TensorMeta]) -> bool:
    """Return whether a graph runs on tensors without values."""
    try:
        with quiet(), FakeTensorMode() as mode, torch.no_grad():
            inputs = [
                mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
                for value in empty_inputs(metas)
            ]
            fx.GraphModule(torch.nn.Module(), graph)(*inputs)
    except Exception:
        return False
    return True
