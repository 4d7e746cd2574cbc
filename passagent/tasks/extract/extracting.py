"""Extract a model: capture it, write each of its graphs, validate what was written.

Validation (GraphNet 4.1) reads, runs, extracts again and compares outputs and nodes, with the inputs and
weights of the model's own call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent.errors import TaskError
from passagent.store.outputs import whole_directory
from passagent.tasks.capture import capture
from passagent.tasks.constraints import check_subgraph, equal, find_difference
from passagent.tasks.extract.model_capture import (
    Capture,
    Model,
    capture_model,
    copied,
    quiet,
    restored_transforms,
)
from passagent.tasks.extract.sample import CleanGraph, clean_graph, input_metas, write_list, write_sample
from passagent.tasks.extract.structural_hash import StructuralHash, structural_hash
from passagent.tasks.module import load_module
from passagent.tasks.reader import read_subgraph


def validate(
    path: Path, clean: CleanGraph, expected: Sequence[Any], device: str, is_training: bool = False
) -> tuple[list[str], bool]:
    """Validate the subgraph directory `path`, written of `clean`, whose outputs are `expected`.

    Return what is wrong, and whether its outputs are those of the model, bit for bit.
    """
    is_exact = False
    try:
        subgraph = read_subgraph(path, path.name)
        module = load_module(subgraph, device)
        try:
            with torch.set_grad_enabled(is_training):
                outputs = pytree.tree_leaves(module(*copied(clean.values)))
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            raise TaskError(f"does not run: {text}") from error
        differing, is_exact = find_difference(outputs, expected)
        del outputs  # their memory is needed
        if differing:
            return [differing], is_exact
        with quiet():
            problems = check_subgraph(subgraph, device).problems
        if not problems and (problem := _other_nodes(clean, module)):
            problems = [problem]
    except TaskError as error:
        problems = [str(error)]
    return problems, is_exact


def _other_nodes(clean: CleanGraph, module: torch.nn.Module) -> str:
    """In what a graph that is captured again differs; empty if it does not."""
    with quiet():
        again = _captured(module, clean.values)
        has_numbers = not all(isinstance(value, torch.Tensor) for value in clean.values)
        # Dynamo makes literals of numbers: of those of symbolic sizes as well
        first = _captured(clean.graph_module, clean.values) if has_numbers else clean
    hashes = [
        structural_hash(graph.graph, input_metas(graph.names, graph.values)).instance
        for graph in (first, again)
    ]
    if hashes[0] == hashes[1]:
        return ""
    counts = [sum(node.op.startswith("call") for node in graph.graph.nodes) for graph in (again, first)]
    return f"captured again it is another graph: {counts[0]} operators, the model's {counts[1]}"


def _captured(module: torch.nn.Module, values: list[Any]) -> CleanGraph:
    captured = capture(module, values)
    return clean_graph(captured.graph_module, [values[position] for position in captured.order])


@dataclass(frozen=True)
class ExtractedGraph:
    """One graph of the model, written or refused."""

    name: str
    operators: int
    runs: int
    hash: StructuralHash | None
    """None where it was refused."""
    problems: list[str]
    is_exact: bool
    """The outputs are those of the model, bit for bit."""


@dataclass(frozen=True)
class Extracted:
    """The result for a model."""

    path: Path
    graphs: list[ExtractedGraph]
    """In the order in which the model runs them."""
    breaks: list[str]
    """Where Dynamo broke the graph, and why: `FILE:LINE: reason`."""
    result: Any
    """The value that the model's call returned. Large tensors of a GPU are in host memory here."""

    @property
    def ok(self) -> bool:
        """Every graph was written and validated."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """Faults of the graphs, a line each."""
        return [f"{graph.name}: {problem}" for graph in self.graphs for problem in graph.problems]


@restored_transforms()
def extract_model(model: Model, out: Path, dynamic: bool = False) -> Extracted:
    """Extract a model into the directory `out`, which must not be there.

    Raises PassagentError where Dynamo cannot capture it, UsageError where `out` holds files.
    """
    graphs = list[ExtractedGraph]()
    with whole_directory(out) as place:
        captured = capture_model(model, dynamic)
        device, arguments = device_of(captured), pytree.tree_leaves((model.args, model.kwargs))
        for piece in captured.pieces:  # one copy of a large input less while the piece is validated
            piece.inputs = [
                next((argument for argument in arguments if _is_same(argument, value)), value)
                for value in piece.inputs
            ]
        for number, piece in enumerate(captured.pieces):
            name = model.name if len(captured.pieces) == 1 else f"{model.name}_{number}"
            operators = sum(node.op.startswith("call") for node in piece.graph_module.graph.nodes)
            facts = {"dynamic": dynamic, "order": number, "runs": piece.runs, "graph_breaks": captured.breaks}
            try:
                clean = clean_graph(piece.graph_module, piece.inputs, model.is_training)
                metas = input_metas(clean.names, clean.values)
                hashes = write_sample(place / name, clean.graph, metas, model.name, facts)
            except TaskError as error:
                hashes, problems, is_exact = None, [str(error)], False
            else:
                problems, is_exact = validate(place / name, clean, piece.outputs, device, model.is_training)
            graphs.append(ExtractedGraph(name, operators, piece.runs, hashes, problems, is_exact))
        written = [graph.name for graph in graphs if graph.hash is not None]
        if not written:
            raise TaskError(f"{model.name}: {graphs[0].problems[0]}")
        write_list(place, written)
    return Extracted(out, graphs, captured.breaks, captured.result)


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two values are plain tensors, equal in all but their memory."""
    is_plain = type(first) is type(second) is torch.Tensor and first.layout == second.layout == torch.strided
    kinds = [(v.shape, v.stride(), v.dtype, v.device, v.requires_grad) for v in (first, second) if is_plain]
    return is_plain and kinds[0] == kinds[1] and equal(first, second)


def device_of(captured: Capture) -> str:
    """Where the model runs: `cpu`, or the first GPU among its inputs and weights."""
    values = (value for piece in captured.pieces for value in piece.inputs)
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return str(next((device for device in devices if device.type != "cpu"), "cpu"))
