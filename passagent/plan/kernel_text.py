"""A Triton kernel and all that it names, as the text of a module that stands alone: for people to read."""

from __future__ import annotations

import ast
import builtins
import json
import types
from collections.abc import Iterable
from typing import Any

from passagent.plan.refusal import Refused

_LIBRARIES = ("triton", "math", "torch")


def text_of(kernel: Any, arguments: Iterable[Any] = ()) -> str:
    """The module's text, with the jitted functions among a launch's arguments.

    Raises Refused for a kernel that uses what has no text.
    """
    writer = _Writer()
    for argument in arguments:
        writer.argument(argument)
    writer.function(kernel, kernel.fn.__name__)
    lines = ["import triton", "import triton.language as tl"]
    standard = sorted(line for line in writer.imports if line.startswith("import math"))
    others = sorted(
        {*lines, *writer.imports} - set(standard), key=lambda line: (line.startswith("from"), line)
    )
    head = "\n\n".join("\n".join(block) for block in (standard, others) if block)
    constants = "".join(f"{line}\n" for line in writer.constants)
    return "\n\n\n".join([head + (f"\n\n{constants.rstrip()}" if constants else ""), *writer.lines]) + "\n"


class _Writer:
    def __init__(self) -> None:
        self.imports: list[str] = []
        self.constants: list[str] = []
        self.lines: list[str] = []
        """Functions, each after those that it names."""
        self._done: dict[str, Any] = {}

    def function(self, kernel: Any, name: str) -> None:
        """A jitted function, after what it names."""
        from triton.runtime.jit import JITFunction

        if name in self._done:
            if self._done[name] is not kernel:
                raise Refused(f"two things are called {name} in its kernels; give each a name of its own")
            return
        self._done[name] = kernel
        tree, scope = ast.parse(kernel.src), _scope(kernel)
        own_names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {kernel.fn.__name__}
        for node in [node for node in ast.walk(tree) if isinstance(node, ast.Name)]:
            if node.id in scope and node.id not in own_names:
                self._named(node.id, scope[node.id])
        marks = [
            f"{key}={list(getattr(kernel, key))!r}"
            for key in ("do_not_specialize", "do_not_specialize_on_alignment")
            if getattr(kernel, key, None)
        ]
        marks += ["noinline=True"] if getattr(kernel, "noinline", None) else []
        arguments = f"({', '.join(marks)})" if marks else ""
        is_kernel = isinstance(kernel, JITFunction)
        self.lines.append(
            f"@triton.{'jit' if is_kernel else 'constexpr_function'}{arguments}\n{kernel.src.rstrip()}"
        )
        if kernel.fn.__name__ != name:
            self.lines.append(f"{name} = {kernel.fn.__name__}")

    def argument(self, value: Any) -> None:
        """A jitted function that the kernel is given, or several in a tuple."""
        from triton.language.core import constexpr
        from triton.runtime.jit import JITCallable

        value = value.value if isinstance(value, constexpr) else value
        if isinstance(value, JITCallable):
            self.function(value, value.fn.__name__)
        for item in value if isinstance(value, (tuple, list)) else ():
            self.argument(item)

    def _named(self, name: str, value: Any) -> None:
        import triton.language as tl
        from triton.runtime.jit import JITCallable

        if name in ("tl", "triton") or (name in self._done and self._done[name] is value):
            return
        module = getattr(value, "__module__", None) or ""
        if isinstance(value, JITCallable) and not module.startswith("triton."):
            self.function(value, name)
            return
        self._done[name] = value
        if isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] not in _LIBRARIES:
                raise Refused(
                    f"its kernel uses the module {value.__name__}; import the function and @triton.jit it"
                )
            package, _, last = value.__name__.rpartition(".")
            as_ = f" as {name}" if name != last else ""
            self.imports.append(f"from {package} import {last}{as_}" if package else f"import {last}{as_}")
        elif isinstance(value, tl.constexpr):
            self.constants.append(f"{name} = tl.constexpr({_literal(value.value)})")
        elif module.split(".")[0] == "triton" and hasattr(value, "__name__"):
            as_ = f" as {name}" if name != value.__name__ else ""
            self.imports.append(f"from {module} import {value.__name__}{as_}")
        elif name not in vars(builtins):
            self.constants.append(f"{name} = {_literal(value)}")


def _scope(kernel: Any) -> dict[str, Any]:
    """The names that a jitted function sees outside of it."""
    cells = zip(kernel.fn.__code__.co_freevars, kernel.fn.__closure__ or (), strict=True)
    return kernel.fn.__globals__ | {name: cell.cell_contents for name, cell in cells}


def _literal(value: Any) -> str:
    import triton.language as tl

    if isinstance(value, tl.dtype):
        return f"tl.dtype({json.dumps(value.name)})"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float):
        return repr(float(value)) if abs(value) < float("inf") else f'float("{float(value)}")'
    if type(value) is str:
        return json.dumps(value)
    if value is None or type(value) is bool:
        return repr(value)
    if isinstance(value, int):
        return repr(int(value))
    raise Refused(
        f"its kernel uses a {type(value).__name__} from outside; @triton.jit it, or make it a tl.constexpr"
    )
