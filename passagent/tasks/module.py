"""A subgraph as a torch module."""

from __future__ import annotations

import ast
import linecache
import re
import types
from pathlib import Path

import torch

from passagent.errors import TaskError
from passagent.tasks.reader import Subgraph


def load_module(subgraph: Subgraph, device: str) -> torch.nn.Module:
    """Execute the subgraph's model.py for `device` (`cpu`, `cuda:0`); GraphModule() in eval mode.

    Literals of the device that it was recorded on become `device`. Raises TaskError if it does not load.
    """
    file = subgraph.path / "model.py"
    tree = _Devices(subgraph.home, full_device(device)).visit(ast.parse(subgraph.source))
    ast.fix_missing_locations(tree)
    module = types.ModuleType(f"passagent_subgraph_{subgraph.path.name}")
    name = source_name(subgraph.path)
    linecache.cache[name] = (len(subgraph.source), None, subgraph.source.splitlines(keepends=True), name)
    try:
        exec(compile(tree, name, "exec"), module.__dict__)
        return module.GraphModule().eval()
    except Exception as error:
        raise TaskError(f"{file}: does not load: {type(error).__name__}: {error}") from error


def source_name(path: Path) -> str:
    """The name under which the code of the subgraph at `path` runs, in tracebacks.

    It is no file's: Dynamo looks for the source, and a sandboxed worker may not open the file.
    """
    return f"<{path.name}/model.py>"


def full_device(device: str) -> str:
    """`cuda` to `cuda:0`: what a tensor's device compares equal to."""
    return "cuda:0" if device == "cuda" else device


class _Devices(ast.NodeTransformer):
    """Replace `device(type='cuda', index=0)`, `torch.device('cuda:0')` and the bare string 'cuda:0'."""

    def __init__(self, recorded: str, target: str) -> None:
        self.literal = re.compile(rf"{recorded}(:\d+)?")
        self.target = target

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        first = values[0].value if values and isinstance(values[0], ast.Constant) else None
        if name == "device" and first == self.target:
            node.args, node.keywords = [ast.Constant(self.target)], []
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and self.literal.fullmatch(node.value):
            return ast.copy_location(ast.Constant(self.target), node)
        return node
