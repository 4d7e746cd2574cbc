"""A hash of what a graph computes, whatever its nodes are called and however they are ordered.

Every node has a Merkle digest: its operator, its literal arguments, the digests of its operands in their
order, and of what must run before it because of memory. A graph's hash is that of its canonical listing.
Nodes are numbered there from the outputs down, so that a value used twice differs from two equal values.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from torch import fx

from passagent.errors import TaskError
from passagent.evaluator.captures import graph_of
from passagent.evaluator.matching.effects import Memory, is_pure, name_of
from passagent.tasks.graphio import load_graph, plain_value, target_name
from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Subgraph, Task, load_task

VERSION = 1
Level = Literal["structure", "instance"]
_SIZED = {
    "view", "reshape", "expand", "repeat", "tile", "broadcast_to", "unflatten", "zeros", "ones", "full",
    "empty", "arange", "new_zeros", "new_ones", "new_full", "new_empty", "layer_norm", "rms_norm", "split",
    "getitem", "linspace", "randn", "rand",
}  # fmt: skip
"""Operators whose integers are sizes. The structure keeps only -1, 0 and 1 of them."""


class StructuralHash(NamedTuple):
    """Two hashes of one graph, each `VERSION:sha256`."""

    structure: str
    """Operators, attributes and ranks, without sizes and dtypes of inputs: one for all shapes of a region."""
    instance: str
    """With all sizes, and shape and dtype of each input."""


def structural_hash(graph: fx.Graph, inputs: Sequence[TensorMeta]) -> StructuralHash:
    """The hash of a graph; `inputs`: of each placeholder. Raises TaskError for an operator without a name."""
    structure, instance = (_Listing(graph, inputs, level).hash() for level in ("structure", "instance"))
    return StructuralHash(structure, instance)


def is_sized(node: fx.Node) -> bool:
    """Return whether integers among a node's arguments are sizes."""
    return name_of(node).strip("_") in _SIZED


class _Listing:
    def __init__(self, graph: fx.Graph, inputs: Sequence[TensorMeta], level: Any) -> None:
        self._level: Level = level
        self._memory = Memory(graph)
        self._nodes = [node for node in graph.nodes if node.op != "output"]
        self._output = next(node for node in reversed(graph.nodes) if node.op == "output")
        self._inputs = dict(zip(graph.find_nodes(op="placeholder"), inputs, strict=True))
        self._effects = [node for node in self._nodes if node.op != "placeholder" and not is_pure(node)]
        self._live = closure([*_operands(self._output), *self._effects])
        self._digests: dict[fx.Node, str] = {}
        for node in self._nodes:
            self._digests[node] = _sha(self._text(node, self._digests.__getitem__))

    def hash(self) -> str:
        """`VERSION:sha256`."""
        roots = _operands(self._output) + sorted(self._effects, key=self._digests.__getitem__)
        numbers: dict[fx.Node, str] = {}
        for node in self._ordered(roots):
            numbers[node] = str(len(numbers))
        lines = [self._text(node, numbers.__getitem__) for node in numbers]
        lines.append(self._text(self._output, numbers.__getitem__))
        return f"{VERSION}:{_sha(chr(10).join([self._level, *lines]))}"

    def _ordered(self, roots: list[fx.Node]) -> list[fx.Node]:
        """All that the roots need, each after its operands, operands in their order."""
        ordered: dict[fx.Node, None] = {}
        stack = [(root, False) for root in reversed(roots)]
        while stack:
            node, is_ready = stack.pop()
            if node in ordered:
                continue
            if is_ready:
                ordered[node] = None
                continue
            stack.append((node, True))
            before = _operands(node) + self._through_memory(node)
            stack += [(operand, False) for operand in reversed(before)]
        return list(ordered)

    def _through_memory(self, node: fx.Node) -> list[fx.Node]:
        others = self._live & self._memory.through_memory[node] - set(node.all_input_nodes)
        return sorted(others, key=lambda other: (self._digests[other], self._memory.position[other]))

    def _text(self, node: fx.Node, name: Callable[[fx.Node], str]) -> str:
        """A node as a line, in which other nodes are called by `name`."""
        if node.op == "placeholder":
            meta = self._inputs[node]
            if meta.is_python_scalar:
                return f"number {meta.dtype}" + (f" {meta.data}" if self._level == "instance" else "")
            exact = f" {list(meta.shape)} {meta.dtype}" if self._level == "instance" else ""
            return f"input {len(meta.shape)}{exact}"
        target = target_name(node.target) if node.op == "call_function" else str(node.target)
        sized = self._level == "structure" and is_sized(node)
        args = _plain(_arguments(node), name, sized)
        after = sorted(map(name, self._through_memory(node))) if node.op != "output" else []
        return json.dumps([node.op, target, args, after])


def closure(nodes: list[fx.Node]) -> set[fx.Node]:
    """The nodes and all that they are computed from. What is left of a graph is dead."""
    reached, pending = set[fx.Node](), list(nodes)
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending += node.all_input_nodes
    return reached


def _arguments(node: fx.Node) -> Any:
    return node.args, dict(sorted(node.kwargs.items()))


def _operands(node: fx.Node) -> list[fx.Node]:
    """In the order of the arguments, of those by keyword in the order of their names."""
    operands: dict[fx.Node, None] = {}
    fx.node.map_arg(_arguments(node), operands.setdefault)
    return list(operands)


def _plain(value: Any, name: Callable[[fx.Node], str], sized: bool) -> Any:
    if isinstance(value, fx.Node):
        return {"node": name(value)}
    if type(value) is int and sized:
        return value if value in (-1, 0, 1) else "size"
    if isinstance(value, tuple | list):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, *(_plain(item, name, sized) for item in value)]
    if isinstance(value, dict):
        return {key: _plain(item, name, sized) for key, item in value.items()}
    if isinstance(value, slice):
        return {"slice": [_plain(part, name, sized) for part in (value.start, value.stop, value.step)]}
    return {"is": [type(value).__name__, plain_value(value)]}


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def hash_subgraph(subgraph: Subgraph) -> StructuralHash:
    """The hash of the graph that passes are matched against. Raises TaskError where it is not one graph."""
    captured = graph_of(subgraph, "cpu")
    inputs = [subgraph.inputs[position] for position in captured.order]
    return structural_hash(load_graph(captured.nodes).graph, inputs)


def hashes_of(task: Task) -> list[tuple[str, str] | None]:
    """Structure and instance of each subgraph, in order; None for one that is not one graph."""
    pairs: list[tuple[str, str] | None] = []
    for subgraph in task.subgraphs:
        try:
            hashes = hash_subgraph(subgraph)
            pairs.append((hashes.structure, hashes.instance))
        except TaskError:
            pairs.append(None)
    return pairs


if __name__ == "__main__":
    print(json.dumps(hashes_of(load_task(sys.argv[1]))))
