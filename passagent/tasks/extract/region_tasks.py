"""A model's regions as tasks, each once with its count, those that take the most of its time first."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.profiler import ProfilerActivity, profile, record_function

from passagent.errors import PassagentError, UsageError
from passagent.evaluator.matching.effects import name_of
from passagent.store.outputs import whole_directory
from passagent.tasks.extract.extracting import device_of, validate
from passagent.tasks.extract.model_capture import (
    Capture,
    Model,
    Piece,
    capture_model,
    copied,
    restored_transforms,
)
from passagent.tasks.extract.regions import Region, cut, scheduled_kernels
from passagent.tasks.extract.sample import CleanGraph, input_metas, write_list, write_sample
from passagent.tasks.extract.structural_hash import StructuralHash, structural_hash
from passagent.tasks.meta import TensorMeta

_MARK = "passagent operator "
_ROUNDS, _WARM_UP = 7, 2


def operator_times(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, float]:
    """Seconds of each operator in one call, by the names of nodes.

    On a GPU those of its kernels, by the profiler; on the CPU the fastest of a few calls.
    """
    observed = _Observed(graph_module)
    for _ in range(_WARM_UP):
        observed.run(*copied(inputs))
    observed.times.clear()
    if not any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs):
        for _ in range(_ROUNDS):
            observed.run(*copied(inputs))
        return {name: min(times) for name, times in observed.times.items()}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(_ROUNDS):
            observed.run(*copied(inputs))
        torch.cuda.synchronize()
    seconds: dict[str, float] = defaultdict(float)
    for event in profiled.events():
        if event.name.startswith(_MARK):
            seconds[event.name.removeprefix(_MARK)] += event.device_time_total / _ROUNDS / 1e6
    return dict(seconds)


class _Observed(fx.Interpreter):
    """Runs a graph; times its operators, names them to the profiler, and keeps the values of some nodes."""

    def __init__(self, graph_module: fx.GraphModule, nodes: Collection[str] = ()) -> None:
        super().__init__(graph_module)
        self._kept = nodes
        self.times: dict[str, list[float]] = defaultdict(list)
        self.values: dict[str, Any] = {}
        """Copies, taken when the values were made."""

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        if not n.op.startswith("call"):
            value = super().run_node(n)
        else:
            with record_function(_MARK + n.name):
                begun = time.perf_counter()
                value = super().run_node(n)
                self.times[n.name].append(time.perf_counter() - begun)
        if n.name in self._kept:
            with temporarily_clear_interpreter_stack():  # what leaves vmap is kept as outside of it
                self.values[n.name] = copied([value])[0]
        return value


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
            tasks = [
                RegionTask(**task | {k: tuple(task[k]) for k in ("operators", "problems")})
                for task in data["tasks"]
            ]
            return cls(path, **data | {"tasks": tasks})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path / FILE}: is no list of regions ({error}); extract them again") from error


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
    for position, equal in enumerate(instances.values()):
        name = f"{model.name}_{position}"
        runs[name] = sum(occurrence.piece.runs for occurrence in equal)
        piece, region = equal[0].piece, equal[0].region
        observed = _Observed(piece.graph_module, {node.name for node in (*region.inputs, *region.outputs)})
        with torch.set_grad_enabled(model.is_training):
            observed.run(*copied(piece.inputs))
        names = [str(node.target) if node.op == "placeholder" else node.name for node in region.inputs]
        inputs = [observed.values[node.name] for node in region.inputs]
        clean = CleanGraph(region.graph(), names, inputs)
        write_sample(path / name, clean.graph, input_metas(names, inputs), model.name, {})
        outputs = [observed.values[node.name] for node in region.outputs]
        wrong, _ = validate(path / name, clean, outputs, device, model.is_training)
        problems += [problem.replace(str(path / name), name) for problem in wrong]
    write_list(path, list(runs))
    return runs, tuple(problems)
