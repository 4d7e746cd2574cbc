"""Host code: what runs around the kernels. It may name the closed world of rules.py and nothing else."""

from __future__ import annotations

import ast
import copy

from passagent.evaluator.guards import classes, objects, records, rules, state
from passagent.evaluator.guards.decorators import Decorators
from passagent.evaluator.guards.names import CAST, HIDDEN, READS, reads_by_name
from passagent.evaluator.guards.scope import (
    bound_names,
    is_plain_format,
    literal_getattr,
    targets,
)
from passagent.evaluator.guards.trees import is_store, none_in, without_nested

_TELLING = {
    "str", "repr", "print", "AssertionError", "NotImplementedError", "RuntimeError", "TypeError",
    "ValueError",
}  # fmt: skip
"""Calls that make text of their arguments."""
_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.Tuple)


class Host(Decorators):
    """Visits module-level statements and the bodies of ordinary functions."""

    # calls and operators

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call) and self.dotted(call.func) == rules.SET_ALLOCATOR:
            self.allocator(call)
            return
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and len(call.args) in rules.AMBIGUOUS.get(call.func.attr, ())
            and not any(isinstance(argument, ast.Starred) for argument in call.args)
            and self.of_value(call.func)
        ):
            for part in [call.func.value, *call.args, *(keyword.value for keyword in call.keywords)]:
                self.visit(part)
            return
        self.visit(call)

    def allocator(self, call: ast.Call) -> None:
        """Which function Triton asks for memory outlives a call: it may only be one, and no closure."""
        given = self.dotted(call.args[0]) if len(call.args) == 1 and not call.keywords else None
        own = self.world.own(given or "")
        function = own[0].functions.get(own[1]) if own is not None else None
        plain = function is not None and not function.decorator_list
        self.world.allocators |= {given} if plain and given is not None else set()
        if not plain or len(self.world.allocators) > 1 or HIDDEN & {(given or "").rpartition(".")[2]}:
            message = "set_allocator takes one and the same function, defined at the top of a file"
            self.report("host_name", call, f"{message}; write `def allocate(size, alignment, stream)` there")

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Name) and function.id not in self.local:
            attribute = literal_getattr(node)
            if attribute is not None and function.id == "hasattr" and self.is_asked(attribute):
                return
            if attribute is not None:
                for part in [attribute, *node.args[2:]]:
                    self.visit(part)
                return
        if isinstance(function, ast.Name) and function.id in _TELLING and self.is_pythons(function.id):
            for part in [function, *map(self.kind_of, node.args), *(one.value for one in node.keywords)]:
                self.visit(part)
            return
        if not self.inside and records.named_fields(node, self.dotted):
            for keyword in node.keywords:
                self.visit(keyword.value)
            return
        if self.is_set_when_made(node):
            self.visit(node.args[2])
            return
        if self.is_made_above(node):
            for part in [*node.args, *(keyword.value for keyword in node.keywords)]:
                self.visit(part)
            return
        if self.is_launch(function) or self.dotted(function) in rules.TAKING_CONSTANTS:
            self.visit(function)
            for part in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if not self.is_constant(part):
                    self.visit(part)
            return
        if self.enters(node):
            return
        if isinstance(function, ast.Attribute) and self.of_value(function):
            if function.attr == "type" and (node.args or node.keywords):
                self.report("host_cast", node, f"`.type(...)` {CAST}")
            elif function.attr == "format" and is_plain_format(self.text_of(function.value)):
                for part in [*node.args, *(keyword.value for keyword in node.keywords)]:
                    self.visit(part)
                return
        self.generic_visit(node)

    def is_set_when_made(self, call: ast.Call) -> bool:
        """`object.__setattr__(self, "rows", 1)` in a frozen dataclass's `__post_init__`."""
        if ast.unparse(call.func) != "object.__setattr__" or len(call.args) != 3 or call.keywords:
            return False
        new, name = call.args[:2]
        known = isinstance(name, ast.Constant) and name.value in self.world.fields
        return known and isinstance(new, ast.Name) and new.id == self.made != ""

    def is_made_above(self, call: ast.Call) -> bool:
        """`super().__init__(...)` in an `__init__`, or `super().launch(...)` in a method."""
        function = call.func
        if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Call):
            return False
        if reads_by_name(function.attr):
            return False
        named = function.attr in (records.MAKING if self.made else self.world.fields)
        above = isinstance(function.value.func, ast.Name) and function.value.func.id == "super"
        return above and (named or function.attr in self.world.fields) and self.is_object(function.value)

    def is_pythons(self, name: str) -> bool:
        """Whether nothing in the file gives a built-in's name another meaning."""
        known = name in self.local or name in self.file.others
        return not known and self.dotted(ast.Name(name)) is None

    def visit_Compare(self, node: ast.Compare) -> None:
        """`type(x) is y`, `==` and `in` of what is written out: others call a method with the type."""
        parts = zip(node.ops, node.comparators, strict=True)
        told = all(
            isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot))
            or (isinstance(op, (ast.In, ast.NotIn)) and isinstance(self.text_of(part), _DISPLAYS))
            for op, part in parts
        )
        for part in [node.left, *node.comparators]:
            self.visit(self.kind_of(part) if told else part)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        if node.msg is not None:
            self.visit(self.kind_of(node.msg))

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self.visit(self.kind_of(node.value))
        if node.format_spec is not None:
            self.visit(node.format_spec)

    def kind_of(self, node: ast.expr) -> ast.expr:
        """What `type(x)` or its name asks about where the answer is only compared or printed."""
        if isinstance(node, ast.Attribute) and node.attr == "__name__" and isinstance(node.value, ast.Call):
            asked = self.kind_of(node.value)
            return node if asked is node.value else asked
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or "type" in self.local:
            return node
        known = node.func.id == "type" and len(node.args) == 1 and not node.keywords
        return node.args[0] if known else node

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        if text and isinstance(node.op, ast.Mod):
            many = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            for part in map(self.kind_of, many):
                self.visit(part)
        else:
            self.matmul(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.matmul(node)

    def matmul(self, node: ast.BinOp | ast.AugAssign) -> None:
        if isinstance(node.op, ast.MatMult):
            self.report("host_operator", node, f"`@` multiplies tensors in host code; {rules.COMPUTE}")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            base = node.value
            while isinstance(base, ast.Subscript):
                base = base.value
            field = isinstance(base, ast.Attribute) and (
                self.is_object(base.value) or self.world.is_named(base, self.file, self.local)
            )
            if not isinstance(base, ast.Name) and not field:
                message = f"stores into `{ast.unparse(base)}`; store into a variable of the function's own"
                self.report("attribute_store", node, message)
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            several = len(parts) > 1  # one slice alone may be a list's
            if any(
                (isinstance(p, ast.Slice) and several) or (isinstance(p, ast.Constant) and p.value is ...)
                for p in parts
            ):
                self.report("tensor_store", node, f"stores into a slice of a tensor; {rules.COMPUTE}")
        self.generic_visit(node)

    # functions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if self.world.is_kernel(self.file, node):  # in a block of the module it is inspected as a kernel
            if self.inside:
                message = "a kernel defined in a function; define kernels at the top of the file"
                self.report("statement", node, message)
            return
        self.signature(node)
        inner = self.within(bound_names(node), inside=True)
        inner.scope = self.scope if self.inside else node
        if self.makes_context(node):
            inner.yields = frozenset(part for part in without_nested(node) if isinstance(part, ast.Yield))
        for statement in node.body:
            inner.visit(statement)

    def visit_Yield(self, node: ast.Yield) -> None:
        if node not in self.yields:
            self.refuse_statement(node)
        self.generic_visit(node)

    def signature(self, node: ast.FunctionDef) -> None:
        """Decorators, defaults and annotations: evaluated where the function is defined."""
        self.binding(node.name, node)
        for part in ast.walk(node.args):
            if isinstance(part, ast.arg):  # a local name, which may be a built-in's: `input`
                self.within(set(), inside=True).binding(part.arg, node)
        if getattr(node, "type_params", None):  # Python 3.12
            self.report("statement", node, f"{node.name} takes type parameters; write plain annotations")
        for decorator in node.decorator_list:
            self.decorator(decorator, node)
        self.defaults(node.args, self.world.is_kernel(self.file, node))
        arguments = (part for part in ast.walk(node.args) if isinstance(part, ast.arg))
        for annotation in [*(argument.annotation for argument in arguments), node.returns]:
            if annotation is not None:
                self.annotation(annotation)

    def defaults(self, arguments: ast.arguments, of_kernel: bool = False) -> None:
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is None:
                continue
            parts = default.elts if isinstance(default, ast.Tuple) else [default]
            for part in parts:
                held = self.file.values.get(part.id) if isinstance(part, ast.Name) else None
                plain = isinstance(part, (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.BinOp))
                if not plain or (isinstance(held, (ast.Dict, ast.List, ast.Set, ast.Call)) and not of_kernel):
                    message = (
                        "a default that outlives the call; use numbers (-math.inf), strings, dtypes and None"
                    )
                    self.report("mutable_default", default, message)
            if not (of_kernel and self.is_constant(default)):
                self.visit(default)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.visit(target)
        self.assigned(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """In a function the annotation of a name is never evaluated."""
        self.visit(node.target)
        if not self.inside:
            self.annotation(node.annotation)
        if node.value is not None:
            self.assigned([node.target], node.value)

    def assigned(self, targets: list[ast.expr], value: ast.expr) -> None:
        """The value of an assignment; what is of kernels (a constant, `tl.exp`) may have a module's name."""
        known = [t for t in targets if isinstance(t, ast.Name) and self.world.stands_for(self.file, t, value)]
        if known == targets and rules.is_of_kernels(self.dotted(value) or ""):
            return
        if known == targets and isinstance(value, ast.Call) and self.world.is_constexpr(self.file, value):
            for part in [*value.args, *(keyword.value for keyword in value.keywords)]:
                Host(self.world, self.file, self.report, constant=True).visit(part)
        else:
            self.visit(value)

    def annotation(self, node: ast.expr) -> None:
        full = "" if isinstance(node, ast.Constant) else self.dotted(node) or ""
        module, _, name = full.rpartition(".")
        if module == "triton.language" and not name.startswith("_"):
            return  # read when the function is defined, and called by nobody
        given = isinstance(node, ast.Attribute) and node.attr in ("args", "kwargs")
        if given and self.is_made(node.value, {"typing.ParamSpec"}):  # type: ignore[attr-defined]
            return
        if not isinstance(node, ast.Constant):
            self.visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name is not None:
            self.binding(node.name, node)
            if not self.inside and node.name in self.file.imports:
                self.report("rebound_import", node, f"`{node.name}` is imported too; use another name")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        inner = self.within(set())
        none = none_in(node.test).replace(f".{objects.OBJECT}", "")
        inner.made, inner.asked = self.made, self.asked | {none}
        for statement in node.body:
            inner.visit(statement)
        for statement in node.orelse:
            self.visit(statement)

    def visit_Global(self, node: ast.Global) -> None:
        """A number that is found out once: None at first, and given a value where it still is None."""
        if not all(map(self.is_found_once, node.names)):
            self.refuse_statement(node)

    def is_found_once(self, name: str) -> bool:
        return self.world.once(f"found once {name}", self.file.tree, lambda: self._is_found_once(name))

    def _is_found_once(self, name: str) -> bool:
        first, given = self.file.values.get(name), self.world.meanings(self.file.tree)
        asked = given.asked.get(name, [])
        found = {part for one in asked for part in ast.walk(one) if is_store(part) and part.id == name}
        stores, told = given.stores[name], given.told[name]
        only = given.counts[name] == stores + told == len(found) + 1 + told
        return isinstance(first, ast.Constant) and first.value is None and only

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A class may be a namespace of constants, or a record, with methods that only read it."""
        self.binding(node.name, node)
        if node.name in rules.BUILTINS:  # until it is defined, and once it is deleted, the name is Python's
            self.report("builtin", node, f"`{node.name}` is a built-in of Python; use another name")
        other = "stands in a function" if self.inside else ""
        if not records.is_record(node, self.base, self.world.classes.__contains__):
            above = [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]
            other = other or f"has {', '.join(f'`{ast.unparse(part)}`' for part in above)} above it"
        for part in node.body:
            if objects.is_mark(part):
                continue
            text = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
            named = isinstance(part, ast.Assign) and all(isinstance(t, ast.Name) for t in part.targets)
            named |= isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            if not (text or named or isinstance(part, (ast.Pass, ast.FunctionDef))):
                other = other or f"holds `{ast.unparse(part).partition(chr(10))[0]}`"
            given = records.field_values(part, self.dotted) if node.decorator_list else []
            if given and isinstance(part, ast.AnnAssign):
                self.visit(part.target)
                self.annotation(part.annotation)
                for one in given:
                    self.visit(one)
            elif (function := classes.held(part)) is not None and isinstance(part, ast.Assign):
                for one in [*part.targets, function]:
                    self.visit(one)
            elif isinstance(part, ast.FunctionDef):
                decorators = "".join(f"@{ast.unparse(d)} " for d in part.decorator_list)
                known = self.method(part)
                other = other or ("" if known else f"has a method `{decorators}{part.name}`")
            else:
                self.visit(part)
        if other:
            inner = [part.name for part in node.body if isinstance(part, ast.ClassDef)]
            moved = [node.name] if self.inside else inner
            instead = f"move `class {moved[0]}` to the top of the file" if moved else records.MESSAGE
            self.report("statement", node, f"{node.name} {other}; {instead}")

    def method(self, node: ast.FunctionDef) -> bool:
        """Inspect a method like any function; False if a class may not have it.

        It is called through any value, so it has the name of a field, or Python calls it with an instance.
        """
        made = records.instance(node)
        if made is None or self.inside or not objects.compares_objects(node):
            return False
        function = copy.copy(node)
        function.decorator_list, function.name = [], node.name.strip("_")
        if node.name.startswith("__") and node.name not in records.MAKING:
            function.name = "special"  # Python's name is no built-in: `__exit__`
        state.check_function(self.world, self.file, function, self.report)
        self.signature(function)
        inner = self.within(bound_names(node), inside=True)
        inner.scope, inner.instance = node, made if objects.is_guarded(node, made) else ""
        inner.made = made if node.name in records.MAKING else ""
        for statement in node.body:
            inner.visit(statement)
        return True

    def base(self, node: ast.expr) -> str | None:
        """The full name that a class is derived from; `int` is Python's where nothing else is."""
        full = self.dotted(node)
        if (
            full is not None
            or not isinstance(node, ast.Name)
            or self.world.meanings(self.file.tree).counts[node.id]
        ):
            return full
        return f"builtins.{node.id}"

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.defaults(node.args)
        self.within(bound_names(node), inside=True).visit(node.body)

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

    def refuse_statement(self, node: ast.AST) -> None:
        kind = type(node).__name__
        instead = "use plain functions, constants and kernels"
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            instead = "what is found out once belongs in a constant, or a function under functools.lru_cache"
        elif isinstance(node, (ast.Yield, ast.YieldFrom)):
            instead = "return a list or a tuple of what is generated"
        message = f"`{kind}` has no place in a pass; {instead}"
        self.report("statement", node, message)

    visit_Nonlocal = visit_AsyncFunctionDef = visit_AsyncFor = refuse_statement
    visit_TypeAlias = visit_AsyncWith = visit_Await = visit_YieldFrom = refuse_statement

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        """`case Tile(rows=n):` reads an attribute of what is a Tile."""
        own = self.dotted(node.cls) in self.world.classes
        for name in node.kwd_attrs:
            read = ast.copy_location(ast.Attribute(node.cls, name, ast.Load()), node)
            known = own and name in self.world.fields and not name.startswith("__")
            if reads_by_name(name):
                self.report("host_method", node, f"`.{name}` {READS}")
            elif not known:
                self.value_attribute(read)
        self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        if not self.inside:
            self.refuse_statement(node)
        self.generic_visit(node)

    def captured(self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name is not None:
            self.binding(name, node)
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = captured

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Checked for the file as a whole; in a function the name may be nothing else."""
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            if name in self.local:
                self.report("rebound_import", node, f"`{name}` is imported and assigned; use another name")

    visit_ImportFrom = visit_Import
