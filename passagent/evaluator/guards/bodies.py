"""The other bodies of a pass: pattern, replacement_args, replacement_func, and Triton kernels."""

from __future__ import annotations

import ast

from passagent.evaluator.guards import records, rules
from passagent.evaluator.guards.names import HIDDEN, Report
from passagent.evaluator.guards.scope import File, World, bound_names
from passagent.evaluator.guards.state import is_cached

_LITERAL = (
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.UnaryOp,
    ast.BinOp,
    ast.USub,
    ast.UAdd,
    ast.operator,
    ast.Load,
)
_PATTERN_STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.Pass, ast.Delete)
_PATTERN_EXPRESSIONS = (
    ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp, ast.Compare,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop,
    ast.Starred,
)  # fmt: skip
_KERNEL_REFUSED = (
    ast.ClassDef, ast.Global, ast.Nonlocal, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await,
    ast.Yield, ast.YieldFrom, ast.Try, ast.With, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Lambda,
    ast.Delete, ast.Match,
)  # fmt: skip

_NAMESPACES = {f"triton.language.{name}" for name in (*sorted(rules.KERNEL_DTYPES), "PropagateNan")}


def is_literal(node: ast.expr) -> bool:
    """Built of constants only: `(1, 2)`, `-1e-5`, `[0.5] * 4`."""
    return all(isinstance(part, _LITERAL) for part in ast.walk(node))


def check_pattern(world: World, file: File, node: ast.FunctionDef, report: Report) -> None:
    """A list of torch operators on the parameters, assigned to names and returned."""
    local = frozenset(bound_names(node))
    if node.decorator_list or not all(
        is_literal(d) for d in [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    ):
        report("pattern_body", node, "pattern takes plain parameters and no decorator")
    for statement in node.body:
        if not isinstance(statement, _PATTERN_STATEMENTS):
            message = "pattern is a list of assignments and a return; write its operators one after the other"
            report("pattern_body", statement, message)
            continue
        for part in ast.walk(statement):
            if isinstance(part, ast.expr) and not isinstance(part, _PATTERN_EXPRESSIONS):
                report("pattern_body", part, "pattern may hold operators, calls of torch and constants only")
            elif isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load):
                report("pattern_body", part, "pattern may not store into an attribute; assign to names")
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                _pattern_name(world, file, part, local, report)


def _pattern_name(world: World, file: File, node: ast.Name, local: frozenset[str], report: Report) -> None:
    name = node.id
    if name in local or name in rules.PATTERN_BUILTINS:
        return
    if name in file.imports:
        full = world.resolve(file.imports[name])
        if f"{full}.".startswith(rules.PATTERN_MODULES):
            return
    elif name in file.values and is_literal(file.values[name]):
        return
    report(
        "pattern_body",
        node,
        f"pattern may use torch and its parameters, not `{name}`; write torch's operators out",
    )


def check_replacement_args(world: World, file: File, node: ast.FunctionDef, report: Report) -> None:
    """One return of a tuple of parameters, constants, and numbers that are each made of one parameter."""
    body = _without_docstring(node)
    if node.decorator_list or len(body) != 1 or not isinstance(body[0], ast.Return):
        report(
            "replacement_args_body",
            node,
            "replacement_args is one `return (...)` of its parameters and constants; read shapes and compute "
            "sizes in the replacement function",
        )
        return
    value = body[0].value
    if not isinstance(value, (ast.Tuple, ast.List)):
        report(
            "replacement_args_body",
            body[0],
            "replacement_args must return a tuple, written out: `return (x, y)`",
        )
        return
    local = bound_names(node)
    for item in value.elts:
        _argument(world, file, item, local, report)


def _argument(world: World, file: File, node: ast.expr, local: set[str], report: Report) -> None:
    full = world.dotted(node, file, frozenset(local)) if isinstance(node, (ast.Name, ast.Attribute)) else None
    if is_literal(node) or (isinstance(node, ast.Name) and node.id in local) or full in rules.ARGUMENT_NAMES:
        return
    if isinstance(node, ast.Name) and node.id in file.values and is_literal(file.values[node.id]):
        return
    own = world.own(full) if full is not None else None
    if own is not None and own[1] in own[0].values and is_literal(own[0].values[own[1]]):
        return  # a route's name, from a helper
    if isinstance(node, (ast.Tuple, ast.List)):
        for item in node.elts:
            _argument(world, file, item, local, report)
        return
    if _is_number(world, file, node, local):
        return
    what = ast.unparse(node)
    message = (
        f"`{what}`: replacement_args may pass on its parameters and constants; read shapes and compute sizes "
        "in the replacement function, values in its kernel"
    )
    report("replacement_args_body", node, message)


def _is_number(world: World, file: File, node: ast.expr, local: set[str]) -> bool:
    """`1.0 / scale`, `float(eps)`, `-shape[0]`: of one parameter, which fails if that is a tensor."""
    named = [part for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in local]

    def holds(part: ast.expr) -> bool:
        match part:
            case ast.BinOp(left=left, right=right):
                return holds(left) and holds(right)
            case ast.UnaryOp(operand=operand, op=ast.USub() | ast.UAdd()):
                return holds(operand)
            case ast.Subscript(value=value, slice=index):
                return value in named and is_literal(index)
            case ast.Call(func=function, args=args, keywords=[]):
                full = world.dotted(function, file, frozenset(local))
                plain = isinstance(function, ast.Name) and function.id in ("float", "int", "slice")
                known = full in rules.ARGUMENT_NAMES or (plain and full is None)
                return known and function not in named and all(map(holds, args))
            case _:
                full = world.dotted(part, file, frozenset(local))
                return is_literal(part) or part in named or full in rules.ARGUMENT_NAMES

    return len(named) < 2 and holds(node)


def check_replacement_func(world: World, file: File, node: ast.FunctionDef, report: Report) -> None:
    """One return of a function of the candidate, that is not cached."""
    body = _without_docstring(node)
    full = None
    if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
        full = world.dotted(body[0].value, file)
    found = world.own(full) if full is not None else None
    definition = found[0].functions.get(found[1]) if found is not None else None
    if definition is None or node.decorator_list or found is None:
        message = (
            "replacement_func is one `return name`, the name of a function that a file defines at its top; "
            "write `def fused(x, y):` there, and return it"
        )
        report("replacement_func_body", node, message)
        return
    if definition.name in HIDDEN or world.is_kernel(found[0], definition):
        message = (
            f"`{definition.name}` cannot be the replacement; return the function that allocates and launches"
        )
        report("replacement_func_body", node, message)
    elif is_cached(world, found[0], definition):
        report(
            "cached_entry",
            definition,
            f"{definition.name} must run on every call; cache launch plans, keyed by ints",
        )


def check_kernel(world: World, file: File, node: ast.FunctionDef, report: Report) -> None:
    """The body of a Triton kernel or device function: triton.language and other kernels."""
    local = frozenset(bound_names(node))
    parameters = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
    for name in sorted(parameters & (rules.KERNEL_HIDDEN - rules.BUILTINS)):
        report("kernel_name", node, f"`{name}` is Python's own; use another name in the kernel")
    for name in sorted(local - parameters):
        if name in file.imports or name in rules.KERNEL_HIDDEN or name.startswith("__"):
            report(
                "kernel_name", node, f"`{name}` means something else outside; use another name in the kernel"
            )
    pending: list[ast.AST] = list(node.body)
    while pending:
        part = pending.pop()
        if isinstance(part, _KERNEL_REFUSED):
            report(
                "kernel_statement",
                part,
                f"`{type(part).__name__}` has no place in a kernel; use assignments, for, if",
            )
            continue
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            _kernel_name(world, file, part, local, report)
        elif isinstance(part, ast.Attribute):
            full = world.dotted(part, file, local)
            if full is not None:
                _kernel_full(world, full, part, report)
                continue
            named = part.attr in world.fields and part.attr not in rules.HOST_ATTRIBUTES
            field = named and records.is_field(part.attr)
            known = field or part.attr in rules.KERNEL_ATTRIBUTES
            if not isinstance(part.ctx, ast.Load) or not known:
                instead = "give the field a longer name" if part.attr in world.fields else "use tl.*"
                message = f"`.{part.attr}` is not among what a kernel may do with a value; {instead}"
                report("kernel_attribute", part, message)
        pending += ast.iter_child_nodes(part)


def _kernel_name(world: World, file: File, node: ast.Name, local: frozenset[str], report: Report) -> None:
    name = node.id
    if name in local or name in rules.KERNEL_BUILTINS:
        return
    if name in file.imports:
        _kernel_full(world, world.resolve(file.imports[name]), node, report)
    elif name in file.functions:
        _kernel_full(world, file.full(name), node, report)
    elif name not in file.values:
        report(
            "kernel_name",
            node,
            f"`{name}` is not known in a kernel; use tl.* and other @triton.jit functions",
        )


def _kernel_full(world: World, full: str, node: ast.AST, report: Report) -> None:
    module, _, name = full.rpartition(".")
    if full == "triton.language.inline_asm_elementwise":
        report(
            "inline_assembly",
            node,
            "inline assembly; write it with tl.* and libdevice and let Triton compile it",
        )
    elif not _is_kernel_name(full, module, name):
        _kernel_own(world, full, node, report)


def _is_kernel_name(full: str, module: str, name: str) -> bool:
    if module in _NAMESPACES:
        return name in rules.KERNEL_ATTRIBUTES
    return (
        rules.is_of_kernels(full)
        or full in ("triton.cdiv", "triton.next_power_of_2")
        or (module == "math" and not name.startswith("_"))
    )


def _kernel_own(world: World, full: str, node: ast.AST, report: Report) -> None:
    own = world.own(full)
    if own is not None and (own[1] in own[0].functions or own[1] in own[0].values):
        definition = own[0].functions.get(own[1])
        if definition is not None and not world.is_for_kernels(own[0], definition):
            report(
                "kernel_name",
                node,
                f"{definition.name} is host code; mark what a kernel calls with @triton.jit",
            )
    else:
        message = f"`{full}` is not for kernels; use triton.language and other @triton.jit functions"
        report("kernel_name", node, message)


def _without_docstring(node: ast.FunctionDef) -> list[ast.stmt]:
    first = node.body[0]
    has = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    return node.body[1:] if has else node.body
