"""Decorators of a pass: those of the closed world, its own around host code, and what tunes a kernel.

What a kernel is, what is cached and what has a role is told by decorators: nothing may come between.
A function of the candidate's may tune a kernel if its text shows that it gives triton.autotune's decorator.
"""

from __future__ import annotations

import ast

from passagent.evaluator.guards import rules
from passagent.evaluator.guards.contexts import Contexts
from passagent.evaluator.guards.names import HIDDEN
from passagent.evaluator.guards.scope import bound_names
from passagent.evaluator.guards.trees import without_nested

_ROLES = HIDDEN | {"replacement_func"}
_CACHES = {"functools.cache", "functools.lru_cache"}
_TUNING = {"triton.autotune", "triton.heuristics"}


class Decorators(Contexts):
    """Visits the decorators of functions."""

    def decorator(self, decorator: ast.expr, node: ast.FunctionDef) -> None:
        """One of a function's decorators."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        full = self.dotted(called)
        kernel = self.world.is_kernel(self.file, node)
        if self.makes_context(node):
            return
        own = full not in rules.DECORATORS | {"functools.wraps"}
        if own and (self.is_around(decorator, node) if kernel else self.is_own_decorator(node, full)):
            self.visit(decorator)
        elif full not in rules.DECORATORS and not self.is_own_decorator(node, full):
            target = self.world.target
            known = ", ".join(sorted(filter(target.admits, rules.DECORATORS)))
            instead = rules.DECORATE_INSTEAD.get(full or "", f"known: {known}")
            if full is not None and self.world.own(full) and kernel:
                instead = "let it return triton.autotune(...) only, or write that above the kernel itself"
                instead = instead if target.admits(instead) else f"write kernels in {target.language}"
            message = f"`@{ast.unparse(called)}` is no decorator of a pass; {instead}"
            self.report("decorator", decorator, message)
        elif isinstance(decorator, ast.Call):
            if full == rules.PLANNED:
                self.plan(decorator)
            for part in [*decorator.args, *(keyword.value for keyword in decorator.keywords)]:
                self.visit(part)

    def makes_context(self, node: ast.FunctionDef) -> bool:
        """A function at the top of the file that is named in a `with` only."""
        known = self.file.functions.get(node.name) is node and node.name not in _ROLES
        return known and not self.inside and self.world.makes_context(self.file.full(node.name))

    def plan(self, decorator: ast.Call) -> None:
        """A kernel's plan outlives every call, out of sight: it may only be a function, and no object's."""
        given = [*decorator.args[:1], *(k.value for k in decorator.keywords if k.arg == "plan")]
        own = self.world.own(self.dotted(given[0]) or "") if given else None
        if own is None or own[1] not in own[0].functions:
            message = "a plan is a function defined at the top of a file; write `def plan(x, y)` there"
            self.report("decorator", decorator, message)

    def is_own_decorator(self, node: ast.FunctionDef, full: str | None) -> bool:
        """A function of the candidate's, inspected like any other, or functools.wraps: around host code only.

        What is a kernel, cached or has a role is told by its decorators: nothing may come between.
        """
        if node.name in _ROLES or self.world.is_for_kernels(self.file, node):
            return False
        called = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
        if any(self.dotted(one) in _CACHES for one in called):
            return False
        own = self.world.own(full or "")
        definition = own[0].functions.get(own[1]) if own is not None else None
        if full == "functools.wraps":
            return any(isinstance(d, ast.Call) and self.dotted(d.func) == full for d in node.decorator_list)
        return (
            own is not None and definition is not None and not self.world.is_for_kernels(own[0], definition)
        )

    def is_around(self, decorator: ast.expr, node: ast.FunctionDef) -> bool:
        """A decorator that tunes what triton.jit has made."""
        made = [self.dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
        return node.decorator_list.index(decorator) < made.index("triton.jit") and self.tunes(decorator)

    def tunes(self, node: ast.expr) -> bool:
        """What gives a decorator that tunes: triton.autotune's, or a function's that returns such a one."""
        if self.is_made(node, _TUNING):
            return True
        called = node.func if isinstance(node, ast.Call) else node
        if self.is_partial(called) and called is not node:
            return True
        if isinstance(called, ast.Name) and called.id in self.local:
            nested = [
                f for f in ast.walk(self.scope) if isinstance(f, ast.FunctionDef) and f.name == called.id
            ]
            known = self.world.meanings(self.scope).counts[called.id] == len(nested) == 1
            return known and called is node and self.within(bound_names(nested[0])).is_tuner(nested[0])
        own = self.world.own(self.dotted(called) or "")
        function = own[0].functions.get(own[1]) if own is not None else None
        if own is None or function is None:
            return False
        inner = self.of_function(own[0], function)
        if called is node:
            return inner.is_tuner(function)
        return self.world.once("tunes", function, lambda: inner.gives(function, inner.tunes))

    def is_partial(self, node: ast.expr) -> bool:
        """`functools.partial(triton.autotune, key=["n"])`, or a name for it."""
        if not self.is_made(node, {"functools.partial"}):
            return False
        part = self.text_of(node)
        return isinstance(part, ast.Call) and bool(part.args) and self.dotted(part.args[0]) in _TUNING

    def is_tuner(self, function: ast.FunctionDef) -> bool:
        """A function that gives its only argument back, tuned."""
        arguments = [part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)]
        if (
            len(arguments) != 1
            or len(function.args.args) != 1
            or self.world.meanings(function).counts[arguments[0]] > 1
        ):
            return False

        def tuned(node: ast.expr) -> bool:
            if isinstance(node, ast.IfExp):
                return tuned(node.body) and tuned(node.orelse)
            if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
                return self.tunes(node.func) and tuned(node.args[0])
            return isinstance(node, ast.Name) and node.id == arguments[0]

        calls = any(isinstance(part, ast.Call) for part in without_nested(function))
        return calls and self.world.once("tuner", function, lambda: self.gives(function, tuned))
