"""What training computes for a subgraph: AOTAutograd's forward, which keeps values, and backward graph."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from passagent.data.pipeline.cutting import metas_of, operator_tokens
from passagent.data.pipeline.units import Refused
from passagent.tasks.extract.graph_text import clean_graph, model_text
from passagent.tasks.extract.model_capture import copied, quiet
from passagent.tasks.extract.sample import input_metas
from passagent.tasks.extract.structural_hash import structural_hash
from passagent.tasks.graphio import dump_nodes, load_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Subgraph

KINDS = ("train_forward", "train_backward")


def with_gradients(payload: dict[str, Any]) -> dict[str, Any]:
    """The records of a record's forward and backward graph. Raises Refused."""
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

    graph_module, metas = load_graph(payload["nodes"]), metas_of(payload)
    subgraph = Subgraph("drawn", Path("drawn"), tuple(metas), model_text(graph_module.graph), "float32", "")
    inputs = make_inputs(subgraph, next((meta.device for meta in metas), "cpu"), 0)
    leaves = [
        value.requires_grad_(_is_trained(meta)) if isinstance(value, torch.Tensor) else value
        for meta, value in zip(metas, inputs, strict=True)
    ]
    if not any(isinstance(value, torch.Tensor) and value.requires_grad for value in leaves):
        raise Refused("no-gradient", "no input takes a gradient")
    found: list[tuple[str, fx.GraphModule, list[Any]]] = []

    def compiler(kind: str) -> Any:
        def compile_graph(made: fx.GraphModule, _example: list[Any]) -> Any:
            def run(*args: Any) -> Any:
                found.append(
                    (kind, made, copied([a.detach() if isinstance(a, torch.Tensor) else a for a in args]))
                )
                return made(*args)

            return make_boxed_func(run)

        return compile_graph

    try:
        with quiet():
            compiled = aot_module_simplified(
                graph_module, tuple(leaves), fw_compiler=compiler(KINDS[0]), bw_compiler=compiler(KINDS[1])
            )
            outputs = [
                one for one in compiled(*leaves) if isinstance(one, torch.Tensor) and one.requires_grad
            ]
            torch.autograd.backward(outputs, [torch.randn_like(one) for one in outputs])
    except RuntimeError as error:
        raise Refused("no-gradient", str(error).strip().partition("\n")[0]) from error
    return {"records": [_record(*one, payload) for one in found], "refused": {}}


def _is_trained(meta: TensorMeta) -> bool:
    return meta.is_floating and "_buffers_" not in meta.original_name and "running_" not in meta.original_name


def _record(kind: str, made: fx.GraphModule, values: list[Any], payload: dict[str, Any]) -> dict[str, Any]:
    clean = clean_graph(made, values)
    metas = input_metas(clean.names, clean.values)
    if kind == KINDS[0]:
        own = [meta["original_name"] for meta in payload["inputs"]]
        number = [int(name.rpartition("_")[2]) - 1 for name in clean.names]
        metas = [replace(meta, original_name=own[i]) for meta, i in zip(metas, number, strict=True)]
    return {
        "kind": kind,
        "range": payload.get("range"),
        "operators": operator_tokens(clean.graph),
        "nodes": dump_nodes(clean.graph),
        "inputs": [asdict(meta) for meta in metas],
        "hash": structural_hash(clean.graph, metas)._asdict(),
        "count": 1,
    }
