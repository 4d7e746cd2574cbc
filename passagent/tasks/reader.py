"""Read a task from disk: PassNet's sample layout. Nothing on disk is executed, torch is not imported.

A task directory holds `graph_list.txt` (one path a line, relative to the directory); a subgraph directory
holds `model.py`, `weight_meta.py` and, where they exist, `input_meta.py`, `input_tensor_constraints.py`,
`graph_net.json` and `graph_hash.txt`.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from passagent.errors import TaskError, UsageError, closest
from passagent.tasks.examples import PREFIX, examples, locate
from passagent.tasks.meta import TensorMeta, read_meta

GRAPH_LIST = "graph_list.txt"
FILES = (
    "model.py",
    "weight_meta.py",
    "input_meta.py",
    "input_tensor_constraints.py",
    "graph_net.json",
    "graph_hash.txt",
)
"""The files of a subgraph that `Task.key` covers, in this order."""

ComputeOps = Literal["allowed", "library-only"]
COMPUTE_OPS: tuple[ComputeOps, ...] = get_args(ComputeOps)
ALLOWED = COMPUTE_OPS[0]


@dataclass(frozen=True)
class Subgraph:
    """One FX graph with its inputs' metadata."""

    name: str
    """Unique in its task: the directory's name, with as much of the path before it as that takes."""
    path: Path
    inputs: tuple[TensorMeta, ...]
    """In the order of forward's parameters."""
    source: str
    """The text of model.py."""
    dtype: str
    """The dtype of the first floating tensor that is an input, else of the first tensor, else `float32`."""
    graph_hash: str
    """The content of graph_hash.txt; empty if there is none."""

    @property
    def source_key(self) -> str:
        """sha256 of model.py."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @cached_property
    def compute_ops(self) -> ComputeOps:
        """Says if a pass may replace matrix products and convolutions (graph_net.json). Raises TaskError."""
        file = self.path / "graph_net.json"
        try:
            word = json.loads(read_text(file)).get("compute_ops", ALLOWED) if file.is_file() else ALLOWED
        except ValueError as error:
            raise TaskError(f"{file}: is not JSON: {error}") from error
        if word not in COMPUTE_OPS:
            raise TaskError(f"{file}: compute_ops is {word!r}; write {' or '.join(COMPUTE_OPS)}")
        return word  # type: ignore[no-any-return]

    @property
    def home(self) -> str:
        """The device type the subgraph was recorded on: `cpu` if all inputs were there, else `cuda`."""
        return "cpu" if self.inputs and all(meta.device.startswith("cpu") for meta in self.inputs) else "cuda"


@dataclass(frozen=True)
class Task:
    """One operator sequence in several shapes and dtypes."""

    name: str
    path: Path
    subgraphs: tuple[Subgraph, ...]

    @cached_property
    def key(self) -> str:
        """sha256 over the content of all subgraphs' files; equal for copies under other paths."""
        digests = []
        for subgraph in self.subgraphs:
            digest = hashlib.sha256()
            for name in FILES:
                file = subgraph.path / name
                content = file.read_bytes() if file.is_file() else b""
                digest.update(f"{name} {len(content)}\n".encode() + content)
            digests.append(digest.hexdigest())
        return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """Operator sequence of the first subgraph, such as `("add", "layer_norm")`, read from its source."""
        first = self.subgraphs[0]
        return operator_names(find_forward(first.source, first.path / "model.py"))


def load_task(path: str | Path) -> Task:
    """The task in directory `path` (or the one subgraph that `path` is), or a shipped one (`example:NAME`).

    Raises UsageError if there is no task at `path`, TaskError (naming file and line) if one is broken.
    """
    root = locate(path)
    places = subgraph_places(root)
    return Task(root.resolve().name, root, tuple(read_subgraph(place, name) for place, name in places))


def meant_by(missing: Path) -> str:
    """Say what a person may have meant by a path that is not there: a run, what is near, or what to give."""
    if re.fullmatch("last|[0-9a-f]{8}", str(missing)):
        return f"; a run's name is no task: passagent show {missing}, or resume {missing}"
    place = missing.parent
    directories = [path.name for path in place.iterdir() if path.is_dir()] if place.is_dir() else []
    near = closest(missing.name, [*directories, *(f"{PREFIX}{name}" for name in examples())])
    return near or f"; give a directory that holds {GRAPH_LIST} or model.py"


def subgraph_places(root: Path) -> list[tuple[Path, str]]:
    """Directory and name of each subgraph of the task at `root`, none of them read yet.

    Raises UsageError if there is no task, TaskError for a broken list.
    """
    if not root.is_dir():
        if root.exists():
            what = f"is a file, not a task directory; give a directory that holds {GRAPH_LIST} or model.py"
            raise UsageError(f"{root}: {what}")
        raise UsageError(f"{root}: no such directory{meant_by(root)}")
    listing = root / GRAPH_LIST
    if listing.is_file():
        return _listed(root, listing)
    if (root / "model.py").is_file():
        return [(root, root.resolve().name)]
    raise UsageError(f"{root}: holds neither {GRAPH_LIST} nor model.py; give a task or a subgraph directory")


def _listed(root: Path, listing: Path) -> list[tuple[Path, str]]:
    """Read a graph_list.txt. Raises TaskError."""
    entries = [
        (number, line.strip())
        for number, line in enumerate(read_text(listing).splitlines(), start=1)
        if line.strip()
    ]
    if not entries:
        raise TaskError(f"{listing}: lists no subgraph; write one subgraph directory a line")
    for number, line in entries:
        if not (root / line / "model.py").is_file():
            what = "holds no model.py" if (root / line).is_dir() else "no such directory"
            raise TaskError(f"{listing}:{number}: {line}: {what}; paths are relative to {root}")
    names = _names([line for _, line in entries])
    return [(root / line, name) for (_, line), name in zip(entries, names, strict=True)]


def _names(lines: list[str]) -> list[str]:
    """A short unique name for each listed path: its last part where that is unique, else its distinct tail.

    A path that is listed twice gets `#2`, `#3`, ... behind its name.
    """
    parts = [Path(line).parts for line in lines]
    common = 0
    while all(len(p) > common + 1 and p[common] == parts[0][common] for p in parts):
        common += 1
    last = [p[-1] for p in parts]
    names = [p[-1] if last.count(p[-1]) == 1 else "/".join(p[common:]) for p in parts]
    counts: dict[str, int] = {}
    for position, name in enumerate(names):
        counts[name] = counts.get(name, 0) + 1
        if counts[name] > 1:
            names[position] = f"{name}#{counts[name]}"
    return names


def read_subgraph(path: Path, name: str) -> Subgraph:
    """The subgraph in directory `path`. Raises TaskError."""
    file = path / "model.py"
    source = read_text(file)
    metas: dict[str, TensorMeta] = {}
    for meta_file in ("input_meta.py", "weight_meta.py"):
        if (path / meta_file).is_file():
            metas.update(read_meta(path / meta_file, read_text(path / meta_file)))
    inputs = []
    for parameter in parameters(find_forward(source, file), file):
        if parameter.arg not in metas:
            where = (
                "weight_meta.py"
                if (path / "weight_meta.py").is_file()
                else "a weight_meta.py (there is none)"
            )
            raise TaskError(f"{file}:{parameter.lineno}: forward's '{parameter.arg}' has no entry in {where}")
        inputs.append(metas[parameter.arg])
    hash_file = path / "graph_hash.txt"
    return Subgraph(
        name=name,
        path=path,
        inputs=tuple(inputs),
        source=source,
        dtype=_dtype(inputs),
        graph_hash=read_text(hash_file).strip() if hash_file.is_file() else "",
    )


def find_forward(source: str, file: Path) -> ast.FunctionDef:
    """The forward method of GraphModule in the text of a model.py. Raises TaskError."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error)
        raise TaskError(f"{file}:{line}: does not parse: {reason}") from error
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "GraphModule":
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward":
                    return method
            raise TaskError(f"{file}:{node.lineno}: class GraphModule has no method forward")
    raise TaskError(f"{file}: defines no class GraphModule(torch.nn.Module)")


def parameters(forward: ast.FunctionDef, file: Path) -> list[ast.arg]:
    """forward's parameters after self. Raises TaskError for *args, **kwargs and keyword-only ones."""
    arguments = forward.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        raise TaskError(f"{file}:{forward.lineno}: forward must name its inputs one by one, no * or **")
    return [*arguments.posonlyargs, *arguments.args][1:]


def read_text(file: Path) -> str:
    """The text of a file of the task. Raises TaskError."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise TaskError(f"{file}: cannot be read: {reason}") from error


def _dtype(inputs: list[TensorMeta]) -> str:
    floating = [meta.dtype for meta in inputs if meta.is_floating and not meta.is_python_scalar]
    tensors = [meta.dtype for meta in inputs if not meta.is_python_scalar]
    return (floating or tensors or ["float32"])[0]


BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.MatMult: "matmul", ast.BitAnd: "and_", ast.BitOr: "or_",
    ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift",
}  # fmt: skip
COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert", ast.Not: "not_"}
_BUILTINS = {"device", "slice", "int", "float", "bool"}
"""Plain calls that compute nothing on tensors; the methods of the same name do."""


def operator_names(forward: ast.FunctionDef) -> tuple[str, ...]:
    """In the order of execution: `silu` for a function or method, `add`, `iadd`, `getitem`, `setitem`."""
    names: list[str] = []
    for statement in forward.body:
        _statement(statement, names)
    return tuple(names)


def _statement(statement: ast.stmt, names: list[str]) -> None:
    match statement:
        case ast.Assign():
            _expression(statement.value, names)
            if isinstance(statement.targets[0], ast.Subscript):
                names.append("setitem")
        case ast.AugAssign():
            _expression(statement.value, names)
            names.append("i" + BINARY[type(statement.op)].rstrip("_"))
        case ast.Expr() | ast.Return() if statement.value is not None:
            _expression(statement.value, names)


def _expression(node: ast.AST, names: list[str]) -> None:
    for child in ast.iter_child_nodes(node):
        _expression(child, names)
    match node:
        case ast.Call(func=ast.Name(id=name)) if name not in _BUILTINS:
            names.append(name)
        case ast.Call(func=ast.Attribute(attr=name)) if name != "device":
            names.append(name)
        case ast.BinOp() if not _constant(node):
            names.append(BINARY[type(node.op)])
        case ast.UnaryOp() if not _constant(node):
            names.append(UNARY[type(node.op)])
        case ast.Compare():
            names.append(COMPARE.get(type(node.ops[0]), "is_"))
        case ast.Subscript():
            names.append("getitem")


def _constant(node: ast.AST) -> bool:
    """Only numbers: `-1`, `2 * 3`."""
    return not any(isinstance(child, ast.Name | ast.Call) for child in ast.walk(node))
