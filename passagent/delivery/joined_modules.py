"""Several modules as one: what is needed of each, in an order in which every name is there when used."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from passagent.errors import UsageError


class _Part(NamedTuple):
    """A statement at the top level of a module."""

    module: str
    text: str
    defines: frozenset[str]
    uses: frozenset[str]


def joined(modules: dict[str, str], roots: Collection[str]) -> tuple[list[str], str]:
    """Imports, and the text of all that `roots` need, without what the modules import of each other.

    `modules`: name to text, in any order. Raises UsageError where two of them define a needed name
    differently, or one is imported in a way that cannot be done without.
    """
    parts: list[_Part] = []
    imports: dict[str, str] = {}
    for name in _ordered(modules):
        own, taken = _parts(name, modules)
        for bound, line in taken.items():
            if imports.setdefault(bound, line) != line:
                raise UsageError(f"{bound} is `{imports[bound]}` and `{line}`: they cannot be in one file")
        parts += own
    needed = _needed(parts, roots)
    homes: dict[str, _Part] = {}
    for part in needed:
        for bound in sorted(part.defines):
            other = homes.setdefault(bound, part)
            if bound in imports or other.module != part.module:
                whose = other.module if bound not in imports else "an import"
                raise UsageError(
                    f"{bound} is defined in {part.module}.py and by {whose}: they cannot be in one file"
                )
    used = {name for part in needed for name in part.uses}
    lines = list(dict.fromkeys(line for bound, line in imports.items() if bound in used))
    return lines, "\n\n".join(part.text for part in needed) + "\n"


def _ordered(modules: dict[str, str]) -> list[str]:
    """Names of modules, each behind those that it imports."""
    found: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in found or name in above:
            return
        for node in ast.walk(ast.parse(modules[name])):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                visit(node.module, (*above, name))
        found.append(name)

    for name in modules:
        visit(name, ())
    return found


def _parts(name: str, modules: dict[str, str]) -> tuple[list[_Part], dict[str, str]]:
    """The statements of a module, and its imports by the names that they bind."""
    text, imports = modules[name], dict[str, str]()
    lines, parts = text.splitlines(), list[_Part]()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= _imported(name, node, modules)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1
            while first and lines[first - 1].startswith("#"):
                first -= 1
            own = "\n".join(lines[first : node.end_lineno])
            parts.append(_Part(name, own, _bound(node), _used(node)))
    return parts, imports


def _imported(name: str, node: ast.Import | ast.ImportFrom, modules: Collection[str]) -> dict[str, str]:
    if isinstance(node, ast.ImportFrom):
        if node.module == "__future__":
            return {}
        if node.module not in modules and not node.level:
            return {
                one.asname or one.name: ast.unparse(ast.ImportFrom(node.module, [one], 0))
                for one in node.names
            }
        if not node.level and not any(one.asname or one.name == "*" for one in node.names):
            return {}
    elif not any(one.name.partition(".")[0] in modules for one in node.names):
        return {
            one.asname or one.name.partition(".")[0]: ast.unparse(ast.Import([one])) for one in node.names
        }
    raise UsageError(
        f"{name}.py: `{ast.unparse(node)}`: in one file only `from MODULE import NAME` can be done without"
    )


def _bound(node: ast.stmt) -> frozenset[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return frozenset([node.name])
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return frozenset(one.id for one in names if isinstance(one.ctx, ast.Store))


def _used(node: ast.stmt) -> frozenset[str]:
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def _needed(parts: Sequence[_Part], roots: Iterable[str]) -> list[_Part]:
    """The statements that make the roots and what they use; one that binds nothing stays if its names do."""
    wanted, before = set(roots), -1
    while len(wanted) != before:
        before = len(wanted)
        wanted |= {name for part in parts if part.defines & wanted for name in part.uses}
    return [part for part in parts if part.defines & wanted or (not part.defines and part.uses & wanted)]
