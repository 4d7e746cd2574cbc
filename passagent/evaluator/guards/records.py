"""Records: classes that give names to numbers, for configurations and plans.

Their fields are read as attributes of any value, as the text mostly does not show what a value is. Where a
field, method or property has a name that a tensor, a kernel or another value has an attribute of (taken.txt),
an object is asked for first (objects.py). What an object holds is stored when it is made.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from passagent.evaluator.guards import rules

BASES = [
    [], ["enum.Enum"], ["enum.Flag"], ["enum.IntEnum"], ["enum.IntFlag"], ["enum.StrEnum"],
    ["builtins.int", "enum.Enum"],
    ["builtins.str", "enum.Enum"], ["typing.NamedTuple"], ["typing.TypedDict"],
]  # fmt: skip
"""What a record may be derived from."""
METHODS = {"_asdict", "_fields", "_replace"}
"""Of a NamedTuple; no tensor and no kernel has one of that name."""
DECORATOR = "dataclasses.dataclass"
ORDERING = "functools.total_ordering"
FIELD_OF_ONE = "dataclasses.field"
_FIELD_OPTIONS = {"compare", "default", "default_factory", "init", "kw_only", "repr"}
"""Not metadata, which is a dict that outlives every call."""
OPTIONS = {"eq", "frozen", "init", "kw_only", "order", "repr", "slots"}
NAMED_TUPLE = "collections.namedtuple"
MESSAGE = (
    "a class stands at the top of the file, holds constants, fields, methods and properties that only read, "
    "and may be a dataclass, an Enum, a NamedTuple, an exception or derived from another class of its own"
)
_TAKEN = frozenset(Path(__file__).with_name("taken.txt").read_text().split())
"""Public attributes of what a candidate can get hold of: tensors, kernels, dtypes, loggers, frames.

Without those that host code may name anyway, and a few that are plain facts (start, stop, axis, level).
"""
MAKING = {"__init__", "__post_init__"}
"""Methods that Python calls with a new object: nothing else may name them."""
_CALLED = MAKING | {
    "__add__", "__and__", "__bool__", "__call__", "__contains__", "__enter__", "__eq__", "__exit__",
    "__float__", "__floordiv__", "__ge__", "__getitem__", "__gt__", "__hash__", "__index__", "__int__",
    "__iter__", "__le__", "__len__", "__lt__", "__mod__", "__mul__", "__ne__", "__neg__", "__or__",
    "__radd__", "__repr__", "__rmul__", "__rsub__", "__setitem__", "__str__", "__sub__", "__truediv__",
}  # fmt: skip
"""Methods that Python calls with an object, of those that a class may have: none for attributes."""
_TOLD = {"cache_key", "data_ptr", "keys", "tma_desc_cpu_ptr"}
"""Methods by which Triton and Python tell a tensor, a kernel and a dict."""
_ERRORS = {f"builtins.{name}" for name in rules.BUILTINS if name.endswith(("Error", "Exception", "Warning"))}

Dotted = Callable[[ast.expr], str | None]
"""The full name that an expression stands for."""


def is_field(name: str) -> bool:
    """Whether no value but a record has an attribute of that name, or host code may name it anyway."""
    return not name.startswith("_") and name not in _TAKEN


def is_record(node: ast.ClassDef, dotted: Dotted, is_own: Callable[[str], bool]) -> bool:
    """Whether bases and decorators of a class make it a record, or leave it a namespace of constants.

    `is_own`: whether a full name is that of a class of the candidate's, which is inspected like this one.
    """
    bases = [dotted(base) for base in node.bases]
    total = bases == ["typing.TypedDict"] and all(
        k.arg == "total" and isinstance(k.value, ast.Constant) for k in node.keywords
    )
    derived = all(base is not None and (is_own(base) or base in _ERRORS) for base in bases)
    plain = (bases in BASES or derived) and (total or not node.keywords)
    others = [d for d in node.decorator_list if dotted(d) != ORDERING]
    return plain and all(_is_dataclass(decorator, dotted) for decorator in others)


def instance(node: ast.FunctionDef) -> str | None:
    """What a method that a record may have calls its instance, or its class; None for any other function."""
    given = [*node.args.posonlyargs, *node.args.args]
    decorators = [d.id if isinstance(d, ast.Name) else "" for d in node.decorator_list]
    plain = decorators in ([], ["classmethod"], ["property"])
    special = node.name.startswith("__") or node.name in _TOLD
    if not (given and plain) or (special and (node.name not in _CALLED or node.decorator_list)):
        return None
    name = given[0].arg
    again = sum(
        (isinstance(part, ast.Name) and part.id == name and not isinstance(part.ctx, ast.Load))
        or (isinstance(part, ast.arg) and part.arg == name)
        or getattr(part, "name", None) == name
        or getattr(part, "asname", None) == name
        or getattr(part, "rest", None) == name
        for part in ast.walk(node)
    )
    return name if again == 1 else None


def held(node: ast.ClassDef) -> tuple[set[str], set[str]]:
    """Names that a class gives to what it holds, and that its methods give to what an object holds."""
    named: set[str] = set()
    stored: set[str] = set()
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            named |= {statement.name} - _CALLED
            stored |= {p.attr for p in ast.walk(statement) if isinstance(p, ast.Attribute) and _is_store(p)}
        else:
            named |= {p.id for p in ast.walk(statement) if isinstance(p, ast.Name) and _is_store(p)}
    return named, stored


def _is_store(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_dataclass(decorator: ast.expr, dotted: Dotted) -> bool:
    """`@dataclass` or `@dataclass(frozen=True)`."""
    if not isinstance(decorator, ast.Call):
        return dotted(decorator) == DECORATOR
    options = all(k.arg in OPTIONS and isinstance(k.value, ast.Constant) for k in decorator.keywords)
    return dotted(decorator.func) == DECORATOR and options and not decorator.args


def field_values(part: ast.stmt, dotted: Dotted) -> list[ast.expr]:
    """What a `rows: int = field(default=1)` is given, such as its default; empty for another statement."""
    value = part.value if isinstance(part, ast.AnnAssign) else None
    if not isinstance(value, ast.Call) or dotted(value.func) != FIELD_OF_ONE or value.args:
        return []
    known = all(keyword.arg in _FIELD_OPTIONS for keyword in value.keywords)
    return [keyword.value for keyword in value.keywords] if known else []


def named_fields(value: ast.expr, dotted: Dotted) -> list[str]:
    """The fields of a `namedtuple("Config", ["BLOCK", "warps"])` that is written out; else none."""
    if not isinstance(value, ast.Call) or dotted(value.func) != NAMED_TUPLE or len(value.args) != 2:
        return []
    name, given = value.args
    parts = [name, *(given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if len(texts) < len(parts) or any(keyword.arg != "defaults" for keyword in value.keywords):
        return []
    return " ".join(texts[1:]).replace(",", " ").split()
