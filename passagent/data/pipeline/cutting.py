"""From a sample to subgraphs as plain data: operators of a graph, one after the other, and their inputs.

A full graph of GraphNet's layout is validated first: read, run, captured, written, read again (GraphNet 4.1).

Prefix analysis (PassNet 3.2): where a graph's prefixes have one kernel count, operators fuse. The counts are
those of Inductor's scheduler. Where two prefixes have the same count, and the one in the middle, too, all
between them have it. So few prefixes are scheduled.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from passagent.errors import PassagentError, TaskError
from passagent.evaluator.matching.effects import written
from passagent.tasks.constraints import find_difference
from passagent.tasks.extract.extracting import captured_graph, find_other_nodes
from passagent.tasks.extract.model_capture import copied, quiet
from passagent.tasks.extract.observed import Observed
from passagent.tasks.extract.regions import region_of, scheduled_kernels
from passagent.tasks.extract.sample import CleanGraph, clean_graph, input_metas, model_text
from passagent.tasks.extract.structural_hash import structural_hash
from passagent.tasks.graphio import dump_graph, load_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.meta import TensorMeta, meta_source
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph, check_room, find_forward, parameters, read_subgraph
from passagent.tasks.suites.forked_jobs import Refused
from passagent.tasks.suites.loading_problems import called_twice

BACKWARD = ("train_forward", "train_backward")
"""The kinds of with_gradients."""


def graph_record(graph: fx.Graph, metas: Sequence[TensorMeta]) -> dict[str, Any]:
    """Return a graph as plain data.

    `operators` are its operators' names in order, as GraphNet has them: `conv2d`, `iadd`, `Tensor.view`.
    """
    names = [
        f"Tensor.{node.target}"
        if node.op == "call_method"
        else getattr(node.target, "__name__", str(node.target))
        for node in operators(graph)
    ]
    return {
        "operators": names,
        "nodes": dump_graph(graph),
        "inputs": [asdict(meta) for meta in metas],
        "hash": structural_hash(graph, metas)._asdict(),
    }


def operators(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes of a graph that compute."""
    return [node for node in graph.nodes if node.op.startswith("call")]


def metas_of(record: dict[str, Any]) -> list[TensorMeta]:
    """Return the inputs' metadata of a record."""
    tuples = ("shape", "levels", "stride")
    return [
        TensorMeta(**meta | {key: tuple(meta[key]) for key in tuples if meta[key] is not None})
        for meta in record["inputs"]
    ]


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
            difference = find_other_nodes(clean, load_module(_read("written", texts), device))
        except TaskError as error:
            raise Refused("rewritten", str(error)) from error
    if difference:
        raise Refused("nodes", difference)
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
        value = meta.data[0] if isinstance(meta.data, tuple) and len(meta.data) == 1 else meta.data
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
    clean = captured_graph(module, inputs)
    with torch.no_grad():
        results = pytree.tree_leaves(clean.graph_module(*copied(clean.values)))
    differing, _ = find_difference(results, outputs)
    if differing:
        raise Refused("differs", f"the captured graph: {differing}")
    meta_of = {id(value): meta for value, meta in zip(inputs, subgraph.inputs, strict=True)}
    metas = []
    for number, (name, value) in enumerate(zip(clean.names, clean.values, strict=True)):
        meta = meta_of.get(id(value)) or input_metas([name], [value])[0]
        metas.append(replace(meta, name=f"in_{number}", device=device))
    return clean, metas


def empty_inputs(metas: Sequence[TensorMeta]) -> list[Any]:
    """Make inputs of these sizes, whose values do not matter."""
    return [
        meta.data if meta.is_python_scalar
        else torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device=meta.device)
        for meta in metas
    ]  # fmt: skip


def _drawn_inputs(graph: fx.Graph, metas: Sequence[TensorMeta]) -> list[Any]:
    subgraph = Subgraph("drawn", Path("drawn"), tuple(metas), model_text(graph), "float32", "")
    return make_inputs(subgraph, next((meta.device for meta in metas), "cpu"), 0)


def cut_ranges(payload: dict[str, Any]) -> dict[str, Any]:
    """Cut `ranges` ([kind, start, end]) out of a record (`nodes`, `inputs`), each structure and size once.

    The metadata of its values is that of one run of its graph on drawn inputs.
    """
    graph_module = load_graph(payload["nodes"])
    graph, metas = graph_module.graph, metas_of(payload)
    nodes = operators(graph)
    regions = [(kind, start, end, region_of(nodes[start:end])) for kind, start, end in payload["ranges"]]
    recorded = {node for *_, region in regions for node in region.inputs + region.outputs}

    def meta_of(name: str, value: Any) -> TensorMeta | None:
        """Record the metadata of a value as it is first read; None for what is no tensor."""
        return input_metas([name], [value])[0] if isinstance(value, torch.Tensor) else None

    def first_reader(node: fx.Node) -> fx.Node:
        return next((user for user in node.users if node not in written(user)), next(iter(node.users)))

    observed = Observed(graph_module, ((node, first_reader(node)) for node in recorded), meta_of)
    with torch.no_grad():
        observed.run(*_drawn_inputs(graph, metas))
    metadata = observed.values | {
        node.name: meta
        for node, meta in zip(graph.find_nodes(op="placeholder"), metas, strict=True)
        if not meta.is_python_scalar
    }
    first_operator = payload["range"][0] if "range" in payload else 0
    records: dict[tuple[str, str], dict[str, Any]] = {}
    refused = Counter[str]()
    for kind, start, end, region in regions:
        is_tensors = all(metadata.get(node.name) is not None for node in (*region.inputs, *region.outputs))
        if not region.outputs or not is_tensors:
            refused[f"{kind} {'no-tensor' if region.outputs else 'unused'}"] += 1
            continue
        inputs = [replace(metadata[node.name], name=f"in_{i}") for i, node in enumerate(region.inputs)]
        record = graph_record(region.graph(), inputs)
        record |= {"kind": kind, "range": [first_operator + start, first_operator + end], "count": 1}
        instance = record["hash"]["instance"]
        if first := records.get((kind, instance)):
            first["count"] += 1
        else:
            records[kind, instance] = record
    return {"records": list(records.values()), "refused": dict(refused)}


def cut_fusible(payload: dict[str, Any]) -> dict[str, Any]:
    """Cut the fusible ranges out of a record. Raises Refused where Inductor cannot schedule a prefix."""
    graph_module, metas = load_graph(payload["nodes"]), metas_of(payload)
    inputs = dict(zip(graph_module.graph.find_nodes(op="placeholder"), empty_inputs(metas), strict=True))
    nodes = operators(graph_module.graph)

    def count(prefix: int) -> int:
        region = region_of(nodes[:prefix])
        if not region.outputs:
            return 0
        module = torch.fx.GraphModule(torch.nn.Module(), region.graph())
        with torch.no_grad():
            return scheduled_kernels(module, [inputs[node] for node in region.inputs]).launches

    try:
        counts = kernel_counts(len(nodes), count)
    except PassagentError as error:
        raise Refused("unscheduled", str(error)) from error
    ranges = [["fusible", start, end] for start, end in fusible_ranges(counts)]
    return cut_ranges({**payload, "ranges": ranges})


def kernel_counts(operators: int, count: Callable[[int], int]) -> list[int]:
    """Count the kernels of the prefixes of 1, 2, ... operators, by bisection between equal counts."""
    at = functools.cache(count)

    def between(low: int, high: int) -> list[int]:
        if high - low < 2:
            return [at(prefix) for prefix in range(low, high + 1)]
        middle = (low + high) // 2
        if at(low) == at(high) == at(middle):
            return [at(low)] * (high - low + 1)
        return between(low, middle) + between(middle, high)[1:]

    return between(1, operators)


def fusible_ranges(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of operators whose kernels fuse, as GraphNet finds them; `counts`: of each prefix.

    What lies between two prefixes of one count belongs to them. Where the count then falls, two plateaus are
    one. A plateau whose last change is a rise is none.
    """
    backwards = counts[::-1]
    spans = {kernels: (counts.index(kernels), len(counts) - backwards.index(kernels)) for kernels in counts}
    closed = [
        min(kernels for kernels, (first, end) in spans.items() if first <= place < end)
        for place in range(len(counts))
    ]
    plateaus = [
        [prefix for prefix, _ in group]
        for _, group in groupby(enumerate(closed, start=1), key=lambda pair: pair[1])
    ]
    merged: list[list[int]] = []
    for plateau in plateaus:
        merged.append(plateau)
        while len(merged) > 1 and counts[merged[-2][-1] - 1] >= counts[merged[-1][0] - 1]:
            merged[-2:] = [merged[-2] + merged[-1]]
    ranges = []
    for plateau in merged:
        kernels_of = [counts[prefix - 1] for prefix in plateau]
        changes = [later - earlier for earlier, later in pairwise(kernels_of) if later != earlier]
        if len(plateau) > 1 and kernels_of[0] >= kernels_of[-1] and (not changes or changes[-1] < 0):
            ranges.append((plateau[0] - 1, plateau[-1]))
    return [fused for i, fused in enumerate(ranges) if i == 0 or fused[0] >= ranges[i - 1][1]]


def with_gradients(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the records of what training computes for a record's graph. Raises Refused.

    These are AOTAutograd's forward graph, which keeps values, and its backward graph.
    """
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

    graph_module, metas = load_graph(payload["nodes"]), metas_of(payload)
    inputs = _drawn_inputs(graph_module.graph, metas)
    for meta, value in zip(metas, inputs, strict=True):
        is_state = "_buffers_" in meta.original_name or "running_" in meta.original_name
        if isinstance(value, torch.Tensor):
            value.requires_grad_(meta.is_floating and not is_state)
    if not any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs):
        raise Refused("no-gradient", "no input takes a gradient")
    graphs: list[tuple[str, fx.GraphModule, list[Any]]] = []

    def compile_graph(kind: str, compiled_graph: fx.GraphModule, _example: list[Any]) -> Any:
        def run(*args: Any) -> Any:
            values = copied([a.detach() if isinstance(a, torch.Tensor) else a for a in args])
            graphs.append((kind, compiled_graph, values))
            return compiled_graph(*args)

        return make_boxed_func(run)

    try:
        with quiet():
            compiled = aot_module_simplified(
                graph_module,
                tuple(inputs),
                fw_compiler=functools.partial(compile_graph, BACKWARD[0]),
                bw_compiler=functools.partial(compile_graph, BACKWARD[1]),
            )
            outputs = [
                value
                for value in compiled(*inputs)
                if isinstance(value, torch.Tensor) and value.requires_grad
            ]
            torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
    except RuntimeError as error:
        raise Refused("no-gradient", str(error).strip().partition("\n")[0]) from error
    return {"records": [_backward_record(*graph, payload) for graph in graphs], "refused": {}}


def _backward_record(
    kind: str, graph_module: fx.GraphModule, values: list[Any], payload: dict[str, Any]
) -> dict[str, Any]:
    clean = clean_graph(graph_module, values)
    metas = input_metas(clean.names, clean.values)
    if kind == BACKWARD[0]:
        names = [meta["original_name"] for meta in payload["inputs"]]
        numbers = [int(name.rpartition("_")[2]) - 1 for name in clean.names]
        metas = [replace(meta, original_name=names[i]) for meta, i in zip(metas, numbers, strict=True)]
    return graph_record(clean.graph, metas) | {"kind": kind, "range": payload.get("range"), "count": 1}
