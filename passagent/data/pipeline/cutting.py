"""Subgraphs as plain data: operators of a full graph, one after the other, and their inputs' metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from passagent.tasks.extract.graph_text import model_text
from passagent.tasks.extract.regions import Region
from passagent.tasks.extract.sample import input_metas
from passagent.tasks.extract.structural_hash import structural_hash
from passagent.tasks.graphio import dump_nodes, load_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Subgraph


def operator_tokens(graph: fx.Graph) -> list[str]:
    """The names of a graph's operators in order, as GraphNet has them: `conv2d`, `iadd`, `Tensor.view`."""
    tokens = []
    for node in operators(graph):
        name = getattr(node.target, "__name__", str(node.target))
        tokens.append(f"Tensor.{node.target}" if node.op == "call_method" else name)
    return tokens


def operators(graph: fx.Graph) -> list[fx.Node]:
    """The nodes of a graph that compute."""
    return [node for node in graph.nodes if node.op.startswith("call")]


def metas_of(record: dict[str, Any]) -> list[TensorMeta]:
    """The inputs' metadata of a record."""
    return [TensorMeta(**{key: _tuple(key, value) for key, value in one.items()}) for one in record["inputs"]]


def _tuple(key: str, value: Any) -> Any:
    return tuple(value) if key in ("shape", "levels", "stride") and value is not None else value


def region_of(graph: fx.Graph, start: int, end: int) -> Region:
    """Operators number `start` to `end` (not included) of a graph."""
    nodes = operators(graph)[start:end]
    part = set(nodes)
    inputs = dict.fromkeys(i for node in nodes for i in node.all_input_nodes if i not in part)
    outputs = [node for node in nodes if any(user not in part for user in node.users)]
    return Region(tuple(nodes), tuple(inputs), tuple(outputs))


def cut_ranges(payload: dict[str, Any]) -> dict[str, Any]:
    """Cut `ranges` ([kind, start, end]) out of a record (`nodes`, `inputs`), each structure and size once.

    One run of the record's graph on drawn inputs tells what its values are like.
    """
    graph_module = load_graph(payload["nodes"])
    graph, metas = graph_module.graph, metas_of(payload)
    regions = [(kind, start, end, region_of(graph, start, end)) for kind, start, end in payload["ranges"]]
    seen = _seen(
        graph_module, metas, {node.name for *_, region in regions for node in region.inputs + region.outputs}
    )
    first_operator = payload["range"][0] if "range" in payload else 0
    records: dict[tuple[str, str], dict[str, Any]] = {}
    refused: dict[str, int] = {}
    for kind, start, end, region in regions:
        if why := _refusal(region, seen):
            refused[f"{kind} {why}"] = refused.get(f"{kind} {why}", 0) + 1
            continue
        inputs = [replace(seen[node.name], name=f"in_{i}") for i, node in enumerate(region.inputs)]
        own = region.graph()
        found = structural_hash(own, inputs)
        record = {
            "kind": kind,
            "range": [first_operator + start, first_operator + end],
            "operators": operator_tokens(own),
            "nodes": dump_nodes(own),
            "inputs": [asdict(meta) for meta in inputs],
            "hash": found._asdict(),
            "count": 1,
        }
        if first := records.get((kind, found.instance)):
            first["count"] += 1
        else:
            records[kind, found.instance] = record
    return {"records": list(records.values()), "refused": refused}


def _refusal(region: Region, seen: dict[str, Any]) -> str:
    """Why operators are no subgraph, in a word; empty if they are one."""
    if not region.outputs:
        return "unused"
    if any(not isinstance(seen.get(node.name), TensorMeta) for node in (*region.inputs, *region.outputs)):
        return "no-tensor"
    return ""


def _seen(graph_module: fx.GraphModule, metas: Sequence[TensorMeta], wanted: set[str]) -> dict[str, Any]:
    """The metadata of values in one run, as they are made; None for what is no tensor."""
    found: dict[str, Any] = {}

    class Recording(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if n.name in wanted and n.name not in found:
                is_tensor = isinstance(value, torch.Tensor)
                found[n.name] = input_metas([n.name], [value])[0] if is_tensor else None
            return value

    nodes = graph_module.graph.find_nodes(op="placeholder")
    found |= {node.name: meta for node, meta in zip(nodes, metas, strict=True) if not meta.is_python_scalar}
    source = model_text(graph_module.graph)
    subgraph = Subgraph("drawn", Path("drawn"), tuple(metas), source, "float32", "")
    device = next((meta.device for meta in metas), "cpu")
    with torch.no_grad():
        Recording(graph_module).run(*make_inputs(subgraph, device, 0))
    return found


def empty_inputs(metas: Sequence[TensorMeta]) -> list[Any]:
    """Inputs of these sizes, whose values do not matter."""
    return [
        meta.data if meta.is_python_scalar
        else torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device=meta.device)
        for meta in metas
    ]  # fmt: skip
