"""The names and attributes of host code: each is in the closed world of rules.py, or the candidate's own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Self

from passagent.evaluator.guards import records, rules
from passagent.evaluator.guards.objects import OBJECT
from passagent.evaluator.guards.scope import OWN, File, World, bound_names
from passagent.evaluator.guards.trees import without_nested

Report = Callable[[str, ast.AST, str], None]
"""rule, where, message"""

_CASTS = {"bfloat16", "bool", "char", "double", "float", "half", "int", "long", "short", "type", "type_as"}
CAST = "casts a tensor in host code; convert in the kernel when it loads or stores"
READS = "may read attributes by their names; write f-strings, and give a field or method another name"
_MADE_LATER = (ast.Call, ast.Dict, ast.List, ast.Name, ast.Set, ast.comprehension)
_SPECIAL = {"__all__", "__author__", "__slots__", "__version__"}
HIDDEN = {"pattern", "replacement_args"}
"""Functions that only describe: nothing may call or pass them on."""


def reads_by_name(attribute: str) -> bool:
    """By these, texts and enumerations (`_convert_`) find attributes that no rule sees."""
    special = attribute.startswith("_") and attribute.endswith("_") and not attribute.startswith("__")
    return special or attribute in ("format", "format_map")


class Names(ast.NodeVisitor):
    """Visits what host code names; host.py adds the calls, functions and statements around them."""

    def __init__(
        self,
        world: World,
        file: File,
        report: Report,
        local: frozenset[str] = frozenset(),
        inside: bool = False,
        constant: bool = False,
        scope: ast.AST | None = None,
    ) -> None:
        self.world, self.file, self.report = world, file, report
        self.local, self.inside, self.constant = local, inside, constant
        self.scope = scope or file.tree
        """The outermost function around, or the module."""
        self.instance = ""
        """In a method, the name of its object."""
        self.asked: frozenset[str] = frozenset()
        """What is None here, as `self.plan` after `if self.plan is None:`: it may be found out."""
        self.yields: frozenset[ast.Yield] = frozenset()
        """Those of the function around, where it makes a context."""
        self.made = ""
        """In `__init__`, the name of the new object: what it holds is stored there and nowhere else."""

    def within(self, names: set[str], inside: bool = False) -> Self:
        """The same rules with more local names; `inside` a function, where there are inputs."""
        local, inside = (self.local | names) if names else self.local, self.inside or inside
        made = type(self)(self.world, self.file, self.report, local, inside, scope=self.scope)
        made.instance, made.asked, made.yields = self.instance, self.asked, self.yields
        return made

    def of_function(self, file: File, function: ast.FunctionDef) -> Self:
        """The rules for the body of a function at the top of a file."""
        made = type(self)(self.world, file, self.report, scope=function)
        return made.within(bound_names(function), inside=True)

    def gives(self, function: ast.FunctionDef, known: Callable[[ast.expr], bool]) -> bool:
        """Whether all that a function without decorators returns is `known`."""
        parts = list(without_nested(function))
        returned = [part.value for part in parts if isinstance(part, ast.Return)]
        plain = not function.decorator_list and not any(isinstance(part, ast.Yield) for part in parts)
        return plain and bool(returned) and all(value is not None and known(value) for value in returned)

    def dotted(self, node: ast.expr) -> str | None:
        return self.world.dotted(node, self.file, self.local)

    def visit_Name(self, node: ast.Name) -> None:
        name = node.id
        if not isinstance(node.ctx, ast.Load):
            self.binding(name, node)
            return
        if name in self.local:
            return
        if name in HIDDEN and name in self.file.functions:
            self.report("pattern_reference", node, rules.pattern_reference(name))
        elif self.is_constant(node):
            self.report("host_name", node, rules.unknown_name(rules.CONSTANT, self.world.target))
        elif name in self.file.functions and self.world.makes_context(self.dotted(node)):
            self.report("context", node, rules.only_entered(name))
        elif name in self.file.imports:
            self.full_name(self.world.resolve(self.file.imports[name]), node)
        elif name in self.file.values and (full := self.dotted(node)) and self.world.own(full) is None:
            self.full_name(full, node)
        elif name in self.file.functions or name in rules.BUILTINS:
            return
        elif rules.shadows(name) or name.startswith("__"):
            self.report("builtin", node, f"`{name}` is not among what a pass may use; {rules.instead(name)}")

    def is_constant(self, node: ast.expr) -> bool:
        """A `NAME = tl.constexpr(...)` of the module, where it may not stand."""
        if self.constant or not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        own = self.world.own(self.dotted(node) or "")
        value = own[0].values.get(own[1]) if own is not None else None
        return own is not None and value is not None and self.world.is_constexpr(own[0], value)

    def is_plain_constant(self, node: ast.Attribute) -> bool:
        """`BLOCK.value` of a `BLOCK = tl.constexpr(64)`: a number or string that nobody changes."""
        if node.attr != "value" or not self.is_constant(node.value):
            return False
        own = self.world.own(self.dotted(node.value) or "")
        value = own[0].values[own[1]] if own is not None else None
        held = value.args if isinstance(value, ast.Call) else []
        return len(held) == 1 and not any(isinstance(part, _MADE_LATER) for part in ast.walk(held[0]))

    def is_launch(self, function: ast.expr) -> bool:
        """`kernel[grid]` of one of the candidate's own kernels."""
        if not isinstance(function, ast.Subscript):
            return False
        own = self.world.own(self.dotted(function.value) or "")
        definition = own[0].functions.get(own[1]) if own is not None else None
        return own is not None and definition is not None and self.world.is_kernel(own[0], definition)

    def is_asked(self, attribute: ast.Attribute) -> bool:
        """`hasattr(tl, "gather")`: whether a version of torch or triton has it."""
        root = (self.dotted(attribute) or "").split(".")[0]
        private = attribute.attr.removeprefix("_experimental_").startswith("_")
        return root in ("torch", "triton") and not private

    def binding(self, name: str, node: ast.AST) -> None:
        """A name that is given a meaning."""
        if name.startswith("__") and name not in _SPECIAL:
            self.report("private_attribute", node, f"`{name}` is private to Python; use another name")
        elif not self.inside and rules.shadows(name):
            self.report("builtin", node, f"`{name}` is a built-in of Python; use another name")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            new = isinstance(node.value, ast.Name) and node.value.id == self.made
            new |= ast.unparse(node) in self.asked and self.is_object(node.value)
            if new and isinstance(node.ctx, ast.Store) and not node.attr.startswith("__"):
                return
            self.report("attribute_store", node, rules.stored(self.dotted(node) or "", self.world.target))
            return
        kind = node.value if node.attr == "__name__" else None
        if isinstance(kind, ast.Attribute) and kind.attr == "__class__":
            self.visit(kind.value)
            return
        if reads_by_name(node.attr):
            self.report("host_method", node, f"`.{node.attr}` {READS}")
            return
        if self.world.is_named(node, self.file, self.local) or self.is_plain_constant(node):
            return
        if self.is_constant(node):
            self.report("host_name", node, rules.unknown_name(rules.CONSTANT, self.world.target))
        if self.of_value(node):
            self.value_attribute(node)
            self.visit(node.value)
        else:
            self.full_name(str(self.dotted(node)), node)

    def of_value(self, node: ast.Attribute) -> bool:
        """The attribute of a value (one that a file defines, or without a name), not of a module."""
        base = self.dotted(node.value)
        if base is None or base in rules.VERSIONS:
            return True
        return base.split(".")[0] == OWN and not self.world.is_module(base)

    def full_name(self, full: str, node: ast.AST) -> None:
        """Check a full name such as `torch.nn.functional.relu` or `pass_dir.helper.f`."""
        parts = full.split(".")
        if full in rules.HOST_NAMES or (self.world.host_extensions and rules.is_extension(full)):
            return
        if any(part.startswith("_") for part in parts[1:]) and parts[0] != OWN:
            self.report("private_attribute", node, f"`{full}` is private; use the public names of {parts[0]}")
        elif parts[0] == OWN:
            self.own_name(full, node)
        elif full.startswith(rules.HOST_PREFIXES) and len(parts) == 2:
            return
        else:
            known = next((i for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in rules.HOST_NAMES), 0)
            if not known or any(part not in rules.DTYPE_FACTS for part in parts[known:]):
                self.report("host_name", node, rules.unknown_name(full, self.world.target))

    def own_name(self, full: str, node: ast.AST) -> None:
        parts = full.split(".")
        if self.world.is_module(full):
            self.report("module_as_value", node, f"`{parts[-1]}` is a module; call its functions by name")
        elif HIDDEN & set(parts[1:]):
            self.report("pattern_reference", node, rules.pattern_reference(parts[-1]))
        elif any(part.startswith("__") for part in parts):
            self.report(
                "private_attribute",
                node,
                f"`{parts[-1]}` is private; define a function or constant of its own",
            )
        elif self.world.makes_context(full):
            self.report("context", node, rules.only_entered(parts[-1]))
        elif not self.world.defines(full):
            message = f"`{full}` is defined in none of its files; define it, or name the module where it is"
            self.report("host_name", node, message)

    def is_object(self, node: ast.expr) -> bool:
        """What the text shows to be an object of a class of the candidate's: a method's own, or one made."""
        if isinstance(node, ast.Name) and node.id == self.instance:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            return bool(self.instance) and not node.args
        if isinstance(node, ast.Attribute) and node.attr == OBJECT:
            return self.of_value(node)
        return self.is_made(node, self.world.classes)

    def is_made(self, node: ast.expr, makers: set[str], by_name: bool = True) -> bool:
        """A call of one of `makers`, one of two such calls, or a name that was given nothing else."""
        if isinstance(node, ast.IfExp):
            return all(self.is_made(part, makers, by_name) for part in (node.body, node.orelse))
        if isinstance(node, ast.Call):
            return self.dotted(node.func) in makers
        if not by_name:
            return False
        if isinstance(node, ast.Name) and node.id in self.local:
            values, host = self.world.meanings(self.scope).assigned(node.id), self
        elif (own := self.world.own(self.dotted(node) or "")) is not None:
            values = self.world.meanings(own[0].tree).assigned(own[1])
            host = type(self)(self.world, own[0], self.report)
        else:
            return False
        return bool(values) and all(host.is_made(value, makers, by_name=False) for value in values)

    def text_of(self, node: ast.expr) -> ast.expr:
        """What a name of the module stands for, if it was given one value only."""
        own = self.world.own(self.dotted(node) or "") if isinstance(node, (ast.Name, ast.Attribute)) else None
        given = self.world.meanings(own[0].tree).assigned(own[1]) if own is not None else []
        return given[0] if len(given) == 1 else node

    def value_attribute(self, node: ast.Attribute) -> None:
        name = node.attr
        if name in records.METHODS or name in ("_init_handles", "__name__", OBJECT):
            return  # the first of a compiled kernel: loads it; the second a text
        if name in self.world.fields and not name.startswith("__") and self.is_object(node.value):
            return
        if name.startswith("_"):
            entered = name in ("__enter__", "__exit__")
            instead = (
                "write `with`, or put contexts on a contextlib.ExitStack"
                if entered
                else "use public attributes"
            )
            self.report("private_attribute", node, f"`.{name}` is private; {instead}")
        elif self.world.host_extensions and self.dotted(node.value) is not None:
            return  # what a module-level name stands for may come from an extension
        elif name in ("max", "min") and self.is_made(node.value, rules.LIMITS):
            return
        elif name in ("max", "min") and isinstance(node.value, ast.Call):
            self.report("host_method", node, f"`.{name}` computes with torch; {rules.COMPUTE}")
        elif name in _CASTS and name != "type":
            self.report("host_cast", node, f"`.{name}()` {CAST}")
        elif name in self.world.fields and records.is_field(name):
            return
        elif name not in rules.HOST_ATTRIBUTES or name in rules.AMBIGUOUS:
            instead = rules.COMPUTE
            if name in self.world.fields:
                instead = "give the field a longer name, or one in capitals, that nothing else has"
            message = f"`.{name}` is not among what host code may do with a value; {instead}"
            self.report("host_method", node, message)
