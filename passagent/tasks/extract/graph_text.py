"""A captured graph in the form of a task: constants become inputs, names become in_0 and tmp_0, then text."""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import fx

from passagent.errors import TaskError
from passagent.tasks.constraints import unknown_operator

_SILENT = ("_log_api_usage_once", "lazy_load_decompositions")


@dataclass(frozen=True)
class CleanGraph:
    """A graph of placeholders, operators and one output."""

    graph: fx.Graph
    names: list[str]
    """Name of each placeholder in the model: `L_self_modules_0_parameters_weight_`."""
    values: list[Any]
    """Value of each placeholder, from a real call."""

    @property
    def graph_module(self) -> fx.GraphModule:
        """The graph as a module that can be called."""
        return fx.GraphModule(torch.nn.Module(), self.graph)


def clean_graph(graph_module: fx.GraphModule, values: list[Any], is_training: bool = False) -> CleanGraph:
    """The graph of a capture as a task holds it; `values`: of its placeholders. The capture is not changed.

    Raises TaskError for what a task cannot hold: a custom operator, autocast inside the graph, a call of a
    module.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    value_of = dict(zip(graph_module.graph.find_nodes(op="placeholder"), values, strict=True))
    named = [(node, str(node.target), value) for node, value in value_of.items() if node.users]
    for node in graph_module.graph.find_nodes(op="get_attr"):
        constant = operator.attrgetter(str(node.target))(graph_module)
        if not isinstance(constant, torch.Tensor):
            raise TaskError(
                f"the graph holds {node.target}, a {type(constant).__name__}, which a task cannot hold"
            )
        named.append((node, f"constant_{node.target}", constant))
    for number, (node, _, _) in enumerate(named):
        copies[node] = graph.placeholder(f"in_{number}")
        copies[node].meta = dict(node.meta)
    dropped = _without_effect(graph_module.graph, is_training)
    count = 0
    for node in graph_module.graph.nodes:
        if node in copies or node in dropped or node.op == "placeholder":
            continue
        if node.op != "output" and (reason := unknown_operator(node)):
            raise TaskError(f"operator {node.name}: {reason}")
        copy = graph.node_copy(node, copies.__getitem__)
        copy.type = None
        if node.op != "output":
            copy._rename(f"tmp_{count}")
            count += 1
        copies[node] = copy
    graph.lint()
    return CleanGraph(graph, [name for _, name, _ in named], [value for *_, value in named])


def _without_effect(graph: fx.Graph, is_training: bool) -> set[fx.Node]:
    """Nodes that change nothing where a task runs. Raises TaskError for autocast that does."""
    silent = set()
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        if name in _SILENT or (name == "_set_grad_enabled" and not is_training):
            silent.add(node)
        elif name == "_enter_autocast":
            if node.args[2]:
                raise TaskError(
                    "the graph turns autocast on; extract the model in the dtype that it is to run in"
                )
            silent |= {node, *node.users}
    return silent


def model_text(graph: fx.Graph) -> str:
    """The text of a model.py."""
    code = graph.python_code("self")
    imports = ["import torch"]
    used = {node.id for node in ast.walk(ast.parse(code.src)) if isinstance(node, ast.Name)}
    for name, value in code.globals.items():
        if name == "torch" or name not in used:
            continue
        if isinstance(value, ModuleType):
            imports.append(f"import {value.__name__}" + (f" as {name}" if value.__name__ != name else ""))
        elif name in ("inf", "nan"):
            imports.append(f"from math import {name}")
        elif value is torch.device:
            imports.append("from torch import device")
        elif value is not None and getattr(value, "__module__", None):
            imports.append(f"from {value.__module__} import {value.__name__} as {name}")
    lines = [f"    {line}" if line.strip() else "" for line in code.src.strip().splitlines()]
    head = "\n".join(dict.fromkeys(imports))
    return f"{head}\n\n\nclass GraphModule(torch.nn.Module):\n" + "\n".join(lines) + "\n"
