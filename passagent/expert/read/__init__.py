"""Read a task for the expert: its graphs, with shapes, dtypes and strides on their nodes.

No operator computes and no memory is taken, so a task of large convolutions is read as fast as a small one.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from passagent.errors import TaskError
from passagent.evaluator.captures import without_dynamo
from passagent.tasks import load_task
from passagent.tasks.graphio import load_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.meta import TensorMeta, flat
from passagent.tasks.module import load_module
from passagent.tasks.reader import ALLOWED, Subgraph

log = logging.getLogger("passagent.expert")

_reading = threading.Lock()
"""Dynamo's caches, and whether it is imported, are the process's."""
_META = torch.device("meta")


@functools.lru_cache(maxsize=32)
def graphs(task: str) -> tuple[fx.Graph, ...]:
    """The graphs of a task's subgraphs (as on the CPU, whatever the target). Raises TaskError."""
    with _reading:
        subgraphs = load_task(task).subgraphs
        captured = tuple(map(graph_of, subgraphs))
    for subgraph, graph in zip(subgraphs, captured, strict=True):
        for node in graph.nodes if subgraph.compute_ops != ALLOWED else ():
            node.meta["library_only"] = True  # products are the library's
    return captured


def graph_of(subgraph: Subgraph) -> fx.Graph:
    """The graph that Dynamo captures of a subgraph, with shapes and dtypes on its nodes. Raises TaskError."""
    stored = without_dynamo(subgraph, "cpu")
    if stored is not None:
        graph_module = load_graph(stored.nodes)
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        for node, position in zip(placeholders, stored.order, strict=True):
            node.meta["example_value"] = _shaped(subgraph.inputs[position])
        if lay_as_eager(graph_module):
            return graph_module.graph
    return _captured(subgraph)


def lay_as_eager(graph_module: fx.GraphModule) -> bool:
    """Give a graph's nodes the shapes, dtypes and strides that eager's tensors have, from its placeholders'.

    The operators' own shape functions are asked, on the meta device. Examples that a fake mode left are kept,
    but for their strides: a decomposition that stands there for an operator may lay its result otherwise than
    the operator (interpolate, of a batch of one). What has a size that depends on data, and what follows it,
    stays as it is; whether there was no such thing.
    """
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    inputs = [_on_meta(node.meta["example_value"]) for node in placeholders]
    try:
        with _META:
            _Laying(graph_module).run(*inputs)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        log.info("shapes are not to be had without data: %s", error)
        return False
    return True


class _Laying(fx.Interpreter):
    """Runs a graph on the meta device and keeps what a node's value is like."""

    def run_node(self, n: fx.Node) -> Any:
        """The node's value; its example is like it from then on."""
        result, fake = super().run_node(n), n.meta.get("example_value")
        if fake is None:
            n.meta["example_value"] = result
        elif (
            isinstance(result, torch.Tensor)
            and isinstance(fake, torch.Tensor)
            and result.shape == fake.shape
            and result.stride() != fake.stride()
        ):
            n.meta["example_value"] = fake.new_empty_strided(result.shape, result.stride())
        return result

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Have operators that make a tensor make it on the example's device."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        there = tree_map(lambda v: _META if isinstance(v, torch.device) or v == "cpu" else v, (args, kwargs))
        return there  # type: ignore[no-any-return]


def _on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device == _META:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)


def _shaped(meta: TensorMeta, device: str = "meta") -> Any:
    if meta.is_python_scalar:
        return (int if meta.dtype == "int" else float)(flat(meta.data)[0])
    return torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device=device)


def _captured(subgraph: Subgraph) -> fx.Graph:
    """Capture with Dynamo, from shapes alone unless a size depends on data. Raises TaskError.

    It is not kept: references are made of kept graphs, so those come from the evaluator's own inputs.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from passagent.tasks.capture import capture  # Dynamo takes seconds to import

    module = load_module(subgraph, "cpu")
    with FakeTensorMode() as mode:
        inputs = [_shaped(meta, "cpu") for meta in subgraph.inputs]
    mode.allow_non_fake_inputs = True
    try:
        captured = capture(module, inputs).graph_module
    except TaskError:
        return capture(module, make_inputs(subgraph, "cpu", 0)).graph_module.graph
    lay_as_eager(captured)
    return captured.graph
