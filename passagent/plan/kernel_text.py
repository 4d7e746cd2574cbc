"""A Triton kernel and the jitted functions that it calls, as text: for people to read."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any


def text_of(kernel: Any, arguments: Iterable[Any] = ()) -> str:
    """The functions' texts, each after those that it calls; `arguments` of a launch may be such functions."""
    functions: list[Any] = []
    for value in (*arguments, kernel):
        _collect(value, functions, set())
    return "\n\n\n".join(f"@triton.jit\n{function.src.rstrip()}" for function in functions) + "\n"


def _collect(value: Any, functions: list[Any], callers: set[Any]) -> None:
    """Add a jitted function, or several in a tuple, to `functions`, and before it what it names."""
    from triton.language.core import constexpr
    from triton.runtime.jit import JITCallable

    value = value.value if isinstance(value, constexpr) else value
    if isinstance(value, JITCallable):
        is_ours = not value.fn.__module__.startswith("triton.")
        if is_ours and value not in functions and value not in callers:
            cells = zip(value.fn.__code__.co_freevars, value.fn.__closure__ or (), strict=True)
            scope = value.fn.__globals__ | {name: cell.cell_contents for name, cell in cells}
            names = {node.id for node in ast.walk(ast.parse(value.src)) if isinstance(node, ast.Name)}
            for name in sorted(names & scope.keys() - {value.fn.__name__}):
                _collect(scope[name], functions, {*callers, value})
            functions.append(value)
    for item in value if isinstance(value, (tuple, list)) else ():
        _collect(item, functions, callers)
