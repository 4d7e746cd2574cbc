"""Extract a model: capture it, write each of its graphs, validate what was written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from passagent.errors import TaskError
from passagent.tasks.extract.factories import Model
from passagent.tasks.extract.graph_text import clean_graph
from passagent.tasks.extract.model_capture import Capture, capture_model, restored_transforms
from passagent.tasks.extract.sample import whole_directory, write_list, write_sample
from passagent.tasks.extract.structural_hash import StructuralHash
from passagent.tasks.extract.validation import Validation, validate


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
    """What came of a model."""

    path: Path
    graphs: list[ExtractedGraph]
    """In the order in which the model runs them."""
    breaks: list[str]
    """Where Dynamo broke the graph, and why: `FILE:LINE: reason`."""
    result: Any
    """What the model's call returned."""

    @property
    def ok(self) -> bool:
        """Every graph was written and passed all stages."""
        return all(graph.validation.ok for graph in self.graphs)

    @property
    def problems(self) -> list[str]:
        """What is wrong with graphs, a line each."""
        return [f"{graph.name}: {problem}" for graph in self.graphs for problem in graph.validation.problems]


@restored_transforms()
def extract_model(model: Model, out: Path, dynamic: bool = False, saves_memory: bool = False) -> Extracted:
    """Extract a model into the directory `out`, which must not be there.

    `saves_memory`: see capture_model. Raises PassagentError where Dynamo cannot capture it, UsageError where
    `out` holds files.
    """
    with whole_directory(out) as place:
        captured = capture_model(model, dynamic, saves_memory)
        device = device_of(captured)
        graphs = [
            _write(place, model, captured, number, device, dynamic) for number in range(len(captured.pieces))
        ]
        written = [graph.name for graph in graphs if graph.hash is not None]
        if not written:
            raise TaskError(f"{model.name}: {graphs[0].validation.problems[0]}")
        write_list(place, written)
    return Extracted(out, graphs, captured.breaks, captured.result)


def _write(
    place: Path, model: Model, captured: Capture, number: int, device: str, dynamic: bool
) -> ExtractedGraph:
    piece = captured.pieces[number]
    name = model.name if len(captured.pieces) == 1 else f"{model.name}_{number}"
    operators = sum(node.op.startswith("call") for node in piece.graph_module.graph.nodes)
    try:
        clean = clean_graph(piece.graph_module, piece.inputs, model.is_training)
        facts = {"order": number, "runs": piece.runs, "graph_breaks": captured.breaks}
        constraints = piece.constraints if dynamic else None
        found = write_sample(place / name, clean, model.name, constraints, facts)
    except TaskError as error:
        return ExtractedGraph(name, operators, piece.runs, None, Validation((), (str(error),), False))
    validation = validate(place / name, clean, piece.outputs, device, model.is_training)
    return ExtractedGraph(name, operators, piece.runs, found, validation)


def device_of(captured: Capture) -> str:
    """Where the model runs: `cpu`, or the first GPU among its inputs and weights."""
    values = (value for piece in captured.pieces for value in piece.inputs)
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return str(next((device for device in devices if device.type != "cpu"), "cpu"))


def extracting(function: Callable[..., Any], name: str, out: Path, dynamic: bool) -> Callable[..., Any]:
    """A model that is extracted at its first call, and otherwise does what it did."""
    done: list[Extracted] = []

    @functools.wraps(function if not isinstance(function, torch.nn.Module) else function.forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not done:
            done.append(extract_model(Model(name, function, args, kwargs), out, dynamic))
        return function(*args, **kwargs)

    call.extracted = done  # type: ignore[attr-defined]
    return call
