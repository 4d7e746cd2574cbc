"""Functions and classes that nothing leads to: a reference, a test, a benchmark, left in a pass.

They do not exist when the candidate runs. The loader compiles the same trees that inspection reads, and
such definitions are taken out of them, with `if __name__ == "__main__":` and the imports that only those use.
So what is taken for unused by mistake can be a NameError; it cannot run uninspected.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from passagent.evaluator.guards import classes, idioms, objects
from passagent.evaluator.guards.trees import overgrown

ROLES = ("pattern", "replacement_args", "replacement_func")


def parsed(files: dict[str, str]) -> tuple[dict[str, ast.Module], dict[str, int]]:
    """The tree of each Python file, without what is unused; and of those that are too large the line.

    A file that is no Python is in neither: it does not load, and the loader says why.
    """
    trees: dict[str, ast.Module] = {}
    too_large: dict[str, int] = {}
    for name, text in files.items():
        if not name.endswith(".py"):
            continue
        try:
            tree = ast.parse(text)
        except (RecursionError, MemoryError):
            too_large[name] = 1
            continue
        except (SyntaxError, ValueError):
            continue
        line = overgrown(tree)
        if line is not None:
            too_large[name] = line
            continue
        idioms.write_out(tree)
        classes.write_out(tree)
        trees[name] = tree
    objects.write_out(trees)
    _take_out(list(trees.values()))
    return trees, too_large


def _take_out(trees: list[ast.Module]) -> None:
    """Leave in the trees what runs when they are imported, and the definitions that it names, and so on.

    A name counts wherever it is written, in any file, also as an attribute and in a string: rather a
    definition too many is inspected.
    """
    waiting: dict[str, list[set[str]]] = {}
    used = set(ROLES)
    defined = {node.name for tree in trees for node in tree.body if _is_definition(node)}
    for tree in trees:
        mentioned = _words(node for node in tree.body if not _is_import(node))
        tree.body = list(_without_main(tree.body))
        for node in tree.body:
            if _is_import(node):
                for alias in node.names:
                    waiting.setdefault(_bound(alias), []).append(set(alias.name.split(".")))
                    if _bound(alias) not in mentioned or _bound(alias).startswith("__"):
                        used.add(_bound(alias))  # no test's either: it runs, and is inspected
            elif _is_definition(node):
                waiting.setdefault(node.name, []).append(_words([node]))
                if _words(node.decorator_list) & defined:
                    used.add(node.name)  # its decorator runs, and may enter it into a table
            else:
                used |= _words([node])
    pending = list(used)
    while pending:
        for words in waiting.pop(pending.pop(), []):
            pending += words - used
            used |= words
    for tree in trees:
        tree.body = list(_used(tree.body, used))


def _used(body: list[ast.stmt], used: set[str]) -> Iterator[ast.stmt]:
    for node in body:
        if _is_import(node):
            node.names = [alias for alias in node.names if _bound(alias) in used]
            if node.names:
                yield node
        elif not _is_definition(node) or node.name in used:
            yield node


def _is_import(node: ast.stmt) -> TypeGuard[ast.Import | ast.ImportFrom]:
    """An import of names that can be told from the text, and that means nothing to the compiler."""
    named = isinstance(node, (ast.Import, ast.ImportFrom)) and node.names[0].name != "*"
    return named and getattr(node, "module", None) != "__future__"


def _is_definition(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.ClassDef]:
    """Not one that Python itself calls, such as a module's `__getattr__`."""
    return isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("__")


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _words(nodes: Iterable[ast.AST]) -> set[str]:
    """What is written in the nodes that can name a function or an import."""
    words: set[str] = set()
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Store):
                words.add(part.id)
            elif isinstance(part, ast.Attribute):
                words.add(part.attr)
            elif isinstance(part, ast.alias):
                words.update(part.name.split("."))
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                words.add(part.value)
    return words


def _without_main(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Without `if __name__ == "__main__":`, which never runs: a candidate's modules are imported."""
    for node in body:
        test = node.test if isinstance(node, ast.If) else None
        main = (
            isinstance(test, ast.Compare)
            and isinstance(test.left, ast.Name)
            and test.left.id == "__name__"
            and [type(op) for op in test.ops] == [ast.Eq]
            and isinstance(test.comparators[0], ast.Constant)
            and test.comparators[0].value == "__main__"
        )
        if main and isinstance(node, ast.If):
            yield from node.orelse
        else:
            yield node
