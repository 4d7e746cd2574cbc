"""A captured graph as plain data (JSON), and back: what one process captured another can run.

Operators are named by where they can be imported from, and looked up again; nothing is executed on reading
but imports of torch's own modules.
"""

from __future__ import annotations

import builtins
import importlib
import math
import operator
from typing import Any

import torch
from torch import fx

from passagent.errors import TaskError

_PLAIN = (bool, int, str)
_TORCH_VALUES = {torch.dtype: "dtype", torch.memory_format: "memory_format", torch.layout: "layout"}
MODULES = ("torch", "operator", "_operator", "math", "builtins")
"""Where a captured operator may come from; anything else is a custom operator that nobody can analyse."""


def dump_graph(graph_module: fx.GraphModule) -> list[dict[str, Any]]:
    """The nodes of a graph, in order, as JSON-able data. Raises TaskError for what has no such form."""
    return dump_nodes(graph_module.graph)


def dump_nodes(graph: fx.Graph) -> list[dict[str, Any]]:
    """Return the nodes of an fx.Graph as `dump_graph` does."""
    nodes = []
    for node in graph.nodes:
        if node.op not in ("placeholder", "call_function", "call_method", "output"):
            raise TaskError(f"the captured graph holds a {node.op} node ({node.target})")
        target = target_name(node.target) if node.op == "call_function" else str(node.target)
        entry = {"op": node.op, "name": node.name, "target": target, "args": plain_value(node.args)}
        if node.kwargs:
            entry["kwargs"] = plain_value(dict(node.kwargs))
        nodes.append(entry)
    return nodes


def operator_name(target: Any) -> str:
    """An operator of a graph in a word: `layer_norm`, `add`, `view`; of `dump_graph`'s data or of a node."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.rpartition(":")[2].rpartition(".")[2].strip("_")


def load_graph(nodes: list[dict[str, Any]]) -> fx.GraphModule:
    """The GraphModule of `dump_graph`'s data. Raises TaskError for an operator that this torch lacks."""
    graph = fx.Graph()
    nodes_by_name: dict[str, fx.Node] = {}
    for entry in nodes:
        target = _resolve(entry["target"]) if entry["op"] == "call_function" else entry["target"]
        args, kwargs = (
            load_value(entry["args"], nodes_by_name),
            load_value(entry.get("kwargs", {"dict": []}), nodes_by_name),
        )
        node = graph.create_node(entry["op"], target, args, kwargs, name=entry["name"])
        nodes_by_name[entry["name"]] = node
    return fx.GraphModule(torch.nn.Module(), graph)


def target_name(target: Any) -> str:
    """`module:qualified.name` of a function, checked to lead back to it."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch:ops.{str(target).replace('::', '.')}"
    names = {getattr(target, "__qualname__", ""), getattr(target, "__name__", "")} - {""}
    module = getattr(target, "__module__", None)
    candidates = [module] if module else []
    candidates += ["torch", "torch.nn.functional", "torch._C._nn", "torch._C._special", "torch._C._linalg"]
    candidates += ["torch._C._fft", "torch._C", "operator", "math", "builtins"]
    for candidate in candidates:
        if candidate.split(".")[0] not in MODULES:
            continue
        for attribute in sorted(names):
            try:
                if _resolve(f"{candidate}:{attribute}") is target:
                    return f"{candidate}:{attribute}"
            except TaskError:
                continue
    raise TaskError(f"the captured graph calls {target}, which cannot be named for another process")


def _resolve(name: str) -> Any:
    module, _, path = name.partition(":")
    if module.split(".")[0] not in MODULES:
        raise TaskError(f"a graph may not call {name}")
    try:
        base: Any = torch if module == "torch" else importlib.import_module(module)
    except ImportError:
        base = _attribute(torch, module.removeprefix("torch."), name)
    return _attribute(base, path, name)


def _attribute(base: Any, path: str, name: str) -> Any:
    try:
        return operator.attrgetter(path)(base)
    except AttributeError as error:
        raise TaskError(f"this torch ({torch.__version__}) has no {name}") from error


def plain_value(value: Any) -> Any:  # noqa: PLR0911
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if isinstance(value, tuple):
        return {"tuple": [plain_value(item) for item in value]}
    if isinstance(value, list):
        return {"list": [plain_value(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[str(key), plain_value(item)] for key, item in value.items()]}
    if isinstance(value, slice):
        return {"slice": [plain_value(value.start), plain_value(value.stop), plain_value(value.step)]}
    if value is ...:
        return {"ellipsis": True}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, name in _TORCH_VALUES.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if isinstance(value, type) and value.__module__ == "builtins":
        return {"type": value.__name__}
    raise TaskError(f"the captured graph holds a {type(value).__name__}, which has no plain form")


def load_value(value: Any, nodes: dict[str, fx.Node]) -> Any:  # noqa: PLR0911
    if not isinstance(value, dict):
        return value
    ((kind, data),) = value.items()
    match kind:
        case "node":
            return nodes[data]
        case "tuple":
            return tuple(load_value(item, nodes) for item in data)
        case "list":
            return [load_value(item, nodes) for item in data]
        case "dict":
            return {key: load_value(item, nodes) for key, item in data}
        case "slice":
            return slice(*[load_value(item, nodes) for item in data])
        case "size":
            return torch.Size(data)
        case "float":
            return float(data)
        case "complex":
            return complex(*data)
        case "ellipsis":
            return ...
        case "device":
            return torch.device(data)
        case "type":
            return getattr(builtins, data)
        case _:
            return getattr(torch, data)
