"""A shared helper without what only the passes that are left out needed: their branches and their kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable


def trimmed(files: dict[str, str], whole: dict[str, str]) -> dict[str, str]:
    """`files` without what only the passes of `whole` that they lack led to.

    A pass names its route through a shared function by a string in what `replacement_args` returns. A branch
    goes if no pass that stays names its route, then what nothing speaks of any more. Raises SyntaxError.
    """
    left_out = {name: text for name, text in whole.items() if name.endswith(".py") and name not in files}
    kept = {name: text for name, text in files.items() if name.endswith(".py")}
    live = {route for text in kept.values() for route in _routes(text)}
    dead = {route for text in left_out.values() for route in _routes(text)} - live
    if not dead:
        return files
    before = _names(whole[name] for name in kept) | _names(left_out.values())
    kept = {name: _routed(text, live, dead) for name, text in kept.items()}
    if len(live) == 1:
        kept = _without_route(kept, *live)
    while True:
        unused = before - _names(kept.values())
        fewer = {name: _without_definitions(text, unused) for name, text in kept.items()}
        if fewer == kept:
            break
        kept = fewer
    gone = [name.removesuffix(".py") for name in left_out]
    passes = [name.removesuffix(".py") for name, text in kept.items() if _returned(text)]
    kept = {name: _told_anew(text, gone, passes) for name, text in kept.items()}
    if len(live) == 1:
        kept = _in_one_file(kept, *live)
    return {name: text for name, text in files.items() if not name.endswith(".py")} | kept


def _returned(text: str) -> ast.Tuple | None:
    """The tuple that `replacement_args` returns."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "replacement_args":
            last = node.body[-1]
            if isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple):
                return last.value
    return None


def _routes(text: str) -> list[str]:
    returned = _returned(text)
    return [route for node in (returned.elts if returned else ()) if (route := _string(node)) is not None]


def _string(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _routed(text: str, live: set[str], dead: set[str]) -> str:
    """Functions without branches for dead routes; one that changes is written anew, without its comments."""
    changed: list[tuple[ast.stmt, str]] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            before = ast.unparse(node)
            after = ast.unparse(_Routing(live, dead).visit(node))
            if after != before:
                changed.append((node, after))
    return _replaced(text, changed)


def _replaced(text: str, changed: Iterable[tuple[ast.stmt, str]]) -> str:
    lines = text.splitlines()
    for node, after in sorted(changed, key=lambda one: -one[0].lineno):
        lines[_first_line(node) - 1 : node.end_lineno] = after.splitlines()
    return "\n".join(lines) + "\n"


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


class _Routing(ast.NodeTransformer):
    """Takes the branches of `live` routes and leaves those of `dead` ones out."""

    def __init__(self, live: set[str], dead: set[str]) -> None:
        self.live, self.dead = live, dead

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = self._block(node.body, self.live)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        holds = self._holds(node.test, self.live)
        return node if holds is None else node.body if holds else node.orelse

    def _block(self, block: list[ast.stmt], left: set[str]) -> list[ast.stmt]:
        """The statements that stay where the routes `left` may come."""
        found: list[ast.stmt] = []
        for node in block:
            found += self._statement(node, left)
            if found and isinstance(found[-1], ast.Return | ast.Raise):
                break
            asked = _asked(node.test) if isinstance(node, ast.If) else None
            if asked and asked[1] and not node.orelse and isinstance(node.body[-1], ast.Return | ast.Raise):  # type: ignore[attr-defined]
                left = left - {asked[0]}
        return found

    def _statement(self, node: ast.stmt, left: set[str]) -> list[ast.stmt]:
        if not isinstance(node, ast.If):
            return [self.visit(node)]
        node.test = self.visit(node.test)
        holds, asked = self._holds(node.test, left), _asked(node.test)
        if holds is not None:
            return self._block(node.body if holds else node.orelse, left)
        node.body = self._block(node.body, left)
        node.orelse = self._block(node.orelse, left - {asked[0]} if asked and asked[1] else left)
        return [node]

    def _holds(self, test: ast.expr, left: set[str]) -> bool | None:
        """Whether the test is true of all routes that are left, or of none; None if it tells them apart."""
        asked = _asked(test)
        if asked is None:
            return None
        route, is_equal = asked
        if route in self.dead:
            return not is_equal
        return is_equal if left == {route} else None


def _asked(test: ast.expr) -> tuple[str, bool] | None:
    """`route == "a"`: the string and True; of `!=` False."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    route = _string(test.comparators[0])
    if route is None or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
        return None
    return route, isinstance(test.ops[0], ast.Eq)


def _without_route(files: dict[str, str], route: str) -> dict[str, str]:
    """The only route is no argument any more, if the shared function does not look at it."""
    passes = {name: returned for name, text in files.items() if (returned := _returned(text))}
    places = {
        next((k for k, node in enumerate(one.elts) if _string(node) == route), -1) for one in passes.values()
    }
    called = {name for text in files.values() for name in _given_back(text)}
    homes = [
        (name, node)
        for name, text in files.items()
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name in called
    ]
    if len(places) != 1 or len(homes) != 1:
        return files
    [place], [(home, function)] = places, homes
    given = function.args.args
    if not 0 <= place < len(given) or given[place].arg in _names(map(ast.unparse, function.body)):
        return files
    if re.search(rf"\b{given[place].arg}\b", ast.get_docstring(function) or ""):
        del function.body[0]
    del given[place]
    result = files | {home: _replaced(files[home], [(function, ast.unparse(function))])}
    for name, returned in passes.items():
        del returned.elts[place]
        text = result[name]
        [node] = [
            one
            for one in ast.parse(text).body
            if isinstance(one, ast.FunctionDef) and one.name == "replacement_args"
        ]
        node.body[-1] = ast.Return(returned)
        result[name] = _replaced(text, [(node, ast.unparse(ast.fix_missing_locations(node)))])
    return result


def _given_back(text: str) -> list[str]:
    """The function that `replacement_func` returns, by its name."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "replacement_func":
            last = node.body[-1]
            if isinstance(last, ast.Return) and isinstance(last.value, ast.Name):
                return [last.value.id]
    return []


def _names(texts: Iterable[str]) -> set[str]:
    """What the texts speak of: names that are read, attributes, what is imported by name."""
    found = set[str]()
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.name for alias in node.names}
    return found


def _without_definitions(text: str, unused: set[str]) -> str:
    """Without functions, classes and constants of these names, and the comments right above them."""
    lines = text.splitlines()
    for node in reversed(ast.parse(text).body):
        targets = node.targets if isinstance(node, ast.Assign) else []
        names = [one.id for one in targets if isinstance(one, ast.Name)]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        if names and unused.issuperset(names):
            first = _first_line(node) - 1
            while first and lines[first - 1].startswith("#"):
                first -= 1
            del lines[first : node.end_lineno]
    return "\n".join(lines) + "\n"


def _told_anew(text: str, gone: list[str], passes: list[str]) -> str:
    """With another docstring, if it speaks of passes that are gone."""
    tree = ast.parse(text)
    said = ast.get_docstring(tree)
    if not said or not re.search(rf"\b({'|'.join(map(re.escape, gone))})\b", said):
        return text
    calls = "calls" if len(passes) == 1 else "call"
    return _replaced(text, [(tree.body[0], f'"""What {" and ".join(passes)} {calls}."""')])


def _in_one_file(files: dict[str, str], route: str) -> dict[str, str]:
    """The only pass with the helper that it alone imports, whose function is called as the route is."""
    names = sorted(files, key=lambda name: _returned(files[name]) is None)
    if len(names) != 2:
        return files
    own, helper = names
    text, called = files[own], _given_back(files[own])
    taken = f"from {helper.removesuffix('.py')} import {''.join(called)}"
    lines = text.splitlines()
    if not called or taken not in lines or "replacement_func" not in text:
        return files
    tree, body = ast.parse(text), ast.parse(files[helper])
    nodes = body.body[1:] if ast.get_docstring(body) is not None else body.body
    head = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    rest = [node for node in nodes if node not in head]
    clash = _defined(tree.body) & _defined(rest)
    if clash or not rest or (head and head[-1].lineno > _first_line(rest[0])):
        return files
    imports = [ast.unparse(node) for node in head if ast.unparse(node) not in lines]
    [last] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "replacement_func"]
    place = _first_line(last) - 1
    below = files[helper].splitlines()[(head[-1].end_lineno or 0) if head else _first_line(rest[0]) - 1 :]
    joined = [*lines[:place], *below, "", "", *lines[place:]]
    at = joined.index(taken)
    joined[at : at + 1] = imports
    text = "\n".join(joined) + "\n"
    if route.isidentifier() and route not in _defined(rest) | _names([text]):
        text = re.sub(rf"(?<![\w\"']){called[0]}(?![\w\"'])", route, text)
    return {own: text}


def _defined(body: Iterable[ast.stmt]) -> set[str]:
    found = set[str]()
    for node in body:
        found |= {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
        targets = node.targets if isinstance(node, ast.Assign) else []
        found |= {one.id for one in targets if isinstance(one, ast.Name)}
    return found
