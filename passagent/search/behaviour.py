"""What kind of candidate this is, read from its source: the cells of the archive (store/archive.py).

Three things: the fused region (the sequence of operators of each pass's pattern), how many kernels the source
defines, and in which languages.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping

from passagent.agent.source import nodes_of, tree_of
from passagent.evaluator.result import MANIFEST

_LANGUAGES = {"jit": "triton", "cuda_kernel": "cuda", "cpp_kernel": "c++"}


def behaviour_of(files: Mapping[str, str]) -> str | None:
    """Such as `3f9a0c52b1d4 1 triton`; None for a candidate that cannot be parsed."""
    try:
        trees = {name: tree_of(text) for name, text in files.items() if name.endswith(".py")}
        passes = [f"{name}.py" for name in json.loads(files.get(MANIFEST, "[]"))]
        regions = sorted(" ".join(region(trees[name])) for name in passes if name in trees)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    kernels = [language for tree in trees.values() for language in _kernels(tree)]
    digest = hashlib.sha256(json.dumps(regions).encode()).hexdigest()[:12]
    return f"{digest} {len(kernels)} {'+'.join(sorted(set(kernels))) or 'none'}"


def region(tree: ast.Module) -> list[str]:
    """The operators of the module's `pattern`, in the order they are computed; empty without one."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "pattern":
            return [name for statement in node.body for name in _operators(statement)]
    return []


def _operators(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        yield from _operators(child)
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            yield name
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.AugAssign(op=op) if not _is_number(node):
            yield type(op).__name__.lower()
        case ast.Compare(ops=[op, *_]):
            yield type(op).__name__.lower()
        case ast.Subscript():
            yield "getitem"


def _is_number(node: ast.AST) -> bool:
    """`-1` is a number and no operator."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)


def _kernels(tree: ast.Module) -> Iterator[str]:
    """The language of each kernel that the module defines."""
    for node in nodes_of(tree):
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
