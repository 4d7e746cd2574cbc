"""Idioms that mean nothing in a pass, written as what they come to.

As with classes.py they do not exist when the candidate runs: the loader compiles the trees that inspection
reads. A pass is called as a function, so an operator that is registered with torch.library is its function;
it has no environment, so os.getenv gives its default; nobody hears of its warnings, nor of what it would log
of its workings; a generator's values are a list; an overload tells nothing, nor does a name for a profiler;
one thread needs no lock; what a constant switches off never runs. What does not fit is left as it was
written, and refused.
"""

from __future__ import annotations

import ast
import sys
from typing import TypeGuard

from passagent.evaluator.guards import switches
from passagent.evaluator.guards.trees import (
    dotted,
    identifiers,
    imported,
    is_kernel,
    located,
    named_arguments,
    without_nested,
)

_OPERATORS = {"torch.library.custom_op", "torch.library.triton_op"}
_LIBRARY = "torch.library.Library"
_OF_VALUES = {"", "CPU", "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd"}
"""Dispatch keys of functions that are called with values; the last one told counts."""
_REGISTERING = {"impl_abstract", "register_autograd", "register_fake"}
"""For tracing and gradients: no pass is traced, and no gradient is asked for."""
_WRAPPERS = {"torch.library.wrap_triton", "torch._library.wrap_triton", "types.MappingProxyType"}
"""Of one argument, which does as well."""
_OVERLOADS = {"typing.overload", "typing_extensions.overload"}
_LABELS = {
    "torch.autograd.profiler.record_function", "torch.cuda.nvtx.range", "torch.profiler.record_function",
    "warnings.catch_warnings",
}  # fmt: skip
"""Contexts that name what runs in them, for a profiler, or keep warnings from being seen."""
_OF_COMPILERS = _LABELS | {
    "torch._dynamo.allow_in_graph", "torch._dynamo.disable", "torch.compiler.allow_in_graph",
    "torch.compiler.disable", "torch.jit.ignore", "torch.jit.unused", "typing.no_type_check",
}  # fmt: skip
"""Decorators that tell a compiler or a profiler of a function: none sees it."""
_ENVIRONMENT = {"os.getenv", "os.environ.get"}
_SPEAKING = {
    "logging.basicConfig", "os.environ.setdefault", "torch.cuda.nvtx.mark", "torch.cuda.nvtx.range_pop",
    "torch.cuda.nvtx.range_push", "torch.manual_seed", "warnings.filterwarnings", "warnings.simplefilter",
}  # fmt: skip
"""What is logged goes nowhere, the environment is nobody's, and no kernel asks torch for random numbers."""
_LOCKS = {"threading.Lock", "threading.RLock"}
_FOR_TYPES = {"typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING"}
_AUTOCAST = ("custom_fwd", "custom_bwd")
_MODULES = {
    "triton.language.extra.cuda.libdevice", "triton.language.extra.libdevice", "triton.language.math",
}  # fmt: skip
"""Modules of functions for kernels, which an assignment may give another name."""


def write_out(tree: ast.Module) -> None:
    """Replace such idioms in the tree of a file."""
    imports = imported(tree)
    operators = _take_operators(tree, imports)
    written = _Written(imports, operators, identifiers(tree))
    written.visit(tree)
    if written.locks:
        tree.body = [node for node in tree.body if not _imports_locks(node)]
    switches.write_out(tree)


def _take_operators(tree: ast.Module, imports: dict[str, str]) -> dict[str, str]:
    """Leave registered operators as plain functions: their names in torch.ops, and the functions'."""
    operators: dict[str, str] = {}
    functions: set[str] = set()
    for node in tree.body:
        found = [d for d in getattr(node, "decorator_list", ()) if _called(d, imports) in _OPERATORS]
        if isinstance(node, ast.FunctionDef) and found:
            node.decorator_list = [d for d in node.decorator_list if d not in found]
            functions.add(node.name)
            names = [a.value for d in found if isinstance(d, ast.Call) for a in d.args[:1] if _is_text(a)]
            operators |= {f"torch.ops.{str(name).replace('::', '.')}": node.name for name in names}
    operators |= _take_libraries(tree, imports)
    tree.body = [
        node for node in tree.body if not _registers(node, functions, imports) and not _speaks(node, imports)
    ]
    return operators


def _take_libraries(tree: ast.Module, imports: dict[str, str]) -> dict[str, str]:
    """Leave out `LIB = torch.library.Library("own", ...)` and what it is told: operators' functions."""
    spaces: dict[str, str] = {}
    operators: dict[str, str] = {}
    kept: list[ast.stmt] = []
    for node in tree.body:
        call = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
        given = call.args if isinstance(call, ast.Call) else []
        full = _called(call, imports) if isinstance(call, ast.Call) else ""
        home, _, told = full.rpartition(".")
        named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and bool(given)
        if named and full == _LIBRARY and _is_text(given[0]):
            spaces[ast.unparse(node.targets[0])] = str(given[0].value)  # type: ignore[attr-defined]
        elif home in spaces and told == "impl" and len(given) > 1 and _is_text(given[0]):
            where = given[2].value if len(given) > 2 and _is_text(given[2]) else ""
            if isinstance(given[1], ast.Name) and where in _OF_VALUES:
                operators[f"torch.ops.{spaces[home]}.{given[0].value!s}"] = given[1].id
        elif not (home in spaces and told == "define"):
            kept.append(node)
    tree.body = kept
    return operators


def _registers(node: ast.stmt, functions: set[str], imports: dict[str, str]) -> bool:
    """A statement that tells torch of an operator's fake or gradient."""
    asked = [node.value] if isinstance(node, ast.Expr) else getattr(node, "decorator_list", [])
    for part in asked if isinstance(node, (ast.Expr, ast.FunctionDef)) else ():
        home, _, name = _called(part, imports).rpartition(".")
        if name in _REGISTERING and (home == "torch.library" or home in functions):
            return True
    return False


def _speaks(node: ast.stmt, imports: dict[str, str]) -> bool:
    """A statement that settles what is logged, or what others find in the environment."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return dotted(node.targets[0].value, imports) == "os.environ" and len(node.targets) == 1
    full = _called(node.value, imports) if isinstance(node, ast.Expr) else ""
    return full in _SPEAKING or full.endswith((".addHandler", ".setLevel"))


class _Written(ast.NodeTransformer):
    def __init__(self, imports: dict[str, str], operators: dict[str, str], taken: set[str]) -> None:
        self.imports, self.operators, self.taken = imports, operators, taken
        self.locks: set[str] = set()
        """Names that were given locks so far."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        if is_kernel(node, self.imports):
            return node
        self.generic_visit(node)
        if any(_called(d, self.imports) in _OVERLOADS for d in node.decorator_list):
            return None
        node.decorator_list = [
            d for d in node.decorator_list if _called(d, self.imports) not in _OF_COMPILERS
        ]
        if not node.decorator_list and "generated" not in self.taken:
            _write_generator(node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        spoken = isinstance(node.value, ast.Call) and _called(node.value, self.imports) in _SPEAKING
        return ast.copy_location(ast.Pass(), node) if spoken else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if dotted(node.test, self.imports) in _FOR_TYPES:
            return node.orelse or ast.copy_location(ast.Pass(), node)
        return node

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        """Without labels and locks; `with suppress(KeyError):` as the `try` that it is."""
        self.generic_visit(node)
        body = node.body
        for item in reversed(node.items):
            entered = item.context_expr
            full = _called(entered, self.imports) if isinstance(entered, ast.Call) else ""
            if item.optional_vars is None and full == "contextlib.suppress":
                body = [_suppressing(entered, body)]
            elif item.optional_vars is not None or (full not in _LABELS and _last(entered) not in self.locks):
                body = [ast.copy_location(ast.With([item], body), entered)]
        return body

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        full = _called(node.value, self.imports)
        if full in _LOCKS:
            self.locks |= {name for name in map(_last, node.targets) if name}
        self.generic_visit(node)
        target = node.targets[0]
        full = _called(node.value, self.imports)
        if isinstance(target, ast.Name) and len(node.targets) == 1:
            if full.startswith("torch.") and full.endswith(_AUTOCAST):  # a decorator that is left out
                return ast.copy_location(ast.Pass(), node)
            if full in _MODULES and isinstance(node.value, ast.Attribute):
                module, _, name = full.rpartition(".")
                alias = ast.alias(name, target.id if target.id != name else None)
                return located(ast.ImportFrom(module, [alias], 0), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        full = dotted(node.func, self.imports)
        if full in _WRAPPERS and len(node.args) == 1 and not node.keywords:
            return node.args[0]
        if full in ("operator.attrgetter", "operator.methodcaller") and node.args and not node.keywords:
            return _getter(full, node.args[0], node.args[1:]) or node
        if full == "warnings.warn":  # it would keep what was warned of
            told = [*node.args, *(keyword.value for keyword in node.keywords)]
            return ast.copy_location(ast.Tuple(told, ast.Load()), node)
        if full.endswith(".isEnabledFor"):  # so would this, and whatever the level compares as
            return ast.copy_location(ast.Constant(False), node)
        if full in _LOCKS:
            return ast.copy_location(ast.Constant(None), node)
        if full in _ENVIRONMENT and not any(isinstance(a, ast.Starred) for a in node.args):
            given = named_arguments(node, ("key", "default"))
            if given is not None and "key" in given and _is_text(given["key"]):
                return given.get("default") or ast.copy_location(ast.Constant(None), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        of_environment = dotted(node.comparators[0], self.imports) == "os.environ" and len(node.ops) == 1
        if of_environment and isinstance(node.ops[0], (ast.In, ast.NotIn)) and _is_text(node.left):
            return ast.copy_location(ast.Constant(isinstance(node.ops[0], ast.NotIn)), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if dotted(node, self.imports) == "sys.version_info":
            numbers = [ast.copy_location(ast.Constant(n), node) for n in sys.version_info[:3]]
            return ast.copy_location(ast.Tuple(list[ast.expr](numbers), ast.Load()), node)
        name = self.operators.get(dotted(node, self.imports).removesuffix(".default"))
        return ast.copy_location(ast.Name(name, ast.Load()), node) if name else self.generic_visit(node)


def _write_generator(node: ast.FunctionDef) -> None:
    """Have a generator function return a list, if that gives the same values to whoever goes through them."""
    parts = list(without_nested(node))
    yields = [part for part in parts if isinstance(part, (ast.Yield, ast.YieldFrom))]
    statements = [part.value for part in parts if isinstance(part, ast.Expr)]
    endless = any(isinstance(part, ast.While) and isinstance(part.test, ast.Constant) for part in parts)
    returned = any(isinstance(part, ast.Return) and part.value is not None for part in parts)
    if yields and not endless and not returned and all(one in statements for one in yields):
        returned_as = "iter(generated)" if node.name == "__iter__" else "generated"
        _Collected(returned_as).generic_visit(node)
        first, last = ast.parse(f"generated = []\nreturn {returned_as}").body
        node.body = [located(first, node), *node.body, located(last, node)]
        node.returns = None


class _Collected(ast.NodeTransformer):
    """Writes `generated.append(x)` for `yield x`."""

    def __init__(self, returned: str) -> None:
        self.returned = returned

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if isinstance(node.value, ast.Yield):
            method, value = "append", node.value.value or ast.Constant(None)
        elif isinstance(node.value, ast.YieldFrom):
            method, value = "extend", node.value.value
        else:
            return node
        call = ast.parse(f"generated.{method}(0)").body[0]
        assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
        located(call, node)
        call.value.args = [ast.copy_location(value, node)]
        return call

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        return located(ast.parse(f"return {self.returned}").body[0], node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return node


def _imports_locks(node: ast.stmt) -> bool:
    """`import threading` and `from threading import Lock`."""
    if isinstance(node, ast.ImportFrom):
        return all(f"{node.module}.{alias.name}" in _LOCKS for alias in node.names) and not node.level
    return isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["threading"]


def _last(node: ast.expr) -> str | None:
    """`lock` of `lock` and of `self.lock`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def _suppressing(call: ast.expr, body: list[ast.stmt]) -> ast.stmt:
    """`with suppress(KeyError, IndexError):` as try and except."""
    assert isinstance(call, ast.Call)
    made = located(ast.parse("try:\n    pass\nexcept ():\n    pass").body[0], call)
    assert isinstance(made, ast.Try)
    made.body, made.handlers[0].type = body, ast.copy_location(ast.Tuple(call.args, ast.Load()), call)
    return made


def _getter(full: str, name: ast.expr, given: list[ast.expr]) -> ast.expr | None:
    """`attrgetter("rows")` and `methodcaller("rows", 2)` as lambdas."""
    calls = full == "operator.methodcaller"
    plain = all(isinstance(part, ast.Constant) for part in given) and (calls or not given)
    if not plain or not _is_text(name) or not str(name.value).isidentifier():
        return None
    one = ast.arguments([], [ast.arg("one")], None, [], [], None, [])
    asked: ast.expr = ast.Attribute(ast.Name("one", ast.Load()), str(name.value), ast.Load())
    made = located(ast.Expr(ast.Lambda(one, ast.Call(asked, given, []) if calls else asked)), name)
    return made.value  # type: ignore[attr-defined, no-any-return]


def _called(node: ast.expr, imports: dict[str, str]) -> str:
    return dotted(node.func if isinstance(node, ast.Call) else node, imports)


def _is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
