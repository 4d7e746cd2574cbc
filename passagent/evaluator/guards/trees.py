"""What a syntax tree shows by itself: its imports, the names that it gives a meaning to."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import TypeGuard

from passagent.evaluator.limits import INSPECTION

_LARGEST = 10 ** INSPECTION.sizes["digits of an integer"]


def imported(tree: ast.Module) -> dict[str, str]:
    """Full names of what a file imports, by the names that it gives them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def dotted(node: ast.expr, imports: dict[str, str]) -> str:
    """The full name of `torch.library.custom_op`; one that begins with a dot is an attribute of a value."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    base = imports.get(node.id, node.id) if isinstance(node, ast.Name) else ""
    return ".".join([base, *reversed(parts)])


def is_kernel(function: ast.FunctionDef, imports: dict[str, str]) -> bool:
    """Whether Triton reads the text of a function, which stays as it is written."""
    called = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return any(dotted(d, imports) in ("triton.jit", "triton.constexpr_function") for d in called)


def is_name(node: ast.expr, name: str) -> bool:
    """Whether it is that name and nothing more."""
    return isinstance(node, ast.Name) and node.id == name


def functions_in(kind: ast.ClassDef) -> list[ast.FunctionDef]:
    """The functions in a class."""
    return [part for part in kind.body if isinstance(part, ast.FunctionDef)]


def counted(tree: ast.AST) -> Counter[str]:
    """How often anything in a tree gives a meaning to which name."""
    return Counter(name for part in ast.walk(tree) for name in _given(part))


def identifiers(tree: ast.AST) -> set[str]:
    """Every name that anything in a tree gives a meaning to."""
    return set(counted(tree))


def _given(part: ast.AST) -> list[str]:
    match part:
        case ast.Name(id=name):
            return [name] if is_store(part) else []
        case ast.arg(arg=name):
            return [name]
        case ast.alias():
            return [part.asname or part.name.split(".")[0]]
        case ast.Global() | ast.Nonlocal():
            return part.names
        case ast.MatchMapping():
            return [part.rest or ""]
        case _:
            return [getattr(part, "name", None) or ""]


class Meanings:
    """What gives names a meaning in a function or module: found in one walk, asked for many names."""

    def __init__(self, scope: ast.AST) -> None:
        self.counts, self.stores, self.told = Counter[str](), Counter[str](), Counter[str]()
        """How often anything does, a store of the name alone, and a `global` statement."""
        self.asked: dict[str, list[ast.stmt]] = {}
        """What stands under `if name is None`."""
        self._values: dict[str, list[ast.expr]] = {}
        self._own = getattr(scope, "name", None)
        for part in ast.walk(scope):
            given = _given(part)
            self.counts.update(given)
            if isinstance(part, ast.Name):
                self.stores.update(given)
            elif isinstance(part, ast.Global):
                self.told.update(given)
            elif isinstance(part, ast.If):
                self.asked.setdefault(none_in(part.test), []).extend(part.body)
            elif isinstance(part, ast.Assign):
                for target in part.targets:
                    self._assign(target, part.value)
            elif isinstance(part, (ast.AnnAssign, ast.NamedExpr)) and part.value is not None:
                self._assign(part.target, part.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._values.setdefault(target.id, []).append(value)

    def assigned(self, name: str) -> list[ast.expr]:
        """What `name = ...` gives to a name; empty if it gets a meaning in any other way.

        Functions within are looked through too, as if they shared the name.
        """
        values = self._values.get(name, [])
        return values if len(values) == self.counts[name] - (name == self._own) else []


def is_store(node: ast.AST) -> TypeGuard[ast.Name]:
    """A name that is given a meaning."""
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)


def stored_names(tree: ast.Module) -> set[str]:
    """Names that a file's own statements store, also those in an `if` or a `for`."""
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        part = pending.pop()
        if isinstance(part, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        names |= {part.id} if is_store(part) else set()
        pending += ast.iter_child_nodes(part)
    return names


def none_in(test: ast.expr) -> str:
    """`PLAN` of `PLAN is None`, `self.plan` of `not self.plan`; empty for another test."""
    asked: ast.expr | None = None
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and len(test.ops) == 1:
        none = test.comparators[0]
        asked = test.left if isinstance(none, ast.Constant) and none.value is None else None
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        asked = test.operand
    return ast.unparse(asked) if isinstance(asked, (ast.Name, ast.Attribute)) else ""


def located(statement: ast.stmt, node: ast.AST) -> ast.stmt:
    """A new statement, in the place of a node."""
    for part in ast.walk(statement):
        ast.copy_location(part, node)
    return statement


def root(node: ast.expr) -> ast.expr:
    """`plan` of `plan.rows[0].size`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node


def words(tree: ast.AST) -> set[str]:
    """Every name in a tree."""
    return {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}


def named_arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr] | None:
    """A call's arguments by name; None if there are others."""
    given = dict(zip(names, call.args, strict=False)) | {k.arg or "": k.value for k in call.keywords}
    return given if len(call.args) <= len(names) and set(given) <= set(names) else None


def overgrown(tree: ast.AST) -> int | None:
    """The line where a tree is deeper than inspection goes, or holds an integer that Python cannot write.

    What recurses over a tree that has none, the compiler too, ends well within its own limits.
    """
    level = [tree]
    for _ in range(INSPECTION.sizes["levels of nesting"]):
        below = [part for node in level for part in ast.iter_child_nodes(node)]
        for part in below:
            if isinstance(part, ast.Constant) and isinstance(part.value, int) and abs(part.value) >= _LARGEST:
                return part.lineno
        if not below:
            return None
        level = below
    return next((part.lineno for part in level if isinstance(part, (ast.expr, ast.stmt))), 1)


def without_nested(block: ast.FunctionDef | ast.With) -> Iterator[ast.AST]:
    """The parts of a body, without functions in it."""
    pending: list[ast.AST] = list(block.body)
    while pending:
        part = pending.pop()
        yield part
        if not isinstance(part, (ast.FunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(part)
