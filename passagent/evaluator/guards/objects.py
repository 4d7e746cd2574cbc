"""Objects of a candidate's classes, which are asked for what other values have too.

A class of the candidate's has an attribute that nothing else has, by which its objects give themselves. Where
the text asks a value for what a tensor or a kernel has too, `plan.mode`, the loader writes
`plan.__own_object__.mode`: an object answers, and any other value has no such attribute. So a field or method
may have any name, whatever the text shows of the value; inspection reads the same trees.
A method that does so of its own object, and one that compares, ask once, when they are called.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from passagent.evaluator.guards import records, rules
from passagent.evaluator.guards.trees import (
    counted,
    dotted,
    functions_in,
    identifiers,
    imported,
    is_kernel,
    is_name,
    located,
    root,
    words,
)

OBJECT = "__own_object__"
"""An attribute that only classes of the candidate's have: their object itself."""
_MARK = f"{OBJECT} = property(lambda self: self)"
_USED = {"NotImplemented", "hasattr", "property"}
_COMPARING = {"__eq__", "__ne__"}
"""Methods that Python calls with any other value, also with a type."""
_DESCRIBING = {"pattern", "replacement_args"}


def write_out(trees: dict[str, ast.Module]) -> None:
    """Mark the classes in a candidate's files, by name, and ask their objects."""
    kinds = [kind for tree in trees.values() for kind in _classes(tree)]
    fields: set[str] = set()
    for kind in kinds:
        fields.update(*records.held(kind))
    for tree in trees.values():
        if not identifiers(tree) & _USED:  # else they mean something else here
            for kind in _classes(tree):
                _guard(kind)
    names = _Names(
        fields,
        {method.name for kind in kinds for method in functions_in(kind)},
        {kind.name for kind in kinds},
        {name for tree in trees.values() for name in _replacements(tree)},
    )
    modules = {part for name in trees for part in name.removesuffix(".py").split("/")}
    for tree in trees.values():
        _Asked(names, imported(tree), _elsewhere(tree, modules) | _limits(tree)).visit(tree)


@dataclass(frozen=True)
class _Names:
    """What all files give to the fields, the methods and the classes, and to the replacement functions."""

    fields: set[str]
    methods: set[str]
    kinds: set[str]
    replacements: set[str]


def is_mark(part: ast.stmt) -> bool:
    """The statement by which a class is marked."""
    return isinstance(part, ast.Assign) and ast.unparse(part) == _MARK


def is_guarded(function: ast.FunctionDef, instance: str) -> bool:
    """Whether a method is called with an object of its class only."""
    first = function.body[0]
    asked = first.value if isinstance(first, ast.Expr) else None
    guard = isinstance(asked, ast.Attribute) and asked.attr == OBJECT and is_name(asked.value, instance)
    return guard or function.name.startswith("__") or _is_classmethod(function)


def compares_objects(function: ast.FunctionDef) -> bool:
    """Whether a method compares its object with others of the candidate's only, if it compares."""
    if function.name not in _COMPARING:
        return True
    other = _compared(function)
    return other is not None and ast.unparse(function.body[0]) == ast.unparse(_telling(other))


def _guard(kind: ast.ClassDef) -> None:
    """Have methods ask for objects, where of another value they would do something else.

    One may be called without an object, as `Rows.launch(x)`; not so those that Python calls.
    """
    for function in functions_in(kind):
        instance = records.instance(function)
        if function.name in _COMPARING and (other := _compared(function)) is not None:
            function.body.insert(0, located(_telling(other), function))
        elif instance is not None and _needs_object(function, instance):
            asked = ast.Expr(ast.Attribute(ast.Name(instance, ast.Load()), OBJECT, ast.Load()))
            function.body.insert(0, located(asked, function))
    kind.body.append(located(ast.parse(_MARK).body[0], kind))


def _compared(function: ast.FunctionDef) -> str | None:
    """What `__eq__(self, other)` calls the other; None for a function of another kind."""
    arguments = function.args
    names = [argument.arg for argument in arguments.args]
    plain = len(names) == 2 and not arguments.defaults and ast.unparse(arguments).count(",") == 1
    return names[1] if plain and not identifiers(function) & _USED else None


def _telling(other: str) -> ast.stmt:
    return ast.parse(f"if not hasattr({other}, '{OBJECT}'):\n    return NotImplemented").body[0]


def _needs_object(function: ast.FunctionDef, instance: str) -> bool:
    """Whether a method may be called with another value, of which it would ask or keep something."""
    plain = all(map(records.is_field, _asked(function, instance))) and "super" not in words(function)
    return not is_guarded(function, instance) and (_stores(function, instance) or not plain)


def _asked(function: ast.FunctionDef, name: str) -> set[str]:
    """The attributes of what has that name."""
    found = (part for part in ast.walk(function) if isinstance(part, ast.Attribute))
    return {part.attr for part in found if is_name(part.value, name)}


def _stores(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function stores into what has that name, or into what that holds."""
    stored = (part for part in ast.walk(function) if isinstance(part, (ast.Attribute, ast.Subscript)))
    return any(is_name(root(part), name) for part in stored if not isinstance(part.ctx, ast.Load))


def _elsewhere(tree: ast.Module, modules: set[str]) -> set[str]:
    """Names that imports give to modules, and to what is in libraries."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            top = (getattr(node, "module", None) or "").split(".")[0]
            own = isinstance(node, ast.ImportFrom) and (node.level or top in modules | {"pass_dir"})
            if not own or alias.name in modules:
                found.add(alias.asname or alias.name.split(".")[0])
    return found


def _limits(tree: ast.Module) -> set[str]:
    """Names that are given the limits of a dtype, `torch.finfo(x.dtype)`, and nothing else."""
    imports, given = imported(tree), Counter[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and _are_limits(node.value, imports):
            given[ast.unparse(node.targets[0])] += 1
    meanings = counted(tree)
    return {name for name, times in given.items() if meanings[name] == times}


def _are_limits(node: ast.expr, imports: dict[str, str]) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func, imports) in rules.LIMITS


def _replacements(tree: ast.Module) -> Iterator[str]:
    """The functions that a file's replacement_func returns."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "replacement_func":
            for part in ast.walk(node):
                if isinstance(part, ast.Return) and isinstance(part.value, (ast.Name, ast.Attribute)):
                    yield ast.unparse(part.value).rpartition(".")[2]


class _Asked(ast.NodeTransformer):
    """Writes `plan.__own_object__.mode` for `plan.mode` in host code.

    Not of what lies `elsewhere`, nor of what is `known`: a class, in a method its object, what a replacement
    is given. A call of what is neither field nor method, `x.add(y)`, is left too.
    """

    def __init__(self, names: _Names, imports: dict[str, str], elsewhere: set[str]) -> None:
        plain = rules.HOST_ATTRIBUTES | records.METHODS
        self.fields = {f for f in names.fields - plain if not (records.is_field(f) or f.startswith("__"))}
        self.names, self.imports, self.elsewhere = names, imports, elsewhere
        self.known = names.kinds
        self.own = self.fields | names.methods

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name not in _DESCRIBING and not is_kernel(node, self.imports):
            given = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
            self.visit_parts(node, given if node.name in self.names.replacements else set())
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for part in node.body:
            instance = records.instance(part) if isinstance(part, ast.FunctionDef) else None
            own = isinstance(part, ast.FunctionDef) and instance is not None and is_guarded(part, instance)
            self.visit_parts(part, {instance} if own and instance is not None else set())
        return node

    def visit_parts(self, node: ast.AST, known: set[str]) -> None:
        before, self.known = self.known, self.known | known
        self.generic_visit(node)
        self.known = before

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func
        if not isinstance(called, ast.Attribute) or called.attr in self.own or called.attr[0] == "_":
            return self.generic_visit(node)
        called.value = self.visit(called.value)
        node.args = [self.visit(part) for part in node.args]
        node.keywords = [self.visit(part) for part in node.keywords]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        node.slice = self.visit(node.slice)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr in self.fields and isinstance(node.ctx, ast.Load) and self.is_asked(node.value):
            node.value = ast.copy_location(ast.Attribute(node.value, OBJECT, ast.Load()), node)
        return node

    def is_asked(self, node: ast.expr) -> bool:
        above = isinstance(node, ast.Call) and is_name(node.func, "super")
        named = isinstance(node, ast.Name) and node.id in self.known
        named |= _are_limits(node, self.imports)
        while isinstance(node, ast.Attribute):
            node = node.value
        return not (above or named or (isinstance(node, ast.Name) and node.id in self.elsewhere))


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def _is_classmethod(function: ast.FunctionDef) -> bool:
    return bool(function.decorator_list) and is_name(function.decorator_list[0], "classmethod")
