"""Classes of static functions, written as the functions that they are.

Neither exists when the candidate runs: the loader compiles the trees that inspection reads, and in these a
`@staticmethod` or `@classmethod` of a class is a function at the top of the file, `Rows.launch` is
`Rows_launch`, and a torch.autograd.Function is its forward. So what is inspected is what runs, and no rule
needs to know of such methods.
What does not fit is left as it was written, and refused as any other class with methods.
"""

from __future__ import annotations

import ast
import copy
from typing import TypeGuard

_AUTOGRAD = {"torch.autograd.Function", "torch.autograd.function.Function"}
_NO_GRADIENT = {"backward", "jvp", "setup_context", "vmap", "vjp"}
"""Of a torch.autograd.Function: no gradient is asked for."""
_AUTOCAST = "custom_fwd"
"""A decorator of its forward, which does nothing where autocast is off."""


def write_out(tree: ast.Module) -> None:
    """Replace such classes in the tree of a file."""
    imports = _imports(tree)
    taken = _identifiers(tree)
    if taken & {"staticmethod", "classmethod"}:
        return  # mean something else here
    known: dict[tuple[str, str], str] = {}
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            function = any(_dotted(base, imports) in _AUTOGRAD for base in node.bases)
            made = _forward(node) if function else _static(node)
            names = {method: f"{node.name}_{method}" for method in made}
            if not taken.intersection(names.values()):
                for method, definition in made.items():
                    definition.name = names[method]
                    known[node.name, method] = names[method]
                    body.append(definition)
                body.append(_without(node, made, names, function) if made else node)
                continue
        body.append(node)
    tree.body = body
    _Renamed(known).visit(tree)


def held(part: ast.stmt) -> ast.expr | None:
    """The function that a class holds by `launch = staticmethod(Rows_launch)`."""
    value = part.value if isinstance(part, ast.Assign) else None
    if not isinstance(value, ast.Call) or len(value.args) != 1 or value.keywords:
        return None
    static = isinstance(value.func, ast.Name) and value.func.id == "staticmethod"
    return value.args[0] if static and isinstance(value.args[0], ast.Name) else None


def _static(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """The functions of a class that take no instance."""
    made: dict[str, ast.FunctionDef] = {}
    own = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and _is_store(part)}
    for part in node.body:
        kind = _kind(part)
        if not isinstance(part, ast.FunctionDef) or kind is None or part.name.startswith("__"):
            continue
        function = copy.deepcopy(part)
        del function.decorator_list[0]
        if kind == "classmethod" and not _bind_class(function, node.name):
            continue
        made_early = [*function.decorator_list, *function.args.defaults, *function.args.kw_defaults]
        if part.name not in own and not any(one is not None and _words(one) & own for one in made_early):
            made[part.name] = function
    return made


def _bind_class(function: ast.FunctionDef, name: str) -> bool:
    """Write the class for a classmethod's first parameter; False where that means something else too."""
    first = _without_first(function)
    if first is None or first in _identifiers(function):
        return False
    for part in ast.walk(function):
        if isinstance(part, ast.Name) and part.id == first:
            part.id = name
    return True


def _forward(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """The forward of an autograd function as its `apply`, without what it notes for the backward."""
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    forward = copy.deepcopy(methods.get("forward"))
    if forward is None or _kind(forward) != "staticmethod" or set(methods) - _NO_GRADIENT - {"forward"}:
        return {}
    forward.decorator_list = [d for d in forward.decorator_list[1:] if _last(d) != _AUTOCAST]
    if "setup_context" not in methods:
        context = _without_first(forward)
        if context is None:
            return {}
        _Unnoted(context).visit(forward)
        if context in _identifiers(forward) | _words(forward):
            return {}
    return {"apply": forward}


def _without(
    node: ast.ClassDef, made: dict[str, ast.FunctionDef], names: dict[str, str], function: bool
) -> ast.ClassDef:
    """The class with the functions as values, for other files and for instances."""
    gone = {"forward", *_NO_GRADIENT} if function else set(made)
    kept = [part for part in node.body if not (isinstance(part, ast.FunctionDef) and part.name in gone)]
    held = [ast.parse(f"{method} = staticmethod({name})").body[0] for method, name in names.items()]
    for statement in held:
        for part in ast.walk(statement):
            ast.copy_location(part, node)
    changed = copy.copy(node)
    changed.body = [*kept, *held]
    changed.bases = [] if function else node.bases
    return changed


class _Unnoted(ast.NodeTransformer):
    """Takes out `ctx.save_for_backward(...)` and `ctx.rows = ...`."""

    def __init__(self, context: str) -> None:
        self.context = context

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        return ast.copy_location(ast.Pass(), node) if self._of_context(called) else node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        parts = [p for t in node.targets for p in (t.elts if isinstance(t, ast.Tuple) else [t])]
        if all(self._of_context(part) for part in parts):
            return ast.copy_location(ast.Expr(node.value), node)
        return node

    def _of_context(self, node: ast.expr | None) -> bool:
        held = node.value if isinstance(node, ast.Attribute) else None
        return isinstance(held, ast.Name) and held.id == self.context


class _Renamed(ast.NodeTransformer):
    """Writes `Rows_launch` for `Rows.launch`."""

    def __init__(self, known: dict[tuple[str, str], str]) -> None:
        self.known = known

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        name = self.known.get((node.value.id, node.attr)) if isinstance(node.value, ast.Name) else None
        if name is not None and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        self.generic_visit(node)
        return node


def _kind(node: ast.AST) -> str | None:
    """Of a method: by its outermost decorator."""
    if not isinstance(node, ast.FunctionDef) or not node.decorator_list:
        return None
    first = node.decorator_list[0]
    return first.id if isinstance(first, ast.Name) and first.id in ("staticmethod", "classmethod") else None


def _without_first(function: ast.FunctionDef) -> str | None:
    """Take the first parameter away: its name; None if there is none without a default."""
    arguments = function.args
    first = arguments.posonlyargs or arguments.args
    if not first or len(arguments.defaults) == len(arguments.posonlyargs) + len(arguments.args):
        return None
    return first.pop(0).arg


def _is_store(node: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)


def _identifiers(tree: ast.AST) -> set[str]:
    """Every name that anything in a tree gives a meaning to."""
    found: set[str] = set()
    for part in ast.walk(tree):
        if isinstance(part, ast.Name) and _is_store(part):
            found.add(part.id)
        elif isinstance(part, ast.arg):
            found.add(part.arg)
        elif isinstance(part, ast.alias):
            found.add(part.asname or part.name.split(".")[0])
        elif isinstance(part, (ast.Global, ast.Nonlocal)):
            found.update(part.names)
        elif isinstance(part, ast.MatchMapping):
            found.add(part.rest or "")
        else:
            found.add(getattr(part, "name", None) or "")
    return found


def _words(tree: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}


def _last(node: ast.expr) -> str:
    """`custom_fwd` of `@torch.amp.custom_fwd(device_type="cuda")`."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _imports(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _dotted(node: ast.expr, imports: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    base = imports.get(node.id, node.id) if isinstance(node, ast.Name) else ""
    return ".".join([base, *reversed(parts)])
