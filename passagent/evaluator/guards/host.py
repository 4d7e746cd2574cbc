"""Host code: what runs around the kernels. It may name the closed world of rules.py and nothing else."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable

from passagent.evaluator.guards import rules
from passagent.evaluator.guards.scope import OWN, File, World, bound_names, targets

Report = Callable[[str, ast.AST, str], None]
"""rule, where, message"""

COMPUTE = (
    "do the arithmetic in a kernel; host code may allocate (torch.empty_like, torch.zeros), take views "
    "(view, reshape, permute, slices), call .contiguous() and read shapes, strides and dtypes"
)
_CASTS = {"bfloat16", "bool", "char", "double", "float", "half", "int", "long", "short", "type", "type_as"}
_CAST = "casts a tensor in host code; convert in the kernel when it loads or stores"
_BUILTINS = set(dir(builtins))
HIDDEN = {"pattern", "replacement_args"}


class Host(ast.NodeVisitor):
    """Visits module-level statements and the bodies of ordinary functions."""

    def __init__(self, world: World, file: File, report: Report, local: frozenset[str] = frozenset()) -> None:
        self.world, self.file, self.report, self.local = world, file, report, local

    def within(self, names: set[str]) -> Host:
        """The same rules with more local names."""
        return Host(self.world, self.file, self.report, self.local | names)

    def dotted(self, node: ast.expr) -> str | None:
        return self.world.dotted(node, self.file, self.local)

    # names and attributes

    def visit_Name(self, node: ast.Name) -> None:
        name = node.id
        if not isinstance(node.ctx, ast.Load):
            if name.startswith("__") and name != "__all__":
                self.report("private_attribute", node, f"`{name}` is private to Python; use another name")
            return
        if name in self.local:
            return
        if name in HIDDEN and name in self.file.functions:
            self.report("pattern_reference", node, _pattern_reference(name))
        elif name in self.file.imports:
            self.full_name(self.world.resolve(self.file.imports[name]), node)
        elif name in self.file.functions or name in rules.BUILTINS:
            return
        elif name in _BUILTINS or name.startswith("__"):
            self.report("builtin", node, f"`{name}` is not among what a pass may use; {_instead(name)}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            message = (
                "stores into an attribute; return values, and keep configurations in module-level constants"
            )
            self.report("attribute_store", node, message)
            return
        if self.of_value(node):
            self.value_attribute(node)
            self.visit(node.value)
        else:
            self.full_name(str(self.dotted(node)), node)

    def of_value(self, node: ast.Attribute) -> bool:
        """The attribute of a value (one that a file defines, or without a name), not of a module."""
        base = self.dotted(node.value)
        return base is None or self.world.own(base) is not None

    def full_name(self, full: str, node: ast.AST) -> None:
        """Check a full name such as `torch.nn.functional.relu` or `pass_dir.helper.f`."""
        parts = full.split(".")
        if any(part.startswith("_") for part in parts[1:]) and parts[0] != OWN:
            self.report(
                "private_attribute", node, f"`{full}` is private; use the public names of torch and triton"
            )
        elif parts[0] == OWN:
            self.own_name(full, node)
        elif full in rules.HOST_NAMES or (full.startswith(rules.HOST_PREFIXES) and len(parts) == 2):
            return
        else:
            known = next((i for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in rules.HOST_NAMES), 0)
            if not known or any(part not in rules.DTYPE_FACTS for part in parts[known:]):
                self.report("host_name", node, _name_message(full))

    def own_name(self, full: str, node: ast.AST) -> None:
        parts = full.split(".")
        if ".".join(parts[1:]) in self.world.files:
            self.report("module_as_value", node, f"`{parts[-1]}` is a module; call its functions by name")
        elif HIDDEN & set(parts[1:]):
            self.report("pattern_reference", node, _pattern_reference(parts[-1]))
        elif any(part.startswith("__") for part in parts):
            self.report(
                "private_attribute",
                node,
                f"`{parts[-1]}` is private; define a function or constant of its own",
            )

    def value_attribute(self, node: ast.Attribute) -> None:
        name = node.attr
        if name.startswith("_"):
            self.report("private_attribute", node, f"`.{name}` is private; use public attributes")
        elif name in ("max", "min") and isinstance(node.value, ast.Call):
            if self.dotted(node.value.func) not in rules.LIMITS:
                self.report("host_method", node, f"`.{name}` computes with torch; {COMPUTE}")
        elif name in _CASTS and name != "type":
            self.report("host_cast", node, f"`.{name}()` {_CAST}")
        elif name not in rules.HOST_ATTRIBUTES:
            self.report(
                "host_method", node, f"`.{name}` is not among what host code may do with a value; {COMPUTE}"
            )

    # calls and operators

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and len(call.args) == rules.AMBIGUOUS.get(call.func.attr)
            and not call.keywords
        ):
            self.visit(call.func.value)
            self.visit(call.args[0])
            return
        self.visit(call)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute) and self.of_value(function):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            cast = any(self.is_dtype(value) for value in values) or any(
                k.arg == "dtype" for k in node.keywords
            )
            if (function.attr == "to" and cast) or (function.attr == "type" and values):
                self.report("host_cast", node, f"`.{function.attr}(...)` {_CAST}")
            if function.attr in rules.AMBIGUOUS:
                self.report("host_method", node, f"`.{function.attr}(...)` computes with torch; {COMPUTE}")
        self.generic_visit(node)

    def is_dtype(self, node: ast.expr) -> bool:
        full = self.dotted(node)
        return (isinstance(node, ast.Attribute) and node.attr == "dtype") or (
            full is not None
            and full in rules.ARGUMENT_NAMES
            and full.startswith("torch.")
            and full != "torch.device"
        )

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.matmul(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.matmul(node)

    def matmul(self, node: ast.BinOp | ast.AugAssign) -> None:
        if isinstance(node.op, ast.MatMult):
            self.report("host_operator", node, f"`@` multiplies tensors in host code; {COMPUTE}")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(
                isinstance(p, ast.Slice) or (isinstance(p, ast.Constant) and p.value is ...) for p in parts
            ):
                self.report("tensor_store", node, f"stores into a slice of a tensor; {COMPUTE}")
        self.generic_visit(node)

    # functions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.signature(node)
        inner = self.within(bound_names(node))
        for statement in node.body:
            inner.visit(statement)

    def signature(self, node: ast.FunctionDef) -> None:
        """Decorators, defaults and annotations: evaluated where the function is defined."""
        if node.name.startswith("__"):
            self.report("private_attribute", node, f"a function may not be named {node.name}")
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            full = self.dotted(called)
            if full not in rules.DECORATORS:
                known = ", ".join(sorted(rules.DECORATORS))
                message = f"`@{ast.unparse(called)}` is no decorator of a pass; known: {known}"
                self.report("decorator", decorator, message)
            else:
                self.visit(decorator)
        self.defaults(node.args)
        annotations = [a.annotation for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
        for annotation in [*annotations, node.returns]:
            if annotation is not None and not isinstance(annotation, ast.Constant):
                self.visit(annotation)

    def defaults(self, arguments: ast.arguments) -> None:
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is None:
                continue
            parts = default.elts if isinstance(default, ast.Tuple) else [default]
            for part in parts:
                if not isinstance(part, (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.BinOp)):
                    message = (
                        "a default that outlives the call; use numbers, strings, dtypes and None as defaults"
                    )
                    self.report("mutable_default", default, message)
            self.visit(default)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.defaults(node.args)
        self.within(bound_names(node)).visit(node.body)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        inner = self
        for generator in node.generators:
            if generator.is_async:
                self.refuse_statement(node)
            inner = inner.within(targets(generator))
            inner.visit(generator.target)
            for condition in generator.ifs:
                inner.visit(condition)
        for generator in node.generators[1:]:
            inner.visit(generator.iter)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            inner.visit(part)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = comprehension

    # statements

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            call = item.context_expr
            if not isinstance(call, ast.Call) or self.dotted(call.func) not in rules.CONTEXTS:
                known = ", ".join(sorted(rules.CONTEXTS))
                self.report(
                    "context",
                    item.context_expr,
                    f"a pass may enter {known} only; kernels run on the current stream",
                )
        self.generic_visit(node)

    def refuse_statement(self, node: ast.AST) -> None:
        kind = type(node).__name__
        message = f"`{kind}` has no place in a pass; use plain functions, constants and kernels"
        self.report("statement", node, message)

    visit_ClassDef = visit_Global = visit_Nonlocal = visit_AsyncFunctionDef = visit_AsyncFor = (
        refuse_statement
    )
    visit_AsyncWith = visit_Await = visit_Yield = visit_YieldFrom = visit_Match = refuse_statement

    def visit_Import(self, node: ast.Import) -> None:
        """Checked for the file as a whole."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Checked for the file as a whole."""


def _pattern_reference(name: str) -> str:
    return (
        f"`{name}` only describes the match and is never called; write what the replacement does as a kernel"
    )


def _name_message(full: str) -> str:
    root = full.split(".", maxsplit=1)[0]
    if root == "torch":
        return f"`{full}` is not among torch's names for host code; {COMPUTE}"
    if root == "operator":
        return f"`{full}` may be used in pattern only; {COMPUTE}"
    return (
        f"`{full}` is not among the names that host code may use (see the constraints in the knowledge base)"
    )


def _instead(name: str) -> str:
    if name in (
        "getattr",
        "setattr",
        "hasattr",
        "delattr",
        "vars",
        "globals",
        "locals",
        "eval",
        "exec",
        "compile",
    ):
        return "name functions and attributes directly"
    if name in ("open", "input"):
        return "a pass has no files: keep tables in the source"
    return "write it with plain functions and numbers"
