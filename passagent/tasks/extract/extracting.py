"""Extract a model: capture it, write each of its graphs, validate what was written.

The four stages of validation (GraphNet 4.1) read, run, extract again and compare outputs and nodes. They use
the inputs and weights of the model's own call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent.errors import TaskError
from passagent.tasks.capture import capture
from passagent.tasks.constraints import check_subgraph, find_difference
from passagent.tasks.extract.factories import Model
from passagent.tasks.extract.graph_text import CleanGraph, clean_graph, specialised
from passagent.tasks.extract.model_capture import Capture, capture_model, copied, quiet, restored_transforms
from passagent.tasks.extract.sample import input_metas, whole_directory, write_list, write_sample
from passagent.tasks.extract.structural_hash import StructuralHash, structural_hash
from passagent.tasks.module import load_module
from passagent.tasks.reader import read_subgraph

STAGES = ("read", "run", "extract", "compare")


@dataclass(frozen=True)
class Validation:
    """How far a directory came."""

    passed: tuple[str, ...]
    """The stages of STAGES that it passed."""
    problems: tuple[str, ...]
    is_exact: bool
    """The outputs are those of the model, bit for bit."""

    @property
    def ok(self) -> bool:
        """All stages."""
        return not self.problems


def validate(
    path: Path, clean: CleanGraph, expected: Sequence[Any], device: str, is_training: bool = False
) -> Validation:
    """Validate the subgraph directory `path`, written of `clean`, whose outputs are `expected`."""
    passed, is_exact = list[str](), False
    try:
        subgraph = read_subgraph(path, path.name)
        module = load_module(subgraph, device)
        passed.append("read")
        try:
            with torch.set_grad_enabled(is_training):
                outputs = pytree.tree_leaves(module(*copied(clean.values)))
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            raise TaskError(f"does not run: {text}") from error
        differing, is_exact = find_difference(outputs, expected)
        del outputs  # their memory is needed
        if differing:
            raise TaskError(differing)
        passed.append("run")
        with quiet():
            checked = check_subgraph(subgraph, device)
        if not checked.ok:
            return Validation(tuple(passed), tuple(checked.problems), is_exact)
        passed.append("extract")
        if problem := _other_nodes(clean, module):
            raise TaskError(problem)
        passed.append("compare")
    except TaskError as error:
        return Validation(tuple(passed), (str(error),), is_exact)
    return Validation(tuple(passed), (), is_exact)


def _other_nodes(clean: CleanGraph, module: torch.nn.Module) -> str:
    """In what a graph that is captured again differs; empty if it does not."""
    own_clean = specialised(clean)
    with quiet():
        again = capture(module, clean.values)
    other = clean_graph(again.graph_module, [clean.values[position] for position in again.order])
    first = structural_hash(own_clean.graph, input_metas(own_clean.names, own_clean.values)).instance
    second = structural_hash(other.graph, input_metas(other.names, other.values)).instance
    if first == second:
        return ""
    counts = [sum(node.op.startswith("call") for node in clean.graph.nodes) for clean in (own_clean, other)]
    return f"captured again it is another graph: {counts[1]} operators, the model's {counts[0]}"


@dataclass(frozen=True)
class ExtractedGraph:
    """One graph of the model, written or refused."""

    name: str
    operators: int
    runs: int
    hash: StructuralHash | None
    """None where it was refused."""
    validation: Validation


@dataclass(frozen=True)
class Extracted:
    """The result for a model."""

    path: Path
    graphs: list[ExtractedGraph]
    """In the order in which the model runs them."""
    breaks: list[str]
    """Where Dynamo broke the graph, and why: `FILE:LINE: reason`."""
    result: Any
    """The value that the model's call returned."""

    @property
    def ok(self) -> bool:
        """Every graph was written and passed all stages."""
        return all(graph.validation.ok for graph in self.graphs)

    @property
    def problems(self) -> list[str]:
        """Faults of the graphs, a line each."""
        return [f"{graph.name}: {problem}" for graph in self.graphs for problem in graph.validation.problems]


@restored_transforms()
def extract_model(model: Model, out: Path, dynamic: bool = False, saves_memory: bool = False) -> Extracted:
    """Extract a model into the directory `out`, which must not be there.

    `saves_memory`: see capture_model. Raises PassagentError where Dynamo cannot capture it, UsageError where
    `out` holds files.
    """
    graphs = list[ExtractedGraph]()
    with whole_directory(out) as place:
        captured = capture_model(model, dynamic, saves_memory)
        device = device_of(captured)
        for number, piece in enumerate(captured.pieces):
            name = model.name if len(captured.pieces) == 1 else f"{model.name}_{number}"
            operators = sum(node.op.startswith("call") for node in piece.graph_module.graph.nodes)
            facts = {"dynamic": dynamic, "order": number, "runs": piece.runs, "graph_breaks": captured.breaks}
            try:
                clean = clean_graph(piece.graph_module, piece.inputs, model.is_training)
                metas = input_metas(clean.names, clean.values)
                hashes = write_sample(place / name, clean.graph, metas, model.name, facts)
            except TaskError as error:
                hashes, validation = None, Validation((), (str(error),), False)
            else:
                validation = validate(place / name, clean, piece.outputs, device, model.is_training)
            graphs.append(ExtractedGraph(name, operators, piece.runs, hashes, validation))
        written = [graph.name for graph in graphs if graph.hash is not None]
        if not written:
            raise TaskError(f"{model.name}: {graphs[0].validation.problems[0]}")
        write_list(place, written)
    return Extracted(out, graphs, captured.breaks, captured.result)


def device_of(captured: Capture) -> str:
    """Where the model runs: `cpu`, or the first GPU among its inputs and weights."""
    values = (value for piece in captured.pieces for value in piece.inputs)
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return str(next((device for device in devices if device.type != "cpu"), "cpu"))
