"""When two candidates are the same program: but for comments, docstrings, formatting and names of files.

A candidate's key here is made of its modules' syntax trees. Files are named by the place they have: passes by
the manifest's order, helper modules by the order in which they are first imported.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from passagent.agent.source import FIELDS, tree_of
from passagent.evaluator.result import MANIFEST

PACKAGE = "pass_dir"
"""Helper modules may be imported from it, too."""


def canonical_key(files: Mapping[str, str], candidate_key: str, seen: list[ast.AST] | None = None) -> str:
    """Equal for candidates that are the same program; `candidate_key` for one that cannot be parsed.

    `seen` gets the calls and the functions on the way; none of them where not all can be read.
    """
    found: list[ast.AST] = []
    try:
        modules = {_module(name): text for name, text in files.items() if name.endswith(".py")}
        # a module alone has no other's name to change, so its tree can be another reader's, too
        parse = tree_of if len(modules) == 1 else ast.parse
        trees = {name: parse(text) for name, text in modules.items()}
        manifest = [str(name) for name in json.loads(files.get(MANIFEST, "[]"))]
        names = _places(trees, manifest)
        sources = {names[module]: _source(tree, names, found) for module, tree in trees.items()}
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return candidate_key
    other = {name: text for name, text in files.items() if not name.endswith(".py") and name != MANIFEST}
    if seen is not None:
        seen += found
    whole = [[names.get(name, name) for name in manifest], sources, other]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _module(file: str) -> str:
    """`a/b.py` to `a.b`."""
    return file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _places(trees: Mapping[str, ast.Module], manifest: list[str]) -> dict[str, str]:
    """A name for each module that does not depend on what it is called."""
    if len(trees) == 1:
        return dict.fromkeys(trees, "module 0")
    order = [name for name in dict.fromkeys(manifest) if name in trees]
    for module in order:  # which grows
        found = (name for node in ast.walk(trees[module]) for name in _imported(node))
        order += [name for name in dict.fromkeys(found) if name in trees and name not in order]
    # of what nobody imports the text decides
    order += sorted(trees.keys() - set(order), key=lambda name: ast.dump(trees[name]))
    return {module: f"module {place}" for place, module in enumerate(order)}


def _imported(node: ast.AST) -> list[str]:
    """The modules that a statement may import, in the order of its words."""
    if isinstance(node, ast.Import):
        return [_local(alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = _local(node.module or "")
        return [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
    return []


def _local(name: str) -> str:
    return "" if name == PACKAGE else name.removeprefix(f"{PACKAGE}.")


def _source(tree: ast.Module, names: Mapping[str, str], seen: list[ast.AST]) -> str:
    """The module's tree in words, without docstrings, its references to other files renamed."""
    if len(names) > 1:
        tree = _Renamed(names, _bound(tree, names)).visit(tree)
    words: list[str] = []
    _write(tree, words, seen)
    return " ".join(words)


_WITH_DOCSTRING = {ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef}
_SEEN = {ast.Call, ast.FunctionDef}
_PASS = ast.Pass()
_NAMES = {kind: kind.__name__ for kind in FIELDS}


def _write(node: ast.AST, words: list[str], seen: list[ast.AST]) -> None:
    """A tree in words, docstrings left out: each node's kind, then its fields, lists with their lengths."""
    kind = node.__class__
    words.append(_NAMES[kind])
    if kind in _SEEN:
        seen.append(node)
    for name in FIELDS[kind]:
        value: Any = getattr(node, name, None)
        if value.__class__ is list:
            if name == "body" and kind in _WITH_DOCSTRING and _has_docstring(value):
                value = value[1:] or [_PASS]
            words.append(str(len(value)))
            for item in value:
                if item.__class__ in FIELDS:
                    _write(item, words, seen)
                else:
                    words.append(repr(item))
        elif value.__class__ in FIELDS:
            _write(value, words, seen)
        else:
            words.append(repr(value))


def _has_docstring(body: Any) -> bool:
    return bool(
        body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    )


def _bound(tree: ast.Module, names: Mapping[str, str]) -> dict[str, str]:
    """The variables that are local modules: of `import helper` and `from pass_dir import helper`.

    Raises ValueError where such a name means something else, too: then nothing can be renamed safely.
    """
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            prefix = "" if isinstance(node, ast.Import) else _local(node.module or "")
            for alias in node.names:
                module = f"{prefix}.{_local(alias.name)}".lstrip(".")
                if alias.asname is None and module in names and "." not in alias.name:
                    found[alias.name] = names[module]
    if found.keys() & {name for node in ast.walk(tree) for name in _given(node)}:
        raise ValueError("a local module's name is given to something else")
    return found


def _given(node: ast.AST) -> list[str]:
    """The names that a node binds, but for those of imports under their own names."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
            return [name]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return names
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return [name]
    return []


class _Renamed(ast.NodeTransformer):
    """Renames local modules, and the variables that are bound to them."""

    def __init__(self, names: Mapping[str, str], bound: Mapping[str, str]) -> None:
        self.names, self.bound = names, bound

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.bound.get(node.id, node.id)
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        for alias in node.names:
            alias.name = self.names.get(_local(alias.name), alias.name)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        module = _local(node.module or "")
        for alias in node.names:
            whole = f"{module}.{alias.name}".lstrip(".")
            alias.name = self.names.get(whole, alias.name)
        if module in self.names:
            # relative, absolute and through the package: the same module
            node.module, node.level = self.names[module], 0
        elif not module:
            node.module, node.level = PACKAGE, 0
        return node
