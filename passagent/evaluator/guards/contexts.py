"""What a pass may enter with `with`: a few contexts of torch's, and its own.

Its own are objects of its classes, and what a function under contextlib.contextmanager makes. Such a function
is named in a `with` only, so that what it makes, which knows how far it has come, lives as long as that.
"""

from __future__ import annotations

import ast

from passagent.evaluator.guards import rules
from passagent.evaluator.guards.names import Names
from passagent.evaluator.guards.trees import without_nested

_STACK = "contextlib.ExitStack"


class Contexts(Names):
    """Visits `with` statements."""

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.entered(item.context_expr)
            if item.optional_vars is not None:
                self.visit(item.optional_vars)
        for statement in node.body:
            self.visit(statement)

    def enters(self, call: ast.Call) -> bool:
        """`stack.enter_context(...)` inside of `with ExitStack() as stack:`, which leaves it again."""
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != "enter_context":
            return False
        stack = ast.unparse(function.value)
        around = [part for part in ast.walk(self.scope) if isinstance(part, ast.With)]
        around = [one for one in around if stack in map(_given, one.items)]
        given = [item for one in around for item in one.items if _given(item) == stack]
        only = len(given) == self.world.meanings(self.scope).counts[stack] and all(
            self.makes_stack(i.context_expr) for i in given
        )
        inside = any(part is call for one in around for part in without_nested(one))
        if not (only and inside and len(call.args) == 1 and not call.keywords and stack in self.local):
            return False
        self.entered(call.args[0])
        return True

    def makes_stack(self, node: ast.expr) -> bool:
        made = isinstance(node, ast.Call) and self.dotted(node.func) == _STACK
        return made and not (node.args or node.keywords)  # type: ignore[attr-defined]

    def entered(self, node: ast.expr) -> None:
        """Inspect what is entered."""
        if isinstance(node, ast.IfExp):
            self.visit(node.test)
            self.entered(node.body)
            self.entered(node.orelse)
        elif isinstance(node, ast.Call) and self.world.makes_context(self.dotted(node.func)):
            for part in [*node.args, *(keyword.value for keyword in node.keywords)]:
                self.visit(part)
        elif not self.makes_stack(node):
            if not self.may_enter(node):
                known = ", ".join(sorted(filter(self.world.target.admits, rules.CONTEXTS)))
                message = (
                    f"a pass may enter {known}, objects of its own and what its functions under "
                    "contextlib.contextmanager make; kernels run on the current stream"
                )
                self.report("context", node, message)
            self.visit(node)

    def may_enter(self, node: ast.expr) -> bool:
        if self.is_object(node):
            return True
        named = isinstance(node, (ast.Name, ast.Attribute)) and self.dotted(node) is not None
        return not named and (self.is_made(node, rules.CONTEXTS) or self.gives_context(node))

    def gives_context(self, entered: ast.expr) -> bool:
        """A call of a function of the candidate's that returns what a pass may enter, and nothing else."""
        own = self.world.own(self.dotted(entered.func) or "") if isinstance(entered, ast.Call) else None
        function = own[0].functions.get(own[1]) if own is not None else None
        if own is None or function is None:
            return False
        inner = self.of_function(own[0], function)
        return inner.gives(function, lambda value: inner.is_made(value, rules.CONTEXTS))


def _given(item: ast.withitem) -> str:
    """The name that a `with` gives to what an item's context gives."""
    return item.optional_vars.id if isinstance(item.optional_vars, ast.Name) else ""
