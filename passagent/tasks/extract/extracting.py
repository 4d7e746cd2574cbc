"""A model's graphs, or its regions, as tasks: captured, written, validated.

Each region is a task once, with its count; those that take the most of the model's time come first.

Validation (GraphNet 4.1) reads, runs, extracts again and compares outputs and nodes, with the inputs and
weights of the model's own call.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from pydantic import TypeAdapter
from torch import fx

from passagent.errors import PassagentError, TaskError, UsageError
from passagent.evaluator.matching.effects import name_of
from passagent.store.outputs import whole_directory
from passagent.tasks.capture import capture
from passagent.tasks.constraints import check_subgraph, equal, find_difference
from passagent.tasks.extract.model_capture import (
    Capture,
    Model,
    Piece,
    capture_model,
    copied,
    quiet,
    restored_transforms,
)
from passagent.tasks.extract.observed import Observed, operator_times
from passagent.tasks.extract.regions import Region, cut, scheduled_kernels
from passagent.tasks.extract.sample import CleanGraph, clean_graph, input_metas, write_sample
from passagent.tasks.extract.structural_hash import StructuralHash, structural_hash
from passagent.tasks.meta import TensorMeta
from passagent.tasks.module import load_module
from passagent.tasks.reader import read_subgraph, write_list


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
        if not problems and (problem := find_other_nodes(clean, module)):
            problems = [problem]
    except TaskError as error:
        problems = [str(error)]
    return problems, is_exact


def find_other_nodes(clean: CleanGraph, module: torch.nn.Module) -> str:
    """Say in what a graph that is captured again, as `module`, differs; empty if it does not."""
    with quiet():
        again = captured_graph(module, clean.values)
        has_numbers = not all(isinstance(value, torch.Tensor) for value in clean.values)
        # Dynamo makes literals of numbers: of those of symbolic sizes as well
        first = captured_graph(clean.graph_module, clean.values) if has_numbers else clean
    hashes = [
        structural_hash(graph.graph, input_metas(graph.names, graph.values)).instance
        for graph in (first, again)
    ]
    if hashes[0] == hashes[1]:
        return ""
    counts = [sum(node.op.startswith("call") for node in graph.graph.nodes) for graph in (again, first)]
    return f"captured again it is another graph: {counts[0]} operators, the model's {counts[1]}"


def captured_graph(module: torch.nn.Module, values: list[Any]) -> CleanGraph:
    """Capture `module(*values)` as a task holds it. Raises TaskError."""
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


FILE = "regions.json"


@dataclass(frozen=True)
class RegionTask:
    """Regions of one structure. Each instance (sizes, dtypes) is a subgraph of the task."""

    name: str
    operators: tuple[str, ...]
    count: int
    """How often one call of the model runs a region of it."""
    share: float
    """Share of the time of all operators, all its runs together."""
    seconds: float
    instances: dict[str, int]
    """Subgraph to count."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Regions:
    """The regions of a model."""

    path: Path
    tasks: list[RegionTask]
    seconds: float
    """Time of all operators of one call."""
    refused: list[str]
    """Operators that are fused but are no region, and why."""
    graph_breaks: list[str]
    model: str
    """A hash of the model's graphs and inputs: whether these are the regions of a model."""

    def data(self) -> dict[str, Any]:
        """Return plain data: the content of regions.json."""
        return {name: value for name, value in asdict(self).items() if name != "path"}

    @classmethod
    def read(cls, path: Path) -> Regions:
        """Read what `extract_regions` wrote to `path`. Raises UsageError."""
        try:
            data = json.loads((path / FILE).read_text(encoding="utf-8"))
            return TypeAdapter(cls).validate_python({**data, "path": path})
        except (OSError, ValueError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"{path / FILE}: is no list of regions ({reason}); extract them again"
            ) from error


@dataclass(frozen=True)
class _Occurrence:
    """A region where it stands in the model."""

    piece: Piece
    region: Region
    hash: StructuralHash
    seconds: float
    """Time of its operators in one call of the model, all its runs together."""


@restored_transforms()
def extract_regions(
    model: Model,
    out: Path,
    products: bool = False,
    whole: Callable[[fx.Graph], list[list[fx.Node]]] = lambda graph: [],
) -> Regions:
    """Cut a model into regions and write each as a task below the directory `out`. Raises PassagentError.

    `products`: matrix products that a library computes are regions, too; `whole`: of a graph, operators that
    are a region whatever Inductor makes of them (regions.cut).
    """
    with whole_directory(out) as place:
        captured = capture_model(model, breaks_at_data=True)
        groups: dict[str, list[_Occurrence]] = defaultdict(list)
        refused, total = list[str](), 0.0
        with torch.set_grad_enabled(model.is_training):
            for piece in captured.pieces:
                graph = piece.graph_module.graph
                kernels = scheduled_kernels(piece.graph_module, piece.inputs)
                regions_here, reasons = cut(graph, kernels, products, whole(graph))
                times = operator_times(piece.graph_module, piece.inputs)
                total += sum(times.values()) * piece.runs
                refused += [f"{names}: {why}" for names, why in reasons]
                for region in regions_here:
                    seconds = sum(times.get(node.name, 0.0) for node in region.nodes) * piece.runs
                    hashes = _hash(region)
                    groups[hashes.structure].append(_Occurrence(piece, region, hashes, seconds))
        if not groups:
            raise PassagentError(f"{model.name}: Inductor fuses nothing in it that is a region")
        ordered = sorted(groups.values(), key=lambda group: -sum(occurrence.seconds for occurrence in group))
        device, tasks = device_of(captured), list[RegionTask]()
        for number, group in enumerate(ordered, start=1):
            operators = tuple(map(name_of, group[0].region.nodes))
            name = f"{number:02}_{'_'.join(word.strip('_') for word in operators)}"[:60].rstrip("_")
            instances, problems = _write(place / name, model, device, group)
            seconds, count = sum(occurrence.seconds for occurrence in group), sum(instances.values())
            share = seconds / total if total else 0.0
            tasks.append(RegionTask(name, operators, count, share, seconds, instances, problems))
        regions = Regions(out, tasks, total, refused, captured.breaks, model_hash(captured))
        (place / FILE).write_text(json.dumps(regions.data(), indent=1) + "\n", encoding="utf-8")
    return regions


def model_hash(captured: Capture) -> str:
    """Equal for captures of the same graphs with inputs of the same sizes, strides and dtypes."""
    parts = []
    for piece in captured.pieces:
        layouts = [
            f"{tuple(v.shape)} {v.stride()} {v.dtype} {v.device.type}"
            if isinstance(v, torch.Tensor)
            else repr(v)
            for v in piece.inputs
        ]
        parts += [piece.graph_module.code, *layouts]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _hash(region: Region) -> StructuralHash:
    metas = []
    for number, node in enumerate(region.inputs):
        value = node.meta["example_value"]
        dtype = str(value.dtype).removeprefix("torch.")
        metas.append(TensorMeta(f"in_{number}", node.name, tuple(map(int, value.shape)), dtype, "cpu"))
    return structural_hash(region.graph(), metas)


def _write(
    path: Path, model: Model, device: str, group: list[_Occurrence]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Write a task: the runs of each subgraph, and what validation finds wrong."""
    instances: dict[str, list[_Occurrence]] = defaultdict(list)
    for occurrence in group:
        instances[occurrence.hash.instance].append(occurrence)
    runs, problems = dict[str, int](), list[str]()
    for position, alike in enumerate(instances.values()):
        name = f"{model.name}_{position}"
        runs[name] = sum(occurrence.piece.runs for occurrence in alike)
        piece, region = alike[0].piece, alike[0].region
        inside = [(node, next(user for user in node.users if user in region.nodes)) for node in region.inputs]
        beyond = [
            (node, next(user for user in node.users if user not in region.nodes)) for node in region.outputs
        ]
        observed = Observed(piece.graph_module, inside + beyond)
        with torch.set_grad_enabled(model.is_training):
            observed.run(*copied(piece.inputs))
        names = [str(node.target) if node.op == "placeholder" else node.name for node in region.inputs]
        inputs = [observed.values[node.name] for node in region.inputs]
        clean = CleanGraph(region.graph(), names, inputs)
        write_sample(path / name, clean.graph, input_metas(names, inputs), model.name, {"library": "all"})
        outputs = [observed.values[node.name] for node in region.outputs]
        wrong, _ = validate(path / name, clean, outputs, device, model.is_training)
        problems += [problem.replace(str(path / name), name) for problem in wrong]
    write_list(path, runs)
    return runs, tuple(problems)
