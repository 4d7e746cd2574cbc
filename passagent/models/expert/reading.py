"""What the expert reads of a task: the graphs that Dynamo captures, traced on shapes alone.

No operator computes and no memory is taken, so a task of large convolutions is read as fast as a small one.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from passagent.errors import TaskError
from passagent.tasks import load_task
from passagent.tasks.capture import capture
from passagent.tasks.inputs import make_inputs
from passagent.tasks.meta import TensorMeta
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph

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
        return capture(module, inputs).graph_module.graph
    except TaskError:  # a size that depends on data is not to be had without data
        return capture(module, make_inputs(subgraph, "cpu", 0)).graph_module.graph


def _shaped(meta: TensorMeta) -> Any:
    if meta.is_python_scalar:
        data: Any = meta.data
        while isinstance(data, list):
            data = data[0]
        return (int if meta.dtype == "int" else float)(data)
    return torch.empty(meta.shape, dtype=getattr(torch, meta.dtype))
