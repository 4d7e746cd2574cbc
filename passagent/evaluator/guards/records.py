"""Records: classes that give names to numbers, for configurations and plans.

Their fields are read as attributes of any value, as the text does not show what a value is. So a field must
have a name that no tensor, no kernel and no other value has an attribute of, and so must
a method or property. What an object holds is stored when it is made.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

BASES = [
    [], ["enum.Enum"], ["enum.IntEnum"], ["enum.StrEnum"], ["builtins.int", "enum.Enum"],
    ["builtins.str", "enum.Enum"], ["typing.NamedTuple"], ["typing.TypedDict"],
]  # fmt: skip
"""What a record may be derived from."""
METHODS = {"_asdict", "_fields", "_replace"}
"""Of a NamedTuple; no tensor and no kernel has one of that name."""
DECORATOR = "dataclasses.dataclass"
FIELD_OF_ONE = "dataclasses.field"
_FIELD_OPTIONS = {"compare", "default", "default_factory", "init", "kw_only", "repr"}
"""Not metadata, which is a dict that outlives every call."""
OPTIONS = {"eq", "frozen", "kw_only", "order", "repr", "slots"}
NAMED_TUPLE = "collections.namedtuple"
MESSAGE = (
    "a class may name constants and fields, with static methods, and methods that have the name of a field "
    "(`grid`, `block_size`) or are __init__ or __call__: no other base but NamedTuple or Enum, no other "
    "decorator but dataclass; write functions at the top of the file"
)
_WORDS = (
    "acc|align|b|c|d|h|s|v|w|aligned|alpha|axis|batch|batches|beta|bias|big|block|blocks|bytes|cap|causal|channels?|"
    "choices?|chunks?|cols?|columns?|config|contiguous|count|ctas|depth|dim|dims|div|dtypes|elem|"
    "elements|elems|end|eps|even|exact|extra|factor|fast|features?|flags?|flat|for|full|fused|grid|"
    "groups?|has|heads?|height|hidden|high|hw|impl|in|index|inner|input|inputs|int32|is|items|iters|k|"
    "kernel|kind|kv|label|lanes|large|last|launch|layout|left|len|length|limits?|loops?|low|m|mask|masked|max|"
    "method|min|modes?|multi|n|name|needs|num|odd|of|offsets?|on|ops?|options?|or|order|out|outer|"
    "output|outputs|pad|padded|page|path|parts|per|persistent|pipeline|pixels?|plan|pointwise|precision|"
    "programs?|range|reduction|right|route|rows?|scale|schedule|seq|shapes?|single|sizes?|small|smem|"
    "sms?|space|span|splits?|stages?|start|steps?|stop|strategy|streams|stride|strided|strides|tail|"
    "tall|target|threads?|threshold|tiles?|tokens|total|tuned|units?|unroll|unrolled|use|variant|vec|"
    "vectorized|vectors?|version|warps?|waves?|weights?|wide|width|with|without|words|x|y|z|[0-9]+"
)
_TAKEN = (
    "dim_order|div|inner|is_block|is_int32|kernel|max|min|mode|outer|tile|version"
    "|KIND|SIGNEDNESS|[A-Z_]*_TYPES"
)
"""Attributes that tensors, kernels or dtypes have: those of Triton's dtypes are lists that outlive a call."""
FIELD = re.compile(f"(?!({_TAKEN})$)([A-Z][A-Z0-9_]+|({_WORDS})(_({_WORDS}))*)")

MAKING = {"__init__", "__post_init__"}
"""Methods that Python calls with a new object: nothing else may name them."""
_CALLED = MAKING | {"__call__"}

Dotted = Callable[[ast.expr], str | None]
"""The full name that an expression stands for."""


def is_record(node: ast.ClassDef, dotted: Dotted) -> bool:
    """Whether bases and decorators of a class make it a record, or leave it a namespace of constants."""
    bases = [dotted(base) for base in node.bases]
    total = bases == ["typing.TypedDict"] and all(
        k.arg == "total" and isinstance(k.value, ast.Constant) for k in node.keywords
    )
    plain = bases in BASES and (total or not node.keywords)
    return plain and all(_is_dataclass(decorator, dotted) for decorator in node.decorator_list)


def instance(node: ast.FunctionDef) -> str | None:
    """What a method that a record may have calls its instance; None for any other function."""
    given = [*node.args.posonlyargs, *node.args.args]
    plain = [d.id if isinstance(d, ast.Name) else "" for d in node.decorator_list] in ([], ["property"])
    named = FIELD.fullmatch(node.name) or (node.name in _CALLED and not node.decorator_list)
    if not (given and plain and named):
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
