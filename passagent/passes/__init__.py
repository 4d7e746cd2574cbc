"""Passes that come with passagent: rewrites of a model's graph into operators of the library, a file each.

A file defines `pattern`, for other spellings also `pattern_NAME`, and `replacement`; where the rewrite is not
right for every match, `applies`. A user's own directory loads alike.
"""

from __future__ import annotations

import importlib.util
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from passagent.errors import UsageError
from passagent.evaluator.matching.pattern import PassLoadError, trace_pattern

SHIPPED = (
    "batch_norm_in_convolution", "gelu_epilogue", "three_linears", "two_linears", "patch_embedding",
    "channels_last", "attention_mask", "grouped_attention", "parameters_once",
)  # fmt: skip
"""Names of the shipped passes in the order in which they are applied."""


@dataclass(frozen=True)
class Rewrite:
    """A pass without kernels: what it finds in a graph, and the operators that take its place."""

    name: str
    patterns: tuple[fx.Graph, ...]
    """Spellings of what it finds, the most common one first; none: all that depends on parameters alone."""
    applies: Callable[..., bool | dict[str, Any]]
    """Takes by name what a match binds (fake tensors and literals): False where the rewrite is not right.

    If it has a parameter `known`, it is given the tensors that the graph computes of no input, with their
    values, by the pattern's parameters. A dict that it returns is given to the replacement, too.
    """
    replacement: Callable[..., Any]
    """Takes by name what a match binds, and returns what the pattern returns, perhaps with other strides."""
    file: Path


def shipped() -> list[Rewrite]:
    """The passes that come with passagent, in the order in which they are applied."""
    folder = Path(__file__).parent
    return [load(folder / f"{name}.py") for name in SHIPPED]


def load_directory(folder: Path) -> list[Rewrite]:
    """The passes of a user's directory by name; a file `_NAME.py` is none.

    Raises UsageError, also for a directory that is not there or holds no pass.
    """
    if folder.resolve() == Path(__file__).resolve().parent:
        return shipped()
    files = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")]
    if not files:
        raise UsageError(f"{folder}: holds no pass; write one as a file NAME.py there")
    return [load(path) for path in files]


def load(path: Path) -> Rewrite:
    """Import a pass file and trace its patterns. Raises UsageError with the file and what is wrong in it."""
    module = _imported(path)
    if getattr(module, "PREPARES", False):
        return Rewrite(path.stem, (), _always, _always, path)
    functions = {name: value for name, value in vars(module).items() if isinstance(value, types.FunctionType)}
    names = [name for name in functions if name == "pattern" or name.startswith("pattern_")]
    missing = [name for name in ("pattern", "replacement") if name not in functions]
    if missing:
        raise UsageError(f"{path}: defines no function {' and no function '.join(missing)}")
    applies = functions.get("applies", _always)
    for name in names:
        _check_parameters(path, functions[name], [functions["replacement"], applies])
    text = path.read_text(encoding="utf-8")
    try:
        patterns = tuple(trace_pattern(functions[name], text, str(path)) for name in names)
    except PassLoadError as error:
        raise UsageError(str(error)) from error
    return Rewrite(path.stem, patterns, applies, functions["replacement"], path)


def described(value: Any) -> Any:
    """Return dtype and shape in place of each tensor, and tuples in place of lists."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape)
    if isinstance(value, dict):
        return {name: described(part) for name, part in value.items()}
    return tuple(map(described, value)) if isinstance(value, tuple | list) else value


def _check_parameters(path: Path, pattern: types.FunctionType, others: list[Callable[..., Any]]) -> None:
    names = list(inspect.signature(pattern).parameters)
    for function in others:
        try:
            inspect.signature(function).bind(**dict.fromkeys(names))
        except TypeError as error:
            what = f"{function.__name__} must take what {pattern.__name__} takes ({', '.join(names)})"
            raise UsageError(f"{path}: {what}, and have defaults for others: {error}") from error


def _imported(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: is no Python file; a pass is a file NAME.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(f"{path}: does not import: {type(error).__name__}: {reason}") from error
    return module


def _always(**_bindings: Any) -> bool:
    return True
