"""Code as a validator may see it: without comments, docstrings and strings, which could talk to it.

The sources of C++ and CUDA kernels are strings, too: they stay, without their own comments and strings.
"""

from __future__ import annotations

import ast
import re

_KERNEL_MAKERS = {"cpp_kernel", "cuda_kernel"}
_CPP = re.compile(
    r'R"([^()\\\s]{0,16})\(.*?\)\1"'  # raw strings
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'"
    r"|//[^\n]*"
    r"|/\*.*?(?:\*/|\Z)",
    re.S,
)


def bare_modules(sources: dict[str, str]) -> dict[str, str]:
    """Modules of a candidate without comments, docstrings and strings, by name.

    Equal strings stay equal: each becomes a name such as `'text_1'`.
    """
    trees: dict[str, ast.Module] = {}
    bare: dict[str, str] = {}
    for name, source in sources.items():
        try:
            trees[name] = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            bare[name] = "# not Python"
    strings = _Strings(_kernel_parts(list(trees.values())))
    for name, tree in trees.items():
        try:
            bare[name] = ast.unparse(ast.fix_missing_locations(strings.visit(tree))) + "\n"
        except (ValueError, RecursionError):  # nested too deeply, or an f-string that has no other form
            bare[name] = "# cannot be printed without its comments"
    return {name: bare[name] for name in sources}


def bare_cpp(source: str) -> str:
    """The kernel without comments and the contents of strings; a comment cut off at either end goes, too."""
    text = _CPP.sub(_bare_token, source.replace("\\\n", ""))
    return text.rpartition("*/")[2] if "*/" in text else text


def _bare_token(match: re.Match[str]) -> str:
    token = match.group()
    if token.startswith("/"):
        return " "
    if token.startswith("'"):
        return token if len(token) <= 6 else "''"
    return '""'


def _kernel_parts(trees: list[ast.Module]) -> set[ast.AST]:
    """Every node inside the source (or name) that is given to a kernel's maker, through variables, too."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    makers, assigned = set(_KERNEL_MAKERS), dict[str, list[ast.expr]]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            makers |= {alias.asname for alias in node.names if alias.name in makers and alias.asname}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(node.value)
    parts: set[ast.AST] = set()
    todo: list[ast.AST] = [
        argument
        for node in nodes
        if isinstance(node, ast.Call) and _name(node.func) in makers
        for argument in [*node.args[:2], *(word.value for word in node.keywords)]
    ]
    while todo:
        for node in ast.walk(todo.pop()):
            if node not in parts:
                parts.add(node)
                todo += assigned.get(_name(node), [])
    return parts


def _name(node: ast.AST) -> str:
    """`name` of `name` and of `module.name`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


class _Strings(ast.NodeTransformer):
    """Empties strings, and drops statements that are nothing but one."""

    def __init__(self, kernel_parts: set[ast.AST]) -> None:
        self._kernel_parts = kernel_parts
        self._names: dict[str | bytes, str] = {}

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant | ast.JoinedStr):
            return ast.Pass()
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and node in self._kernel_parts:
            return ast.Constant(bare_cpp(node.value))
        if isinstance(node.value, str | bytes):
            name = self._names.setdefault(node.value, f"text_{len(self._names) + 1}")
            return ast.Constant(name if isinstance(node.value, str) else name.encode())
        return node
