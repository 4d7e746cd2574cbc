"""A full graph of GraphNet's layout, validated: read, run, captured, written, read again (GraphNet 4.1).

What is accepted is kept as plain data: the captured graph, its operators' names and its inputs' metadata.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent.data.pipeline.cutting import graph_record
from passagent.errors import TaskError
from passagent.tasks.capture import capture
from passagent.tasks.extract.extracting import find_difference
from passagent.tasks.extract.graph_text import CleanGraph, clean_graph, model_text
from passagent.tasks.extract.model_capture import copied, quiet
from passagent.tasks.extract.sample import input_metas
from passagent.tasks.extract.structural_hash import structural_hash
from passagent.tasks.inputs import make_inputs
from passagent.tasks.meta import TensorMeta, meta_source
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph, check_room, find_forward, parameters, read_subgraph
from passagent.tasks.suites.forked_jobs import Refused
from passagent.tasks.suites.loading_problems import called_twice

_RTOL, _ATOL = 1.3e-6, 1e-5
"""Between eager and the captured graph, times the dtype's precision over that of float32."""


def validate_sample(payload: dict[str, Any]) -> dict[str, Any]:
    """Validate the sample whose texts are `files`, by name, on `device`. Raises Refused, MachineFault.

    It writes into the working directory.
    """
    device = payload["device"]
    try:
        subgraph = _with_symbolic_sizes(_read("sample", payload["files"]))
    except TaskError as error:
        raise Refused("unreadable", str(error)) from error
    try:
        check_room(subgraph, 2)
    except TaskError as error:
        raise Refused("memory", str(error)) from error
    with quiet():
        clean, metas = _captured(subgraph, device)
        try:
            texts = {"model.py": model_text(clean.graph), "weight_meta.py": meta_source(metas)}
            again = capture(load_module(_read("written", texts), device), clean.values)
            other = clean_graph(again.graph_module, [clean.values[position] for position in again.order])
        except TaskError as error:
            raise Refused("rewritten", str(error)) from error
    second = [metas[position] for position in again.order]
    if structural_hash(clean.graph, metas).instance != structural_hash(other.graph, second).instance:
        raise Refused("nodes", "its text is captured as another graph")
    return graph_record(clean.graph, metas)


def _read(directory: str, texts: dict[str, str]) -> Subgraph:
    """Write these files into a new directory and read the sample. Raises TaskError."""
    path = Path.cwd() / directory
    path.mkdir()
    for name, text in texts.items():
        (path / name).write_text(text, encoding="utf-8")
    return read_subgraph(path, path.name)


def _with_symbolic_sizes(subgraph: Subgraph) -> Subgraph:
    """Make numbers of a sample's `s0: torch.SymInt`. GraphNet records it as a tensor of one integer."""
    forward = find_forward(subgraph.source, subgraph.path / "model.py")
    inputs = []
    for meta, parameter in zip(subgraph.inputs, parameters(forward, subgraph.path / "model.py"), strict=True):
        is_size = parameter.annotation is not None and ast.unparse(parameter.annotation).endswith("SymInt")
        value = meta.data[0] if isinstance(meta.data, list) and len(meta.data) == 1 else meta.data
        is_number = is_size and isinstance(value, int)
        inputs.append(replace(meta, dtype="int", data=value) if is_number else meta)
    return replace(subgraph, inputs=tuple(inputs))


def _captured(subgraph: Subgraph, device: str) -> tuple[CleanGraph, list[TensorMeta]]:
    """Capture with Dynamo the graph of a sample that runs alike twice. Raises Refused, and what it raises."""
    try:
        module = load_module(subgraph, device)
    except TaskError as error:
        is_missing = "No module named" in str(error)
        raise Refused("missing_package" if is_missing else "unloadable", str(error)) from error
    inputs = make_inputs(subgraph, device, 0)
    outputs = called_twice(module, inputs)
    tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
    if any(bool(output.isnan().any()) for output in tensors if output.is_floating_point()):
        raise Refused("nan", "an output is NaN")
    captured = capture(module, inputs)
    clean = clean_graph(captured.graph_module, [inputs[position] for position in captured.order])
    with torch.no_grad():
        results = pytree.tree_leaves(clean.graph_module(*copied(clean.values)))
    differing, _ = find_difference(results, outputs, _RTOL, _ATOL)
    if differing:
        raise Refused("differs", f"the captured graph: {differing}")
    meta_of = {id(value): meta for value, meta in zip(inputs, subgraph.inputs, strict=True)}
    metas = []
    for number, (name, value) in enumerate(zip(clean.names, clean.values, strict=True)):
        meta = meta_of.get(id(value)) or input_metas([name], [value])[0]
        metas.append(replace(meta, name=f"in_{number}", device=device))
    return clean, metas
