"""Statements of several Python modules as the text of one: those that are needed, with their imports."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from graphlib import TopologicalSorter
from symtable import SymbolTable, symtable
from typing import NamedTuple

import black

from passagent.errors import UsageError


class _Statement(NamedTuple):
    """A statement at the top of a module, with what follows it and binds nothing, such as a docstring."""

    text: str
    binds: set[str]
    uses: set[str]
    """Names of the module that it takes."""
    is_import: bool = False


def link(head: str, modules: Mapping[str, str], main: str, wanted: Collection[str]) -> str:
    """Return the text of one module: what `wanted` names of module `main`, and all that it needs, formatted.

    `modules`: texts by their names, which import each other by `from MODULE import NAME` alone; each comes
    behind those that it imports. `head`: comments and docstring. Raises UsageError where two modules define
    one name, or a statement cannot be moved.
    """
    homes: dict[tuple[str, str], str] = {}
    imported = {name: _inner_imports(name, text, modules.keys(), homes) for name, text in modules.items()}
    places = [
        (name, statement)
        for name in TopologicalSorter(imported).static_order()
        for statement in _statements(name, modules[name], modules.keys())
    ]
    needed, grown = set[tuple[str, str]](), {(main, name) for name in wanted}
    while grown != needed:
        needed = {(homes.get(place, place[0]), place[1]) for place in grown}
        grown = needed.union(
            (homes.get((module, used), module), used)
            for module, statement in places
            if any((module, name) in needed for name in statement.binds)
            for used in statement.uses
        )
    chosen = [place for place in places if any((place[0], name) in needed for name in place[1].binds)]
    bound: dict[str, tuple[str, _Statement]] = {}
    for module, statement in chosen:
        for name in statement.binds:
            other, earlier = bound.setdefault(name, (module, statement))
            if other != module and not (statement.is_import and statement == earlier):
                raise UsageError(f"{name} is defined in {other} and in {module}: they cannot be in one file")
    imports = {statement.text for _, statement in chosen if statement.is_import}
    parts = [
        head,
        "from __future__ import annotations",
        *sorted(imports, key=lambda line: (line.startswith("from"), line)),
        *(statement.text for _, statement in chosen if not statement.is_import),
    ]
    return black.format_str("\n".join(parts) + "\n", mode=black.Mode())


def _inner_imports(
    module: str, text: str, modules: Collection[str], homes: dict[tuple[str, str], str]
) -> set[str]:
    """Return the modules that a module imports; `homes` gets the module of each name."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    inner = [node for node in nodes if node.module in modules]
    homes |= {(module, part.name): str(node.module) for node in inner for part in node.names}
    return {str(node.module) for node in inner}


def _statements(module: str, text: str, modules: Collection[str]) -> list[_Statement]:
    """Return the statements of a module; of imports of the other modules nothing is left."""
    statements, lines, end = list[_Statement](), text.splitlines(), 0
    for node in ast.parse(text).body:
        if node.lineno <= end:
            raise UsageError(f"{module}.py: two statements on one line: they cannot be in one file")
        written, end = "\n".join(lines[end : node.end_lineno]), node.end_lineno or end
        if isinstance(node, ast.Import | ast.ImportFrom):
            statements += _imports(module, node, modules)
            continue
        table = symtable(written, module, "exec")
        binds = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
        if binds:
            statements.append(_Statement(written, binds, _used(table)))
        elif statements and not statements[-1].is_import:
            last = statements[-1]
            statements[-1] = last._replace(text=f"{last.text}\n{written}", uses=last.uses | _used(table))
    return statements


def _used(table: SymbolTable) -> set[str]:
    """Return the names of the module that a piece of it takes, those of its functions included."""
    is_module = table.get_type() == "module"
    names = {symbol.get_name() for symbol in table.get_symbols() if is_module or symbol.is_global()}
    return names.union(*map(_used, table.get_children()))


def _imports(module: str, node: ast.Import | ast.ImportFrom, modules: Collection[str]) -> list[_Statement]:
    """Return an import as a statement for each name. Raises UsageError for one that only a package allows."""
    if isinstance(node, ast.ImportFrom):
        is_inner, home = node.module in modules, node.module
        lines = [ast.unparse(ast.ImportFrom(home, [part], 0)) for part in node.names]
        is_possible = not node.level and not (
            is_inner and any(part.asname or part.name == "*" for part in node.names)
        )
    else:
        is_inner, home = False, ""
        lines = [ast.unparse(ast.Import([part])) for part in node.names]
        is_possible = not any(part.name.partition(".")[0] in modules for part in node.names)
    if not is_possible:
        line = ast.unparse(node)
        raise UsageError(
            f"{module}.py: `{line}`: in one file only `from MODULE import NAME` can be done without"
        )
    if is_inner or home == "__future__":
        return []
    names = [part.asname or part.name.partition(".")[0] for part in node.names]
    return [_Statement(line, {name}, set(), True) for name, line in zip(names, lines, strict=True)]
