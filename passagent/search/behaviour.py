"""What kind of candidate this is, read from its source: the cells of the archive (store/archive.py).

Three things: the fused region (the sequence of operators of each pass's pattern), how many kernels the source
defines, and in which languages.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

from passagent.agent.source import children_of, nodes_of, tree_of
from passagent.evaluator.result import MANIFEST

_OPERATORS = {ast.Call, ast.BinOp, ast.AugAssign, ast.UnaryOp, ast.Compare, ast.Subscript}
_LANGUAGES = {"jit": "triton", "cuda_kernel": "cuda", "cpp_kernel": "c++"}


def behaviour_of(files: Mapping[str, str], seen: Iterable[ast.AST] = ()) -> str | None:
    """Such as `3f9a0c52b1d4 1 triton`; None for a candidate that cannot be parsed.

    `seen`: all calls and functions of the candidate, where they are known already.
    """
    try:
        trees = {name: tree_of(text) for name, text in files.items() if name.endswith(".py")}
        passes = [f"{name}.py" for name in json.loads(files.get(MANIFEST, "[]"))]
        regions = sorted(" ".join(region(trees[name])) for name in passes if name in trees)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    kernels = list(_kernels(seen or [node for tree in trees.values() for node in nodes_of(tree)]))
    digest = hashlib.sha256(json.dumps(regions).encode()).hexdigest()[:12]
    return f"{digest} {len(kernels)} {'+'.join(sorted(set(kernels))) or 'none'}"


def region(tree: ast.Module) -> list[str]:
    """The operators of the module's `pattern`, in the order they are computed; empty without one."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "pattern":
            found: list[str] = []
            for statement in node.body:
                _add_operators(statement, found)
            return found
    return []


def _add_operators(node: ast.AST, found: list[str]) -> None:
    for child in children_of(node):
        _add_operators(child, found)
    if node.__class__ not in _OPERATORS:
        return
    if isinstance(node, ast.Call):
        found += [_last(node.func)] if _last(node.func) else []
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        found.append(type(node.op).__name__.lower())
    elif isinstance(node, ast.UnaryOp):
        if not isinstance(node.operand, ast.Constant):  # `-1` is a number and no operator
            found.append(type(node.op).__name__.lower())
    elif isinstance(node, ast.Compare):
        found.append(type(node.ops[0]).__name__.lower())
    elif isinstance(node, ast.Subscript):
        found.append("getitem")


def _kernels(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The language of each kernel that is defined among `nodes`."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                # @triton.jit, also with arguments
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                if _last(called) == "jit":
                    yield "triton"
        elif isinstance(node, ast.Call) and _last(node.func) in ("cuda_kernel", "cpp_kernel"):
            yield _LANGUAGES[_last(node.func)]


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
