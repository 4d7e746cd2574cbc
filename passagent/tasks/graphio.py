"""A captured graph as plain data (JSON), and back: what one process captured another can run.

Operators are named by where they can be imported from, and looked up again; nothing is executed on reading
but imports of torch's own modules.
"""

from __future__ import annotations

import builtins
import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from passagent.errors import TaskError

MODULES = ("torch", "operator", "_operator", "math", "builtins")
"""Where a captured operator may come from; anything else is a custom operator that nobody can analyse."""


def dump_graph(graph: fx.Graph) -> list[dict[str, Any]]:
    """The nodes of a graph, in order, as JSON-able data. Raises TaskError for what has no such form."""
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
        args, kwargs = load_value([entry["args"], entry.get("kwargs", {"dict": []})], nodes_by_name)
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


def _items(value: Any) -> list[Any]:
    return [plain_value(item) for item in value]


def _keyed(items: Any) -> dict[str, Any]:
    return {str(key): item for key, item in items}


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")


_FORMS: tuple[tuple[type, str, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (float, "float", repr, float),
    (torch.Size, "size", list, torch.Size),
    (tuple, "tuple", _items, tuple),
    (list, "list", _items, list),
    (dict, "dict", lambda value: [[str(key), plain_value(item)] for key, item in value.items()], _keyed),
    (slice, "slice", lambda value: _items([value.start, value.stop, value.step]), lambda data: slice(*data)),
    (type(...), "ellipsis", lambda _: True, lambda _: ...),
    (complex, "complex", lambda value: [value.real, value.imag], lambda data: complex(*data)),
    (torch.device, "device", str, torch.device),
    (torch.dtype, "dtype", _short, lambda data: getattr(torch, data)),
    (torch.memory_format, "memory_format", _short, lambda data: getattr(torch, data)),
    (torch.layout, "layout", _short, lambda data: getattr(torch, data)),
    (type, "type", lambda value: value.__name__, lambda data: getattr(builtins, data)),
)
"""For each kind of argument that JSON lacks: its word, what is written behind it, and how that is read."""
LOADS = {word: load for _, word, _, load in _FORMS}
"""Makes of what is written behind a word the argument."""


def plain_value(value: Any) -> Any:
    """An argument of a node as JSON-able data. Raises TaskError for what has no such form."""
    if (
        value is None
        or type(value) in (bool, int, str)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    if isinstance(value, fx.Node):
        return {"node": value.name}
    for kind, word, dump, _ in _FORMS:
        if isinstance(value, kind) and (kind is not type or value.__module__ == "builtins"):
            return {word: dump(value)}
    raise TaskError(f"the captured graph holds a {type(value).__name__}, which has no plain form")


def load_value(
    value: Any,
    nodes: dict[str, fx.Node],
    load: Callable[[str, Any], Any] = lambda word, data: LOADS[word](data),
) -> Any:
    """The argument that `plain_value` wrote; `nodes`: those of the graph by their names.

    `load` makes the argument of a word and what is behind it.
    """
    if isinstance(value, list):
        return [load_value(item, nodes, load) for item in value]
    if not isinstance(value, dict):
        return value
    ((word, data),) = value.items()
    return nodes[data] if word == "node" else load(word, load_value(data, nodes, load))
