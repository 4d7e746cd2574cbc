"""What the expert reads of a task: the graphs that Dynamo captures, traced on shapes alone.

No operator computes and no memory is taken, so a task of large convolutions is read as fast as a small one.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from passagent.errors import TaskError
from passagent.tasks import load_task
from passagent.tasks.capture import capture
from passagent.tasks.inputs import make_inputs
from passagent.tasks.meta import TensorMeta
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph

log = logging.getLogger("passagent.expert")

_capturing = threading.Lock()
"""Dynamo's caches are the process's."""


@functools.lru_cache(maxsize=32)
def graphs(task: str) -> tuple[fx.Graph, ...]:
    """The graphs of a task's subgraphs (captured for the CPU, whatever the target). Raises TaskError."""
    with _capturing:
        return tuple(graph_of(subgraph) for subgraph in load_task(task).subgraphs)


def graph_of(subgraph: Subgraph) -> fx.Graph:
    """The graph that Dynamo captures of a subgraph, with shapes and dtypes on its nodes. Raises TaskError."""
    module = load_module(subgraph, "cpu")
    with FakeTensorMode() as mode:
        inputs = [_shaped(meta) for meta in subgraph.inputs]
    mode.allow_non_fake_inputs = True
    try:
        captured = capture(module, inputs).graph_module
    except TaskError:  # a size that depends on data is not to be had without data
        return capture(module, make_inputs(subgraph, "cpu", 0)).graph_module.graph
    lay_as_eager(captured)
    return captured.graph


def lay_as_eager(captured: fx.GraphModule) -> None:
    """Give the examples in a captured graph the strides that eager's tensors have.

    A decomposition that stands for an operator in a fake mode may lay its result otherwise than the operator
    (interpolate, of a batch of one): the operators' own shape functions are asked on the meta device. What
    has a size that depends on data, and what follows it, stays as it is.
    """
    inputs = [_on_meta(node.meta["example_value"]) for node in captured.graph.find_nodes(op="placeholder")]
    try:
        _Laying(captured).run(*inputs)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        log.info("strides are the fake mode's: %s", error)


class _Laying(fx.Interpreter):
    """Runs a graph on the meta device and keeps the strides."""

    def run_node(self, n: fx.Node) -> Any:
        """The node's value; its example lies alike from then on."""
        found, fake = super().run_node(n), n.meta.get("example_value")
        if (
            isinstance(found, torch.Tensor)
            and isinstance(fake, torch.Tensor)
            and found.shape == fake.shape
            and found.stride() != fake.stride()
        ):
            n.meta["example_value"] = fake.new_empty_strided(found.shape, found.stride())
        return found

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What makes a tensor makes it there."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return tree_map_only(torch.device, _meta_device, (args, kwargs))  # type: ignore[no-any-return]


def _meta_device(_: torch.device) -> torch.device:
    return torch.device("meta")


def _on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _shaped(meta: TensorMeta) -> Any:
    if meta.is_python_scalar:
        data: Any = meta.data
        while isinstance(data, list):
            data = data[0]
        return (int if meta.dtype == "int" else float)(data)
    return torch.empty(meta.shape, dtype=getattr(torch, meta.dtype))
