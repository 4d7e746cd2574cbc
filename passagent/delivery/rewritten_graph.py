"""A captured graph with calls of the passes' functions in it, as text for a file that stands alone."""

from __future__ import annotations

import ast
import functools
import types
from typing import Any

from torch import fx

from passagent.errors import UsageError
from passagent.evaluator.matching.rewrite import PlannedPass, apply_passes
from passagent.plan.convert import bound_argument
from passagent.plan.messages import Subgraph
from passagent.plan.model import Call, Recording
from passagent.plan.recorded_pattern import pattern_graph
from passagent.tasks.graphio import load_graph

_HERE = "written_here"
"""Stands for the module of functions that the file itself holds."""
FIRST = '''\
def first_of(value):
    """The only output of a pass whose pattern returns a tuple of one."""
    return value if isinstance(value, torch.Tensor) else value[0]
'''


def rewritten(subgraph: Subgraph, recording: Recording, files: dict[str, str]) -> tuple[fx.Graph, list[str]]:
    """The subgraph's graph with a call of the pass's function for each match, and the functions' names."""
    own = next((one.calls for one in recording.subgraphs if one.name == subgraph.name), ())
    if not own:
        raise UsageError(f"no pass matches {subgraph.name}: there is nothing to write")
    left, used = iter(own), dict[str, None]()

    def replacement(bindings: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        call: Call = next(left)
        name = _function(files[recording.passes[call.number].file], recording.passes[call.number].file)
        used[name] = None
        return _named(name), tuple(bound_argument(one, bindings) for one in call.arguments)

    graph_module = load_graph(subgraph.nodes)
    passes = [PlannedPass(one.name, one.file, pattern_graph(one.pattern)) for one in recording.passes]
    apply_passes(graph_module, passes, replacement=replacement)
    for number, node in enumerate(graph_module.graph.nodes):
        if getattr(node.target, "__name__", "") == "_getitem":
            node.target = _named("first_of")
        if getattr(node.target, "__module__", "") == _HERE:
            node._rename(f"out_{number}")  # a variable of a function's name would hide it
    return graph_module.graph, list(used)


@functools.cache
def _named(name: str) -> Any:
    """A function that a graph prints as `written_here_NAME`; one for each name, or the graph numbers them."""
    function = types.FunctionType((lambda *_: None).__code__, {}, name)
    function.__module__ = _HERE
    function.__qualname__ = name
    return function


def _function(text: str, file: str) -> str:
    """The name of the function that a pass's `replacement_func` returns. Raises UsageError."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "replacement_func":
            last = node.body[-1]
            if isinstance(last, ast.Return) and isinstance(last.value, ast.Name):
                return last.value.id
    raise UsageError(f"{file}: its replacement_func must end with `return NAME`")


class Placed(ast.NodeTransformer):
    """Inputs by their places, functions of the file by their names, and no `x = None` behind a line."""

    def __init__(self, places: dict[str, Any]) -> None:
        self.places = places

    def visit_Name(self, node: ast.Name) -> Any:
        name = node.id.removeprefix(f"{_HERE}_")
        return self.places[name] if name in self.places else ast.Name(name, node.ctx)

    def visit_Assign(self, node: ast.Assign) -> Any:
        if isinstance(node.value, ast.Constant) and node.value.value is None:
            kept = [one for one in node.targets if getattr(one, "id", "") not in self.places]
            if not kept:
                return None
            node.targets = kept
            return node
        return self.generic_visit(node)
