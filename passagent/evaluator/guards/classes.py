"""Classes, written as what inspection knows: functions at the top of the file, and records.

Neither exists when the candidate runs: the loader compiles the trees that inspection reads, and in these a
`@staticmethod` or `@classmethod` of a class is a function at the top of the file, `Rows.launch` is
`Rows_launch`, a kernel in a class is one outside of it, and a torch.autograd.Function is its forward. A
torch.nn.Module is a plain class that calls its forward; bases that describe (ABC, Protocol) are left out.
So what is inspected is what runs, and no rule needs to know of such methods.
What does not fit is left as it was written, and refused.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from typing import TypeGuard

from passagent.evaluator.guards.trees import (
    counted,
    dotted,
    functions_in,
    identifiers,
    imported,
    is_name,
    is_store,
    located,
    words,
)

_AUTOGRAD = {"torch.autograd.Function", "torch.autograd.function.Function"}
_NO_GRADIENT = {"backward", "jvp", "setup_context", "vmap", "vjp"}
"""Of a torch.autograd.Function: no gradient is asked for."""
_MODULE = "torch.nn.Module"
_DESCRIBING = {"abc.ABC", "object", "typing.Generic", "typing.Protocol"}
_DECORATIONS = {
    "abc.abstractmethod", "enum.unique", "typing.final", "typing.override", "typing.runtime_checkable",
    "typing_extensions.override",
}  # fmt: skip
"""Bases and decorators without a meaning for the objects of a class."""
_CACHES = {"functools.cache", "functools.cached_property", "functools.lru_cache"}
_AUTOCAST = "custom_fwd"
"""A decorator of its forward, which does nothing where autocast is off."""


def write_out(tree: ast.Module) -> None:
    """Replace such classes in the tree of a file."""
    imports = imported(tree)
    given = counted(tree)
    taken = set(given)
    if taken & {"staticmethod", "classmethod"}:
        return  # mean something else here
    bases = {
        name for node in tree.body if isinstance(node, ast.ClassDef) for b in node.bases for name in words(b)
    }
    known: dict[tuple[str, str], str] = {}
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            _simplify(node, imports)
            body += _take_kernels(node, given, imports, known)
            function = any(dotted(base, imports) in _AUTOGRAD for base in node.bases)
            made = _forward(node) if function else _static(node, node.name in bases)
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


def _simplify(node: ast.ClassDef, imports: dict[str, str]) -> None:
    """Leave out what has no meaning for objects of the class, and call a module's forward."""
    bases = [dotted(b.value if isinstance(b, ast.Subscript) else b, imports) for b in node.bases]
    gone = {*_DESCRIBING, _MODULE}
    node.bases = [base for base, full in zip(node.bases, bases, strict=True) if full not in gone]
    node.keywords = [
        k for k in node.keywords if k.arg != "metaclass" or dotted(k.value, imports) != "abc.ABCMeta"
    ]
    decorated: list[ast.ClassDef | ast.FunctionDef] = [node, *functions_in(node)]
    for part in decorated:
        part.decorator_list = [d for d in part.decorator_list if dotted(d, imports) not in _DECORATIONS]
    for function in functions_in(node):
        _forget(function, imports)
        _Above(node.name, bool(node.bases)).visit(function)
    methods = {function.name: function for function in functions_in(node)}
    node.body = [_same(part, methods) for part in node.body]
    if _MODULE in bases and "forward" in methods and "__call__" not in methods:
        call = copy.deepcopy(methods["forward"])
        call.name = "__call__"
        node.body.append(call)


def _same(part: ast.stmt, methods: dict[str, ast.FunctionDef]) -> ast.stmt:
    """A method for `__str__ = __repr__`."""
    value = part.value if isinstance(part, ast.Assign) and len(part.targets) == 1 else None
    target = part.targets[0] if isinstance(part, ast.Assign) else None
    if not isinstance(value, ast.Name) or value.id not in methods or not isinstance(target, ast.Name):
        return part
    method = copy.deepcopy(methods[value.id])
    method.name = target.id
    return method


def _forget(function: ast.FunctionDef, imports: dict[str, str]) -> None:
    """Have a method that is cached find its answer again: its cache would hold objects."""
    if _kind(function) is not None:
        return
    called = [dotted(d.func if isinstance(d, ast.Call) else d, imports) for d in function.decorator_list]
    kept = [d for d, full in zip(function.decorator_list, called, strict=True) if full not in _CACHES]
    if "functools.cached_property" in called:
        kept.append(ast.copy_location(ast.Name("property", ast.Load()), function))
    function.decorator_list = kept


class _Above(ast.NodeTransformer):
    """Writes `super()` for `super(Rows, self)`, and nothing for `super().__init__()` with no class above."""

    def __init__(self, name: str, derived: bool) -> None:
        self.name, self.derived = name, derived

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        nothing = not self.derived and ast.unparse(node) == "super().__init__()"
        return ast.copy_location(ast.Pass(), node) if nothing else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        named = isinstance(node.func, ast.Name) and node.func.id == "super" and len(node.args) == 2
        if named and isinstance(node.args[0], ast.Name) and node.args[0].id == self.name:
            node.args = []
        return node


def _take_kernels(
    node: ast.ClassDef, given: Counter[str], imports: dict[str, str], known: dict[tuple[str, str], str]
) -> list[ast.stmt]:
    """Take its kernels out of a class: under the same names, which stand in the text that Triton reads."""
    found: list[ast.stmt] = []
    for position, part in enumerate(node.body):
        called = [d.func if isinstance(d, ast.Call) else d for d in getattr(part, "decorator_list", [])]
        if not isinstance(part, ast.FunctionDef) or "triton.jit" not in {dotted(d, imports) for d in called}:
            continue
        if given[part.name] == 1:
            part.decorator_list = [d for d in part.decorator_list if _last(d) != "staticmethod"]
            known[node.name, part.name] = part.name
            found.append(part)
            node.body[position] = _holding(part.name, part.name, part)
    return found


def _holding(name: str, function: str, node: ast.AST) -> ast.stmt:
    return located(ast.parse(f"{name} = staticmethod({function})").body[0], node)


def held(part: ast.AST) -> ast.expr | None:
    """The function that a class holds by `launch = staticmethod(Rows_launch)`."""
    value = part.value if isinstance(part, ast.Assign) else None
    if not isinstance(value, ast.Call) or len(value.args) != 1 or value.keywords:
        return None
    static = isinstance(value.func, ast.Name) and value.func.id == "staticmethod"
    return value.args[0] if static and isinstance(value.args[0], ast.Name) else None


def _static(node: ast.ClassDef, derived: bool) -> dict[str, ast.FunctionDef]:
    """The functions of a class that take no instance; of one that is `derived` from, no class either."""
    made: dict[str, ast.FunctionDef] = {}
    own = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and is_store(part)}
    for part in node.body:
        kind = _kind(part)
        if not isinstance(part, ast.FunctionDef) or kind is None or part.name.startswith("__"):
            continue
        function = copy.deepcopy(part)
        del function.decorator_list[0]
        if kind == "classmethod" and (derived or not _bind_class(function, node.name)):
            continue
        made_early = [*function.decorator_list, *function.args.defaults, *function.args.kw_defaults]
        if part.name not in own and not any(one is not None and words(one) & own for one in made_early):
            made[part.name] = function
    return made


def _bind_class(function: ast.FunctionDef, name: str) -> bool:
    """Write the class for a classmethod's first parameter; False where that means something else too."""
    first = _without_first(function)
    if first is None or first in identifiers(function):
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
    forward.decorator_list = [d for d in forward.decorator_list[1:] if not _last(d).endswith(_AUTOCAST)]
    if "setup_context" not in methods:
        context = _without_first(forward)
        if context is None:
            return {}
        stored = {p.attr for p in ast.walk(forward) if _is_noted(p, context)}
        if {f"{context}_{name}" for name in stored} & words(forward):
            return {}
        _Unnoted(context, len(forward.args.posonlyargs + forward.args.args), stored).visit(forward)
        if context in identifiers(forward) | words(forward):
            return {}
    return {"apply": forward}


def _without(
    node: ast.ClassDef, made: dict[str, ast.FunctionDef], names: dict[str, str], function: bool
) -> ast.ClassDef:
    """The class with the functions as values, for other files and for instances."""
    gone = {"forward", *_NO_GRADIENT} if function else set(made)
    kept = [part for part in node.body if not (isinstance(part, ast.FunctionDef) and part.name in gone)]
    held = [_holding(method, name, node) for method, name in names.items()]
    changed = copy.copy(node)
    changed.body = [*kept, *held]
    changed.bases = [] if function else node.bases
    return changed


class _Unnoted(ast.NodeTransformer):
    """Takes out `ctx.save_for_backward(...)`; `ctx.rows` is a local name, and no gradient is needed."""

    def __init__(self, context: str, inputs: int, stored: set[str]) -> None:
        self.context, self.inputs, self.stored = context, inputs, stored

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute) and is_name(called.value, self.context):
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not is_name(node.value, self.context):
            return self.generic_visit(node)
        if node.attr in self.stored:
            return ast.copy_location(ast.Name(f"{self.context}_{node.attr}", node.ctx), node)
        if node.attr == "needs_input_grad":
            needed: list[ast.expr] = [ast.copy_location(ast.Constant(False), node)] * self.inputs
            return ast.copy_location(ast.Tuple(needed, ast.Load()), node)
        return node


def _is_noted(node: ast.AST, context: str) -> TypeGuard[ast.Attribute]:
    """A store into an attribute of the context."""
    store = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return store and is_name(node.value, context)  # type: ignore[attr-defined]


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


def _last(node: ast.expr) -> str:
    """`custom_fwd` of `@torch.amp.custom_fwd(device_type="cuda")`."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
