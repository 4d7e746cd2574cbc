"""The metadata of inputs in GraphNet's form, written, and read without executing the files."""

from __future__ import annotations

import ast
import dataclasses
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passagent.errors import TaskError

DTYPES = {
    "float32", "float64", "float16", "bfloat16", "complex32", "complex64", "complex128",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
}  # fmt: skip
_ALIASES = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64",
    "short": "int16", "cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32",
}  # fmt: skip
PYTHON_SCALARS = {"int", "float"}
"""A dtype written without `torch.`: the input is a Python number, its value in `data`."""
LIMIT = 1e30
"""From this size on a value is a limit, such as a mask adds: it stays as it is, and no mean counts it."""


@dataclass(frozen=True)
class TensorMeta:
    """One input as recorded."""

    name: str
    """forward's parameter."""
    original_name: str
    """Its name in the model it was cut from, such as `..._buffers_running_var_`."""
    shape: tuple[int, ...]
    dtype: str
    """Without `torch.`; `int` or `float` for a Python number."""
    device: str
    mean: float | None = None
    std: float | None = None
    min_val: float | None = None
    max_val: float | None = None
    data: tuple[Any, ...] | int | float | bool | None = None
    """The literal values, flat or nested, of lists or tuples; None if only statistics were recorded."""
    levels: tuple[float, ...] | None = None
    """The few values that a float input holds, such as 0 and -inf of a mask that is added."""
    stride: tuple[int, ...] | None = None
    """In elements; None: contiguous. The evaluator draws its inputs contiguous all the same."""
    requires_grad: bool = False
    role: str = ""
    """The use that the graph makes of it (uses.py; no file holds it): `positive`, `mask`, `index`, `rising`
    for indices that rise within a row, or `any` number of its dtype. `recorded`: nothing is drawn beyond what
    was recorded."""

    def __post_init__(self) -> None:
        """Make tuples of lists: a task is a key of what was made of it."""
        object.__setattr__(self, "data", _hashable(self.data))

    @property
    def is_python_scalar(self) -> bool:
        """A Python number and not a tensor."""
        return self.dtype in PYTHON_SCALARS

    @property
    def is_floating(self) -> bool:
        """A real floating dtype."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def is_integer(self) -> bool:
        """A tensor of integers, bools not included."""
        return self.dtype.startswith(("int", "uint")) and not self.is_python_scalar

    @property
    def is_variance(self) -> bool:
        """A batch norm's running variance, by its use or its name in the model."""
        return self.role == "positive" or "running_var" in self.original_name

    @property
    def is_parameter(self) -> bool:
        """A module's parameter or buffer, by its name in the model."""
        return "_parameters_" in self.original_name or "_buffers_" in self.original_name

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor, by the dtype's name; without torch."""
        bits = re.search(r"\d+", self.dtype)
        return self.numel * (int(bits[0]) // 8 if bits else 1)


def parse(source: str, file: Path) -> ast.Module:
    """The syntax tree of a task's file. Raises TaskError."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line, reason = getattr(error, "lineno", None) or 1, getattr(error, "msg", None) or str(error)
        raise TaskError(f"{file}:{line}: does not parse: {reason}") from error


def read_meta(file: Path, source: str) -> dict[str, TensorMeta]:
    """Every tensor of a meta file by its `name`. Raises TaskError with file and line.

    A missing optional field (`original_name`, `device`, statistics, `data`) is None or its plain default.
    """
    metas = {}
    for node in parse(source, file).body:
        if isinstance(node, ast.ClassDef):
            meta = _tensor_meta(node, file)
            if meta.name in metas:
                raise TaskError(f"{file}:{node.lineno}: a second entry for '{meta.name}'")
            metas[meta.name] = meta
    return metas


def _tensor_meta(node: ast.ClassDef, file: Path) -> TensorMeta:
    fields, lines = {}, {}
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=key), *_], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=key), value=ast.expr() as value):
                pass
            case _:
                continue
        lines[key] = statement.lineno
        try:
            fields[key] = literal(value)
        except ValueError as error:
            message = f"'{key}' is not a literal ({ast.unparse(value)[:60]})"
            raise TaskError(f"{file}:{statement.lineno}: {message}") from error

    def fail(key: str, message: str) -> TaskError:
        return TaskError(f"{file}:{lines.get(key, node.lineno)}: {node.name}: {message}")

    for key in ("name", "shape", "dtype"):
        if key not in fields:
            raise fail(key, f"has no '{key}'")
    if not isinstance(fields["name"], str):
        raise fail("name", "'name' must be a string: a parameter of forward")
    shape = fields["shape"]
    if not isinstance(shape, list | tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise fail("shape", f"'shape' must be a list of sizes, not {shape!r}")
    for key in ("mean", "std", "min_val", "max_val"):
        if not isinstance(fields.get(key), int | float | None):
            raise fail(key, f"'{key}' must be a number or None, not {fields[key]!r}")
    text = str(fields["dtype"])
    dtype, is_of_torch = text.removeprefix("torch."), text.startswith("torch.")
    recorded: dict[str, Any] = {key: fields.get(key) for key in ("mean", "std", "min_val", "max_val", "data")}
    meta = TensorMeta(
        name=fields["name"],
        original_name=str(fields.get("original_name") or fields["name"]),
        shape=tuple(shape),
        dtype=_ALIASES.get(dtype, dtype) if is_of_torch else dtype,
        device=str(fields.get("device") or "cuda:0"),
        **recorded,
        levels=tuple(fields["levels"]) if fields.get("levels") else None,
        stride=tuple(fields["stride"]) if fields.get("stride") is not None else None,
        requires_grad=bool(fields.get("requires_grad")),
    )
    if meta.stride is not None and len(meta.stride) != len(meta.shape):
        raise fail("stride", f"'stride' has {len(meta.stride)} numbers, shape {list(shape)} has {len(shape)}")
    if meta.dtype not in DTYPES | PYTHON_SCALARS:
        raise fail("dtype", f'unknown dtype {fields["dtype"]!r}; write such as "torch.float32"')
    size = meta.numel if meta.data is None else len(flat(meta.data))
    if size != meta.numel:
        raise fail("data", f"'data' has {size} values, shape {list(shape)} asks for {meta.numel}")
    if meta.is_python_scalar and meta.data is None:
        raise fail("dtype", f"a Python {meta.dtype} needs its value in 'data'")
    if meta.min_val is not None and meta.max_val is not None and meta.min_val > meta.max_val:
        raise fail("max_val", f"min_val {meta.min_val} is over max_val {meta.max_val}")
    return meta


def flat(data: Any) -> list[Any]:
    """The values of a nested list, or of a single value, in order."""
    return [value for item in data for value in flat(item)] if isinstance(data, list | tuple) else [data]


def _hashable(data: Any) -> Any:
    return tuple(map(_hashable, data)) if isinstance(data, list | tuple) else data


def literal(node: ast.expr) -> Any:
    """The value of a literal expression, `nan`, `inf`, `float("-inf")`, `torch.half`.

    Raises ValueError for anything else.
    """
    match node:
        case ast.List() | ast.Tuple():
            return [literal(element) for element in node.elts]
        case ast.Name(id="nan" | "inf"):
            return float(node.id)
        case ast.Attribute(attr="nan" | "inf"):
            return float(node.attr)
        case ast.Attribute(value=ast.Name(id="torch")):
            return f"torch.{node.attr}"
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=value)]):
            return float(value)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.USub()):
            return -literal(node.operand)
        case _:
            return ast.literal_eval(node)


def meta_source(metas: Iterable[TensorMeta]) -> str:
    """The text of a weight_meta.py that read_meta reads back as the same metadata."""
    return "\n\n\n".join(map(_class, metas)) + "\n"


def _class(meta: TensorMeta) -> str:
    name = re.sub(r"\W", "_", meta.original_name)
    dtype = meta.dtype if meta.is_python_scalar else f"torch.{meta.dtype}"
    fields = {
        field.name: value
        for field in dataclasses.fields(meta)
        if (value := getattr(meta, field.name)) != field.default or field.name in ("mean", "std")
    }
    fields = {key: value for key, value in fields.items() if key != "role"} | {"dtype": dtype}
    lines = [f"\t{key} = {_literal(value)}" for key, value in fields.items()]
    return "\n".join([f"class Program_weight_tensor_meta_{name}:", *lines])


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f'"{value}"' if isinstance(value, str) else repr(value)
