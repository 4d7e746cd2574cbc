"""What outlives a call. A candidate may keep plans of plain numbers; no tensors, nor how often it was called.

Told here from the text alone, where the text shows it. What is kept by a longer detour shows when the values
change from call to call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from passagent.evaluator.guards import rules
from passagent.evaluator.guards.names import Report
from passagent.evaluator.guards.scope import File, World, bound_names
from passagent.evaluator.guards.trees import without_nested

_CACHES = {"functools.cache", "functools.lru_cache"}
_LAZY = {"iter", "map", "filter", "zip", "enumerate", "reversed"}
_STORING = {"append", "appendleft", "add", "extend", "insert", "setdefault", "update"}
_KEEP = (
    "keeps a tensor from one call to the next; allocate in every call, and keep plans of plain numbers only"
)
_COUNT = "changes with every call; what a call does may depend on its arguments only"


def check_module(world: World, file: File, statement: ast.stmt, report: Report) -> None:
    """A module-level statement: no memory is allocated when the file is imported, and no iterator is held."""
    if isinstance(statement, ast.FunctionDef):
        return
    for part in _outside_functions(statement):
        if isinstance(part, ast.Call) and _allocates(world, file, part):
            message = (
                "allocates when the file is imported; allocate in the replacement function, and write a "
                "table as numbers: a tuple, or torch.tensor([...])"
            )
            report("module_tensor", part, message)
    values: list[ast.expr] = []
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and statement.value is not None:
        values.append(statement.value)
    for value in values:
        for part in _held(value):
            called = part.func if isinstance(part, ast.Call) else None
            lazy = isinstance(part, ast.GeneratorExp) or (
                called is not None
                and (
                    (isinstance(called, ast.Name) and called.id in _LAZY)
                    or (world.dotted(called, file) or "").startswith("itertools.")
                )
            )
            if lazy:
                report("call_state", part, f"an iterator at module level {_COUNT}; write a tuple")


def check_function(world: World, file: File, node: ast.FunctionDef, report: Report) -> None:
    """A host function and those defined in it: what they store into containers that outlive the call."""
    _Stores(world, file, node, frozenset(), report).check()


def check_cached(world: World, file: File, node: ast.FunctionDef, report: Report) -> None:
    """A cached function may not take tensors: it would answer for other values in the same memory."""
    found = _touches_tensor(world, file, node)
    if found is not None:
        where = found if found in list(ast.walk(node)) else node
        message = f"{node.name} is cached and takes a tensor; pass it x.shape and x.dtype, not x"
        report("cached_tensor", where, message)


def is_cached(world: World, file: File, node: ast.FunctionDef) -> bool:
    """Decorated with functools.cache or lru_cache."""
    called = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(world.dotted(d, file) in _CACHES for d in called)


def tensor_names(world: World, file: File, node: ast.FunctionDef) -> set[str]:
    """Names of a function that hold tensors, as far as its own text shows."""
    parameters = {
        a.arg
        for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg]
        if a is not None
    }
    names = {
        part.value.id
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Name)
        and part.value.id in parameters
        and part.attr in rules.TENSOR_FACTS
    }
    for _ in range(3):
        for part in ast.walk(node):
            if isinstance(part, (ast.Assign, ast.NamedExpr)) and _is_tensor(world, file, part.value, names):
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                names |= {t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    return names


class _Stores:
    """Stores of one function; `outer` are the local names of the functions around it."""

    def __init__(
        self, world: World, file: File, node: ast.FunctionDef, outer: frozenset[str], report: Report
    ) -> None:
        self.world, self.file, self.node, self.report = world, file, node, report
        self.local = frozenset(bound_names(node))
        self.outer = outer - self.local
        self.tensors = tensor_names(world, file, node)
        self.kept = self._aliases()
        self.found = {n for part in ast.walk(node) if isinstance(part, ast.Global) for n in part.names}

    def check(self) -> None:
        pending: list[ast.AST] = list(self.node.body)
        while pending:
            part = pending.pop()
            if isinstance(part, ast.FunctionDef):
                _Stores(self.world, self.file, part, self.outer | self.local, self.report).check()
                continue
            if isinstance(part, ast.Assign):
                for target in part.targets:
                    self._stored(target, part.value)
            elif isinstance(part, ast.AugAssign) and self._outlives(part.target):
                self.report("call_state", part, f"`{ast.unparse(part.target)}` {_COUNT}")
            elif isinstance(part, ast.Call):
                self._called(part)
            pending += ast.iter_child_nodes(part)

    def _stored(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self._stored(item, value)
        elif isinstance(target, ast.Attribute) or getattr(target, "id", None) in self.found:
            if self.node.name not in ("init", "post_init"):  # what is new may hold tensors
                self._keeps(target, [value])
        elif isinstance(target, ast.Subscript) and self._outlives(target):
            self._keeps(target, [value])
            held = ast.dump(_root(target))
            if any(isinstance(p, (ast.Name, ast.Attribute)) and ast.dump(p) == held for p in ast.walk(value)):
                self.report("call_state", target, f"`{ast.unparse(target)}` {_COUNT}")

    def _called(self, call: ast.Call) -> None:
        function = call.func
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(function, ast.Attribute) and function.attr in _STORING:
            if self._outlives(function.value) and not self._is_its_own(function):
                self._keeps(call, values)
        elif (
            isinstance(function, ast.Name) and function.id == "next" and values and self._outlives(values[0])
        ):
            self.report("call_state", call, f"`{ast.unparse(call)}` {_COUNT}")

    def _is_its_own(self, function: ast.Attribute) -> bool:
        """`Kernels.add` of a class that says what `add` is, or of an object of one: no container's method."""
        own = self.world.own(self.world.dotted(function.value, self.file, self.local) or "")
        held = own[0].values.get(own[1]) if own is not None else None
        made = ast.Attribute(held.func, function.attr, ast.Load()) if isinstance(held, ast.Call) else None
        if own is not None and made is not None and self.world.is_named(made, own[0], frozenset()):
            return True
        return self.world.is_named(function, self.file, self.local)

    def _keeps(self, where: ast.AST, values: list[ast.expr]) -> None:
        if any(_is_tensor(self.world, self.file, value, self.tensors) for value in values):
            self.report("kept_tensor", where, f"`{ast.unparse(where)[:60]}` {_KEEP}")

    def _outlives(self, node: ast.expr) -> bool:
        """The container behind a target is not this call's own."""
        node = _root(node)
        if isinstance(node, ast.Name):
            return node.id in self.kept or node.id not in self.local
        if isinstance(node, ast.Attribute) and self.world.is_named(node, self.file, self.local):
            return True
        return self.world.own(self.world.dotted(node, self.file, self.local) or "") is not None

    def _aliases(self) -> set[str]:
        """Local names for containers that outlive the call."""
        kept = set(self.outer)
        for _ in range(2):
            for part in ast.walk(self.node):
                if not isinstance(part, (ast.Assign, ast.NamedExpr)):
                    continue
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                names = {t.id for t in targets if isinstance(t, ast.Name)}
                if names and self._is_kept(part.value, kept):
                    kept |= names
        return kept

    def _is_kept(self, value: ast.expr, kept: set[str]) -> bool:
        if isinstance(value, ast.Name):
            own = self.world.own(self.world.dotted(value, self.file, self.local) or "")
            return value.id in kept or (own is not None and own[1] in own[0].values)
        if isinstance(value, ast.Call) and (called := _definition(self.world, self.file, value)) is not None:
            return is_cached(self.world, *called)
        return False


def _touches_tensor(world: World, file: File, node: ast.FunctionDef) -> ast.AST | None:
    """The first sign in a function, or in those it calls, that it is given tensors or makes them of one."""
    local = bound_names(node)
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            if part.value.id in local and part.attr in rules.TENSOR_FACTS:
                return part
        elif isinstance(part, ast.Call):
            if isinstance(part.func, ast.Subscript) or _is_cpp_kernel(world, file, part.func):
                return part
            if (world.dotted(part.func, file, frozenset(local)) or "").endswith("_like"):
                return part
            called = _definition(world, file, part)
            if called is not None and (world.is_kernel(*called) or _takes_tensor(world, *called)):
                return part
    return None


def _takes_tensor(world: World, file: File, node: ast.FunctionDef) -> bool:
    return world.once("takes", node, lambda: _touches_tensor(world, file, node) is not None)


def _is_cpp_kernel(world: World, file: File, node: ast.expr) -> bool:
    """A module-level `k = cpp_kernel(...)`."""
    own = world.own(world.dotted(node, file) or "")
    value = own[0].values.get(own[1]) if own is not None else None
    return (
        isinstance(value, ast.Call)
        and own is not None
        and (world.dotted(value.func, own[0]) or "").startswith("passagent.kernels.")
    )


def _definition(world: World, file: File, call: ast.Call) -> tuple[File, ast.FunctionDef] | None:
    """The candidate's own function that a call names."""
    own = world.own(world.dotted(call.func, file) or "")
    found = own[0].functions.get(own[1]) if own is not None else None
    return (own[0], found) if own is not None and found is not None else None


def _allocates(world: World, file: File, call: ast.Call) -> bool:
    """The call, or one that it leads to in the candidate's own functions, allocates a tensor."""
    full = world.dotted(call.func, file) or ""
    if full.startswith("torch.") and full.removeprefix("torch.") in rules.FACTORIES - {"tensor"}:
        return True
    called = _definition(world, file, call)
    if called is None:
        return False
    own, function = called
    calls = _calls(function)
    return world.once("allocates", function, lambda: any(_allocates(world, own, part) for part in calls))


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """The calls that a call of a function makes; not those of a function that it only returns."""
    parts = list(without_nested(function))
    calls = [part for part in parts if isinstance(part, ast.Call)]
    yield from calls
    named = {part.id for call in calls for part in ast.walk(call) if isinstance(part, ast.Name)}
    for part in parts:
        if isinstance(part, ast.FunctionDef) and part.name in named:
            yield from _calls(part)
        elif isinstance(part, ast.Lambda):
            yield from (one for one in ast.walk(part) if isinstance(one, ast.Call))


def _is_tensor(world: World, file: File, node: ast.expr, names: set[str]) -> bool:
    """An expression is a tensor, or a container with one in it; what the text does not show is none.

    Nor is a `torch.tensor(...)`: a table, which may be kept as long as it holds the same in every call.
    """
    if isinstance(node, ast.Name):
        return node.id in names
    parts: list[ast.expr] = []
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = node.values
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    elif isinstance(node, (ast.Subscript, ast.Starred, ast.NamedExpr)) or (
        isinstance(node, ast.Attribute) and node.attr in ("T", "mT")
    ):
        parts = [node.value]
    elif isinstance(node, ast.Call):
        full = world.dotted(node.func, file) or ""
        if full.startswith("torch."):
            return full.removeprefix("torch.") in rules.FACTORIES - {"tensor"} | rules.TORCH_VIEWS
        called = _definition(world, file, node)
        if called is not None:
            return world.once("returns", called[1], lambda: _returns_tensor(world, *called))
        if isinstance(node.func, ast.Attribute) and node.func.attr in rules.TENSOR_METHODS:
            parts = [node.func.value]
    return any(_is_tensor(world, file, part, names) for part in parts)


def _returns_tensor(world: World, file: File, node: ast.FunctionDef) -> bool:
    names = tensor_names(world, file, node)
    gives = (part for part in ast.walk(node) if isinstance(part, (ast.Return, ast.Yield)))
    returned = [part.value for part in gives if part.value]
    return any(_is_tensor(world, file, value, names) for value in returned)


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _outside_functions(statement: ast.stmt) -> Iterator[ast.AST]:
    pending: list[ast.AST] = [statement]
    while pending:
        part = pending.pop()
        if isinstance(part, (ast.FunctionDef, ast.Lambda)):
            continue
        yield part
        pending += ast.iter_child_nodes(part)


def _held(node: ast.expr) -> Iterator[ast.expr]:
    """The expression and what its containers hold; not what a call consumes."""
    yield node
    parts: list[ast.expr | None] = []
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        parts += node.elts
    elif isinstance(node, ast.Dict):
        parts += node.values
    elif isinstance(node, ast.IfExp):
        parts += [node.body, node.orelse]
    elif isinstance(node, ast.NamedExpr):
        parts.append(node.value)
    elif isinstance(node, (ast.ListComp, ast.SetComp)):
        parts.append(node.elt)
    elif isinstance(node, ast.DictComp):
        parts.append(node.value)
    for part in parts:
        if part is not None:
            yield from _held(part)
