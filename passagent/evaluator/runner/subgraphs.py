"""A subgraph as a worker calls it: eager's graph, a candidate's passes in it, or what a compiler makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from passagent.evaluator.compilers import arguments, is_compiled
from passagent.evaluator.integrity.zones import (
    Zoned,
    between_zones,
    fill_zones,
    ordinary_bytes,
    unpredictable,
)
from passagent.evaluator.matching.matcher import operators
from passagent.evaluator.runner import calls, hostless
from passagent.evaluator.runner.fresh import Rotation
from passagent.evaluator.runner.planned import Planned
from passagent.evaluator.runner.reservoirs import InputSets
from passagent.evaluator.runner.worker_messages import GraphReply, TakeGraph
from passagent.evaluator.score import BEYOND_SET
from passagent.sandbox.channel import Arena
from passagent.tasks.graphio import dump_graph, load_graph, operator_name
from passagent.tasks.meta import TensorMeta
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph

Nodes = list[dict[str, Any]]


@dataclass
class _Built:
    call: Callable[..., Any]
    audited: Callable[..., Any] | None
    report: dict[str, Any]


def take(
    request: TakeGraph,
    fds: list[int],
    device: str,
    loaded: Planned | None,
    compiler: str | None,
) -> tuple[calls.Graph, GraphReply]:
    """Make the subgraph of a `graph` request ready to be called, with the report on it.

    Without a candidate or `compiler` it is eager. A graph that is not known yet is captured here.
    """
    inputs = Arena(fds[0], request.input_bytes, writable=False)
    outputs = Arena(fds[1], request.output_bytes)
    sets = InputSets(request.sets, inputs, device)
    shapes = [item.shape for item in request.sets[0]]
    zoned: list[Zoned] = []
    first = sets[min(BEYOND_SET, len(request.sets) - 1)]  # no special values
    live = [_live(value, shape, zoned) for value, shape in zip(first, shapes, strict=True)]
    by_dynamo = request.dispatch == "dynamo"
    module = None
    if request.nodes is None or by_dynamo or is_compiled(compiler):
        module = load_module(_subgraph(request.subgraph), device)
    nodes, order = request.nodes, request.order
    if nodes is None:
        from passagent.tasks.capture import capture  # Dynamo takes seconds to import

        assert module is not None
        captured = capture(module, live)
        nodes, order = dump_graph(captured.graph_module.graph), captured.order
    if loaded is not None:
        name = request.subgraph["name"]
        built = _compiled(loaded, name, module) if module and by_dynamo else _rewritten(loaded, name, nodes)
    else:
        call: Callable[..., Any] = load_graph(nodes).forward
        if compiler is not None and is_compiled(compiler):
            call = torch.compile(module, dynamic=False, **arguments(compiler))
        elif module is not None and by_dynamo:
            call = module
        built = _Built(call, None, {"matches": 0})
    call_order = order
    if by_dynamo or is_compiled(compiler):
        call_order = list(range(len(live)))
    is_planned = loaded is not None
    is_warm = call_order is not order or (is_planned and device != "cpu")
    if is_warm:
        built.call(*[live[i] for i in call_order])  # compiles; finds out which alternatives are fastest
    graph = calls.Graph(
        built.call,
        built.audited,
        device.startswith("cuda"),
        call_order,
        live,
        sets,
        outputs,
        nodes,
        request.written,
        zoned,
        is_warm=is_warm or not is_planned,
    )
    reply = built.report
    if request.repeats:
        hostless.capture(graph, request.repeats, request.captures, Rotation((), *request.rotation))
    elif request.dispatch == "graph" and not graph.on_gpu:
        reply["dispatches"] = _dispatches(graph, built.report, compiler)
        reply["operator_ns"] = hostless.operator_ns()
    if request.nodes is None:
        reply |= {"nodes": nodes, "order": order}
    return graph, GraphReply(**reply)


def _dispatches(graph: calls.Graph, report: dict[str, Any], compiler: str | None) -> float:
    """How many empty operators the host's share of a call is worth."""
    if is_compiled(compiler):
        return hostless.compiled_dispatches(sum(isinstance(value, torch.Tensor) for value in graph.live))
    names = [operator_name(node["target"]) for node in _computing(graph.nodes)]
    operators = sum(name != "getitem" for name in report.get("left", names)) - report["matches"]
    return hostless.dispatches(operators, report["matches"])


def _rewritten(planned: Planned, name: str, nodes: Nodes) -> _Built:
    """The candidate's passes applied to the captured graph, and once more for audits."""
    calls = planned.calls(name)
    timed, audited = (planned.apply(load_graph(nodes), calls, is_audited) for is_audited in (False, True))
    return _Built(timed.forward, audited.forward, _report(timed))


def _compiled(planned: Planned, name: str, module: torch.nn.Module) -> _Built:
    """Build the graph behind torch.compile's guards: Dynamo captures, the backend applies the passes."""
    built, calls = _Built(module, None, {}), planned.calls(name)

    def compiled(is_audited: bool) -> Callable[..., Any]:
        def backend(graph_module: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
            planned.apply(graph_module, calls, is_audited)
            built.report = _report(graph_module)
            return graph_module.forward

        return torch.compile(module, backend=backend, dynamic=False, fullgraph=True)

    built.call, built.audited = compiled(False), compiled(True)
    return built


def _report(rewritten: torch.fx.GraphModule) -> dict[str, Any]:
    nodes = operators(rewritten.graph)
    return {
        "matches": sum("replacement" in node.meta for node in nodes),
        "left": [node.meta.get("replacement") or operator_name(node.target) for node in nodes],
    }


def _live(value: Any, shape: list[int] | None, zoned: list[Zoned]) -> Any:
    """The tensor that calls are given, at an address that stays, between zones as in audits: see `zoned`."""
    if shape is None:
        return value
    values = value[: math.prod(shape)].reshape(shape)
    raw, live = between_zones(torch.empty_like(values, device="meta"), values.device)
    zones = ordinary_bytes(values, values, unpredictable())
    fill_zones(raw, zones)
    zoned.append(Zoned(raw, zones, live))
    return live.copy_(values)


def _subgraph(data: dict[str, Any]) -> Subgraph:
    inputs = tuple(TensorMeta(**{**item, "shape": tuple(item["shape"])}) for item in data["inputs"])
    return Subgraph(**{**data, "path": Path(data["path"]), "inputs": inputs})


def _computing(nodes: Nodes) -> Nodes:
    return [node for node in nodes if node["op"] not in ("placeholder", "output")]
