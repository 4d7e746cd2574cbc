"""A captured graph with calls of the passes' functions in it, as one file that stands alone."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import black

from passagent.deploy.loading import planned_passes
from passagent.errors import UsageError
from passagent.evaluator.matching.rewrite import apply_passes
from passagent.plan.convert import bound_argument
from passagent.plan.messages import Subgraph
from passagent.plan.model import Call, Recording
from passagent.tasks.extract.graph_text import model_text
from passagent.tasks.graphio import load_graph

HERE = "written_here"
"""Stands for the module of functions that the file itself holds."""
FIRST = '''\
def first_of(value):
    """The only output of a pass whose pattern returns a tuple of one."""
    return value if isinstance(value, torch.Tensor) else value[0]
'''


_LEFT_OUT = {"pattern", "replacement_args", "replacement_func", "get_inputs", "get_init_inputs"}
"""Functions that only passagent's matcher or KernelBench's scripts call."""


@dataclass(frozen=True)
class Body:
    """The body of a function that computes a subgraph by the passes' functions."""

    statements: list[ast.stmt]
    results: list[ast.expr]
    imports: list[str]
    files: list[str]
    """Files of the passes."""


def rewritten(subgraph: Subgraph, recording: Recording, files: dict[str, str], places: Sequence[str]) -> Body:
    """Return a subgraph with a call of a pass's function for each match.

    `places`: expressions for its inputs. Raises UsageError where no pass matches.
    """
    calls = next((part.calls for part in recording.subgraphs if part.name == subgraph.name), ())
    if not calls:
        raise UsageError(f"no pass matches {subgraph.name}: there is nothing to write")
    remaining, used = iter(calls), dict[str, None]()

    def replacement(bindings: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        call: Call = next(remaining)
        file = recording.passes[call.number].file
        used[file] = None
        return _named(_function(files[file], file)), tuple(
            bound_argument(part, bindings) for part in call.arguments
        )

    graph_module = load_graph(subgraph.nodes)
    passes = planned_passes(recording)
    apply_passes(graph_module, passes, replacement=replacement)
    for number, node in enumerate(graph_module.graph.nodes):
        if getattr(node.target, "__name__", "") == "_getitem":
            node.target = _named("first_of")
        if getattr(node.target, "__module__", "") == HERE:
            node._rename(f"out_{number}")  # a variable of a function's name would hide it
    tree = ast.parse(model_text(graph_module.graph))
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    [module] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    [forward] = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    inputs = [parameter.arg for parameter in forward.args.args[1:]]
    expressions = [ast.parse(place, mode="eval").body for place in places]
    placed = _Placed(dict(zip(inputs, expressions, strict=True)))
    statements = list(filter(None, map(placed.visit, forward.body)))
    returned = statements.pop()
    return Body(statements, returned.value.elts, [line for line in imports if HERE not in line], list(used))


def join_files(about: str, passes: Iterable[str], files: dict[str, str], main: str) -> str:
    """Return one module: the files `passes` and what they import of `files`, then the text `main`.

    `about` becomes its docstring. Raises UsageError where two files define one name, or one imports another
    otherwise than by `from MODULE import NAME`.
    """
    modules = {Path(name).stem: text for name, text in files.items() if name.endswith(".py")}
    texts, imports, bound = list[str](), set[str](), dict[str, tuple[str, str]]()
    for name, text in [*_with_imported(passes, modules), ("the graph", main)]:
        body, lines = ast.parse(text).body, text.splitlines()
        if any(statement_before.end_lineno == other.lineno for statement_before, other in pairwise(body)):
            raise UsageError(f"{name}.py: two statements on one line: they cannot be in one file with others")
        for node in reversed(body):
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            for word, statement in _bindings(name, node, modules).items():
                earlier, other = bound.setdefault(word, (statement, name))
                if other != name and not (is_import and earlier == statement):
                    raise UsageError(
                        f"{word} is defined in {name} and in {other}: they cannot be in one file"
                    )
                imports |= {statement} if is_import else set()
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if is_import or is_docstring or getattr(node, "name", "") in _LEFT_OUT:
                del lines[node.lineno - 1 : node.end_lineno]
        texts.append("\n".join(lines))
    head = [
        "from __future__ import annotations",
        *sorted(imports, key=lambda statement_before: (statement_before[:4] == "from", statement_before)),
    ]
    return black.format_str("\n\n".join([f'"""{about}"""', "\n".join(head), *texts]), mode=black.Mode())


def _with_imported(passes: Iterable[str], modules: dict[str, str]) -> list[tuple[str, str]]:
    """Return names and texts of the passes' modules, each behind those that it imports."""
    ordered: dict[str, str] = {}

    def visit(name: str, importing: tuple[str, ...]) -> None:
        if name in importing:
            return
        for node in ast.walk(ast.parse(modules[name])):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                visit(node.module, (*importing, name))
        ordered.setdefault(name, modules[name])

    for file in passes:
        visit(Path(file).stem, ())
    return list(ordered.items())


def _bindings(name: str, node: ast.stmt, modules: Collection[str]) -> dict[str, str]:
    """Return each name that a statement of module `name` binds, with the text that binds it.

    There are none where it imports names of another of the modules.
    """
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {} if node.name in _LEFT_OUT else {node.name: ast.unparse(node)}
    if isinstance(node, ast.Import):
        if not any(part.name.partition(".")[0] in modules for part in node.names):
            return {part.asname or part.name: ast.unparse(ast.Import([part])) for part in node.names}
    elif not isinstance(node, ast.ImportFrom):
        names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
        return {part.id: ast.unparse(node) for part in names if isinstance(part.ctx, ast.Store)}
    elif node.module == "__future__":
        return {}
    elif node.module not in modules and not node.level:
        lines = [(part.asname or part.name, ast.ImportFrom(node.module, [part], 0)) for part in node.names]
        return {word: ast.unparse(line) for word, line in lines}
    elif not node.level and not any(part.asname or part.name == "*" for part in node.names):
        return {}
    raise UsageError(
        f"{name}.py: `{ast.unparse(node)}`: in one file only `from MODULE import NAME` can be done without"
    )


@functools.cache
def _named(name: str) -> Any:
    """A function that a graph prints as `written_here_NAME`; one for each name, or the graph numbers them."""
    function = types.FunctionType((lambda *_: None).__code__, {}, name)
    function.__module__ = HERE
    function.__qualname__ = name
    return function


def _function(text: str, file: str) -> str:
    """The name of the function that a pass's `replacement_func` returns. Raises UsageError."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "replacement_func":
            last = node.body[-1]
            if isinstance(last, ast.Return) and isinstance(last.value, ast.Name):
                return last.value.id
    raise UsageError(f"{file}: its replacement_func must end with `return NAME`")


class _Placed(ast.NodeTransformer):
    """Inputs by their places, functions of the file by their names, and no `x = None` behind a line."""

    def __init__(self, places: dict[str, Any]) -> None:
        self.places = places

    def visit_Name(self, node: ast.Name) -> Any:
        name = node.id.removeprefix(f"{HERE}_")
        return self.places[name] if name in self.places else ast.Name(name, node.ctx)

    def visit_Assign(self, node: ast.Assign) -> Any:
        if isinstance(node.value, ast.Constant) and node.value.value is None:
            targets = [target for target in node.targets if getattr(target, "id", "") not in self.places]
            if not targets:
                return None
            node.targets = targets
            return node
        return self.generic_visit(node)
