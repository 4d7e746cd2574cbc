"""A full graph of GraphNet's layout, validated: read, run, captured, written, read again (GraphNet 4.1).

What is accepted is kept as plain data: the captured graph, its operators' names and its inputs' metadata.
"""

from __future__ import annotations

import ast
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent.data.pipeline.cutting import graph_record
from passagent.data.pipeline.units import Refused
from passagent.errors import TaskError
from passagent.tasks.capture import capture
from passagent.tasks.extract.graph_text import CleanGraph, clean_graph, model_text
from passagent.tasks.extract.model_capture import quiet
from passagent.tasks.extract.sample import input_metas
from passagent.tasks.extract.structural_hash import structural_hash
from passagent.tasks.inputs import make_inputs
from passagent.tasks.meta import TensorMeta, meta_source
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph, find_forward, parameters, read_subgraph
from passagent.tasks.room import check_room

_RTOL, _ATOL = 1.3e-6, 1e-5
"""Between eager and the captured graph, times the dtype's precision over that of float32."""


def validate_sample(payload: dict[str, Any]) -> dict[str, Any]:
    """Validate the sample at `path` on `device`. Raises Refused, MachineFault."""
    path, device = Path(payload["path"]), payload["device"]
    try:
        subgraph = _with_symbolic_sizes(read_subgraph(path, path.name))
    except TaskError as error:
        raise Refused("unreadable", str(error)) from error
    try:
        check_room(subgraph, 2)
    except TaskError as error:
        raise Refused("memory", str(error)) from error
    with quiet():
        clean, metas = _captured(subgraph, device)
        _check_written(clean, metas, device)
    return graph_record(clean.graph, metas)


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
    """Capture with Dynamo the graph of a sample that runs alike twice. Raises Refused."""
    try:
        module = load_module(subgraph, device)
    except TaskError as error:
        raise Refused("package" if "No module named" in str(error) else "unloadable", str(error)) from error
    inputs = make_inputs(subgraph, device, 0)
    try:
        outputs, again = _run(module, inputs), _run(module, inputs)
    except ImportError as error:
        raise Refused("package", str(error)) from error
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError) as error:
        raise Refused(
            "fails", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        ) from error
    if not outputs:
        raise Refused("no-tensor", "returns no tensor")
    if problem := _difference(outputs, again, exact=True):
        raise Refused("random", f"two runs: {problem}")
    if any(
        bool(output.isnan().any())
        for output in outputs
        if isinstance(output, torch.Tensor) and output.is_floating_point()
    ):
        raise Refused("nan", "an output is NaN")
    try:
        captured = capture(module, inputs)
        captured_inputs = [inputs[position] for position in captured.order]
        clean = clean_graph(captured.graph_module, captured_inputs)
    except TaskError as error:
        raise Refused("operator" if "operator" in str(error) else "graph-break", str(error)) from error
    if problem := _difference(_run(clean.graph_module, clean.values), outputs, exact=False):
        raise Refused("differs", f"captured: {problem}")
    meta_of = {id(value): meta for value, meta in zip(inputs, subgraph.inputs, strict=True)}
    metas = []
    for number, (name, value) in enumerate(zip(clean.names, clean.values, strict=True)):
        meta = meta_of.get(id(value)) or input_metas([name], [value])[0]
        metas.append(replace(meta, name=f"in_{number}", device=device))
    return clean, metas


def _check_written(clean: CleanGraph, metas: list[TensorMeta], device: str) -> None:
    """Raise Refused if the graph's text is captured as another graph."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "sample"
        path.mkdir()
        (path / "model.py").write_text(model_text(clean.graph), encoding="utf-8")
        (path / "weight_meta.py").write_text(meta_source(metas), encoding="utf-8")
        try:
            sample = read_subgraph(path, "sample")
            again = capture(load_module(sample, device), clean.values)
            other = clean_graph(again.graph_module, [clean.values[position] for position in again.order])
        except TaskError as error:
            raise Refused("rewritten", str(error).replace(str(path), "")) from error
    second = [metas[position] for position in again.order]
    if structural_hash(clean.graph, metas).instance != structural_hash(other.graph, second).instance:
        raise Refused("nodes", "its text is captured as another graph")


def _run(module: torch.nn.Module, inputs: list[Any]) -> list[Any]:
    """Return the outputs of a call; inputs that are no weights are not changed."""
    with torch.no_grad():
        small = [isinstance(value, torch.Tensor) and value.numel() < 1 << 24 for value in inputs]
        return pytree.tree_leaves(
            module(*[value.clone() if copy else value for value, copy in zip(inputs, small, strict=True)])
        )


def _difference(first: list[Any], second: list[Any], exact: bool) -> str:
    """Return where outputs differ; empty if they do not."""
    if len(first) != len(second):
        return f"{len(first)} and {len(second)} outputs"
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            scale = torch.finfo(a.dtype).eps / torch.finfo(torch.float32).eps if a.is_floating_point() else 0
            scale = scale if not exact else 0
            is_same = a.shape == b.shape and a.dtype == b.dtype
            if not is_same or not torch.allclose(
                a, b, rtol=_RTOL * scale, atol=_ATOL * scale, equal_nan=True
            ):
                return f"output {number} differs"
        elif a != b:
            return f"output {number} differs"
    return ""
