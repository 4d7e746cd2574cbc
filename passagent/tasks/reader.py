"""Read a task from disk: PassNet's sample layout. Nothing on disk is executed, torch is not imported.

A task directory holds `graph_list.txt` (one path a line, relative to the directory); a subgraph directory
holds `model.py`, `weight_meta.py` and, where they exist, `input_meta.py`, `input_tensor_constraints.py`,
`graph_net.json` and `graph_hash.txt`.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from passagent.errors import MachineFault, PassagentError, TaskError, UsageError, closest, nearest
from passagent.sandbox.machine_memory import available_bytes, memory_bytes
from passagent.tasks import resources
from passagent.tasks.meta import TensorMeta, parse, read_meta

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
LibraryRule = Literal["all", "none"]
"""Operators of torch that a pass may call: `all` that compute without a state, or `none` but convolutions."""


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

    @property
    def compute_ops(self) -> ComputeOps:
        """Says if a pass may replace matrix products and convolutions. Raises TaskError."""
        return self._said("compute_ops", COMPUTE_OPS)  # type: ignore[no-any-return]

    @property
    def library(self) -> LibraryRule:
        """Says which operators of torch a pass may call; `none` where nothing is said. Raises TaskError."""
        return self._said("library", ("none", "all"))  # type: ignore[no-any-return]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Return what graph_net.json says; empty where there is none. Raises TaskError."""
        file = self.path / "graph_net.json"
        try:
            return dict(json.loads(read_text(file))) if file.is_file() else {}
        except (ValueError, TypeError) as error:
            raise TaskError(f"{file}: is no JSON object: {error}") from error

    def _said(self, key: str, words: tuple[str, ...]) -> Any:
        """The word of graph_net.json under `key`; the first where there is none."""
        word = self.facts.get(key, words[0])
        if word not in words:
            raise TaskError(f"{self.path / 'graph_net.json'}: {key} is {word!r}; write {' or '.join(words)}")
        return word

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


def library_rule(chosen: LibraryRule | None, subgraphs: Iterable[Subgraph]) -> LibraryRule:
    """The chosen rule (`evaluator.library`), else the subgraphs': `all` where each of them says so."""
    return chosen or ("all" if all(subgraph.library == "all" for subgraph in subgraphs) else "none")


PREFIX = "example:"
"""`example:NAME` is a task that passagent ships, wherever a command takes a task."""


def examples() -> dict[str, Path]:
    """Name and directory of each example task; a user's resource directory may hold others."""
    lists = resources.glob(f"examples/tasks/*/{GRAPH_LIST}")
    return {PurePosixPath(name).parent.name: path.parent for name, path in lists}


def locate(task: str | Path) -> Path:
    """The directory that `task` names: a path as it is, or `example:NAME`.

    Raises UsageError for a name that no example has.
    """
    word = str(task)
    if not word.startswith(PREFIX):
        return Path(task)
    places, name = examples(), word.removeprefix(PREFIX)
    if name not in places:
        raise UsageError(f"{word}: no such example{nearest(name, list(places))}")
    return places[name]


def load_task(path: str | Path) -> Task:
    """The task in directory `path` (or the one subgraph that `path` is), or a shipped one (`example:NAME`).

    Raises UsageError if there is no task at `path`, TaskError (naming file and line) if one is broken.
    """
    root = locate(path)
    places = subgraph_places(root)
    return Task(root.resolve().name, root, tuple(read_subgraph(place, name) for place, name in places))


def load_tasks(paths: Iterable[Path]) -> tuple[list[Task], dict[Path, str]]:
    """Load tasks; with them the directories of those that cannot be loaded, and why."""
    tasks, broken = list[Task](), dict[Path, str]()
    for path in paths:
        try:
            tasks.append(load_task(path))
        except PassagentError as error:
            broken[path] = str(error)
    return tasks, broken


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
    """Read a graph_list.txt: each path with a short unique name. Raises TaskError.

    The name is the path's last part where that is unique, else its distinct tail. A path that is listed twice
    gets `#2`, `#3`, ... behind its name.
    """
    lines = enumerate(read_text(listing).splitlines(), start=1)
    entries = [(number, Path(line.strip())) for number, line in lines if line.strip()]
    if not entries:
        raise TaskError(f"{listing}: lists no subgraph; write one subgraph directory a line")
    for number, path in entries:
        if not (root / path / "model.py").is_file():
            what = "holds no model.py" if (root / path).is_dir() else "no such directory"
            raise TaskError(f"{listing}:{number}: {path}: {what}; paths are relative to {root}")
    levels = zip(*(path.parent.parts for _, path in entries), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda parts: len({*parts}) == 1, levels))
    times, names = Counter(path.name for _, path in entries), Counter[str]()
    places = []
    for _, path in entries:
        name = path.name if times[path.name] == 1 else "/".join(path.parts[common:])
        names[name] += 1
        places.append((root / path, name if names[name] == 1 else f"{name}#{names[name]}"))
    return places


def write_list(root: Path, places: Iterable[str | Path]) -> None:
    """Write the graph_list.txt of the task at `root`, with the directories of its subgraphs."""
    (root / GRAPH_LIST).write_text("".join(f"{place}\n" for place in places), encoding="utf-8")


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
            place = f"{file}:{parameter.lineno}"
            raise TaskError(f"{place}: forward's '{parameter.arg}' has no entry in weight_meta.py")
        inputs.append(metas[parameter.arg])
    floating = [meta.dtype for meta in inputs if meta.is_floating and not meta.is_python_scalar]
    tensors = [meta.dtype for meta in inputs if not meta.is_python_scalar]
    dtype, hash_file = (floating or tensors or ["float32"])[0], path / "graph_hash.txt"
    graph_hash = read_text(hash_file).strip() if hash_file.is_file() else ""
    return Subgraph(name, path, tuple(inputs), source, dtype, graph_hash)


def input_bytes(subgraph: Subgraph) -> int:
    """Bytes of a subgraph's inputs, by their metadata; nothing is allocated."""
    return sum(meta.nbytes for meta in subgraph.inputs if not meta.is_python_scalar)


def check_room(subgraph: Subgraph, copies: int, free_bytes: int | None = None) -> None:
    """Raise TaskError if so many copies of a subgraph's inputs are more than this machine's memory.

    Raises MachineFault if they are more than is free (`free_bytes`; default: now). Eager's outputs and what
    it computes on the way come on top, so that what passes here may still find no memory.
    """
    free = available_bytes() if free_bytes is None else free_bytes
    if needs := _lacking(subgraph, copies, free):
        check_room_on("this machine", memory_bytes(), subgraph, copies)
        raise MachineFault(f"{needs}, {_gib(free)} are free; end other programs or use a smaller task")


def check_room_on(what: str, there: int, subgraph: Subgraph, copies: int) -> None:
    """Raise TaskError if so many copies of a subgraph's inputs are more than all memory of `what`."""
    if needs := _lacking(subgraph, copies, there):
        raise TaskError(f"{needs}, {what} has {_gib(there)}; use a smaller task or a larger machine")


def _lacking(subgraph: Subgraph, copies: int, there: int) -> str:
    """The memory that so many copies need, in words, if it is more than `there` bytes; else an empty text."""
    needed = copies * input_bytes(subgraph)
    text = f"{subgraph.path}: needs {_gib(needed)} of memory for {copies} copies of its inputs"
    return text if needed > there else ""


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def find_forward(source: str, file: Path) -> ast.FunctionDef:
    """The forward method of GraphModule in the text of a model.py. Raises TaskError."""
    for node in parse(source, file).body:
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


_OPERATORS = {
    "Mult": "mul", "Div": "truediv", "MatMult": "matmul", "BitAnd": "and_", "BitOr": "or_", "BitXor": "xor",
    "USub": "neg", "UAdd": "pos", "Not": "not_", "LtE": "le", "GtE": "ge", "NotEq": "ne", "Is": "is_",
    "IsNot": "is_", "In": "is_", "NotIn": "is_",
}  # fmt: skip
"""Names in Python's operator module of those that ast calls otherwise."""
_BUILTINS = {"device", "slice", "int", "float", "bool"}
"""Plain calls that compute nothing on tensors; the methods of the same name do."""


def operator_names(forward: ast.FunctionDef) -> tuple[str, ...]:
    """In the order of execution: `silu` for a function or method, `add`, `iadd`, `getitem`, `setitem`."""
    names: list[str] = []
    for statement in forward.body:
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Return) and statement.value:
            _add_operators(statement.value, names)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
            names.append("setitem")
        elif isinstance(statement, ast.AugAssign):
            names.append("i" + _operator_word(statement.op).rstrip("_"))
    return tuple(names)


def _add_operators(node: ast.AST, names: list[str]) -> None:
    for child in ast.iter_child_nodes(node):
        _add_operators(child, names)
    match node:
        case ast.Call(func=ast.Name(id=name)) if name not in _BUILTINS:
            names.append(name)
        case ast.Call(func=ast.Attribute(attr=name)) if name != "device":
            names.append(name)
        case ast.BinOp(op=operator) | ast.UnaryOp(op=operator) if any(
            isinstance(child, ast.Name | ast.Call)
            for child in ast.walk(node)  # no number, as -1 is
        ):
            names.append(_operator_word(operator))
        case ast.Compare(ops=[operator, *_]):
            names.append(_operator_word(operator))
        case ast.Subscript():
            names.append("getitem")


def _operator_word(operator: ast.AST) -> str:
    name = type(operator).__name__
    return _OPERATORS.get(name, name.lower())
