"""What a candidate's modules hold between calls: found by walking what their globals reach.

A table of constants may stay; a tensor that is new or different after calls on other values carries something
from one call to the next, in whatever container, closure, cache or iterator it is hidden. Plans of plain
numbers may stay too: once a subgraph was called they are made, and what changes with further calls of it
counts them, or knows the addresses that timed calls are given. Costs nothing while calls run.
"""

from __future__ import annotations

import functools
import gc
import logging
import operator
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import Any

import torch

from passagent.evaluator.result import Violation

_OPAQUE = (types.ModuleType, types.CodeType, logging.Logger)
_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, *_OPAQUE)
_VALUES: tuple[Any, ...] = (bool, str, bytes, int, float, complex)
_MOST = 200_000
"""Objects that are looked at, at most: far more than a pass and its compiled kernels hold."""
_LANGUAGE = {
    "builtins", "collections", "contextlib", "dataclasses", "enum", "functools", "itertools", "operator",
    "types",
}  # fmt: skip
"""Whose objects are looked into for plans: containers, views and iterators, functions, bound methods."""
_OF_TRITON = {"Autotuner": ("configs", "fn"), "Heuristics": ("values", "fn")} | dict.fromkeys(
    ("Config", "TensorDescriptor"), ("__dict__",)
)
"""Of its objects, attributes whose containers a candidate can reach."""
_CACHED = type(functools.cache(len))


class _TooMuch(Exception):
    """More than _MOST objects are held: what changes among them is not told."""


class Kept:
    """What the modules of `package` hold: `remember` it, call, and ask what has `changed`."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._known: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
        self._plans: dict[tuple[str, str], Any] = {}
        self._called: str | None = None

    def remember(self) -> None:
        """Take note of every tensor that is held now, and of its values."""
        with suppress(_TooMuch):  # `changed` says so
            self._known = {_key(tensor): tensor.clone() for _, _, tensor in held_tensors(self.package)}

    def settle(self, graph: str) -> None:
        """Take note of the plans if it was another subgraph than `graph` that was called before."""
        if graph != self._called:
            self._called = graph
            self.note()

    def note(self) -> None:
        """Take note of the plans."""
        with suppress(_TooMuch):
            self._plans = held_plans(self.package)

    def changed(self) -> list[Violation]:
        """A violation for each tensor that is new or holds other values, and each plan that is another."""
        try:
            return self._changed()
        except _TooMuch:
            message = (
                "holds too much for telling what it keeps from call to call; keep plans of plain numbers"
            )
            return [Violation(rule="call_state", file="", line=0, message=message)]

    def _changed(self) -> list[Violation]:
        found: list[Violation] = []
        for (file, name), held in held_plans(self.package).items():
            if self._called is not None and self._plans.get((file, name)) != held:
                message = (
                    f"`{name}` changes with every call; what a call does may depend on its arguments only, "
                    "and not on their addresses"
                )
                found.append(Violation(rule="call_state", file=file, line=1, message=message))
        for file, name, tensor in held_tensors(self.package):
            before = self._known.get(_key(tensor))
            if before is not None and _bytes(before).equal(_bytes(tensor)):
                continue
            message = (
                f"`{name}` keeps a tensor from one call to the next; allocate in every call, and keep plans "
                "of plain numbers only"
            )
            violation = Violation(rule="kept_tensor", file=file, line=1, message=message)
            if violation not in found:
                found.append(violation)
        return found


def held_tensors(package: str) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Every tensor reachable from a global of the package's modules: file, the global's name, the tensor."""
    skipped, seen = _namespaces(), set[int]()
    for file, name, value in _globals(package):
        for tensor in _reachable(value, package, skipped, seen):
            yield file, name, tensor


def held_plans(package: str) -> dict[tuple[str, str], Any]:
    """Of each global of the package's modules (file, name) the plain values that it leads to."""
    skipped, seen = _namespaces(), set[int]()
    return {
        (file, name): tuple(_plain(value, package, skipped, seen))
        for file, name, value in _globals(package)
        if _holds(value, package)
    }


def _globals(package: str) -> Iterator[tuple[str, str, Any]]:
    for module_name, module in sorted(sys.modules.items()):
        if module_name.split(".")[0] != package or not isinstance(module, types.ModuleType):
            continue
        file = f"{module_name.partition('.')[2].replace('.', '/') or '__init__'}.py"
        for name, value in sorted(vars(module).items()):
            if not name.startswith("__"):
                yield file, name, value


def _namespaces() -> set[int]:
    modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    return {id(vars(module)) for module in modules}


def _holds(value: object, package: str) -> bool:
    """What can hold plans: an object of the language's, a class of the package's or an instance of one; and
    what Triton is told of a kernel.
    """
    kind = value if isinstance(value, type) else type(value)
    if _is_of_triton(value) or any(_home(base) == package for base in kind.__mro__):
        return True
    return _home(kind) in _LANGUAGE and not isinstance(value, (type, *_OPAQUE))


def _home(kind: type) -> str:
    """The package that a class says it is of: one that is derived from a candidate's may say any."""
    return kind.__module__.split(".")[0]


def _plain(value: object, package: str, skipped: set[int], seen: set[int]) -> Iterator[Any]:
    pending = [value]
    while pending:
        if len(seen) == _MOST:
            raise _TooMuch
        part = pending.pop()
        value_of = next((kind for kind in _VALUES if isinstance(part, kind)), None)
        if value_of is not None:
            yield value_of.__repr__(part)  # not by what a class of the package's says of itself
        if value_of is type(part):
            continue
        if isinstance(part, Iterator):
            yield object()  # equal to nothing: how far it has come cannot be told of all
        elif isinstance(part, _CACHED):
            if id(part) not in seen:
                seen.add(id(part))
                yield part.cache_info().currsize
                learnt = [tuple(_plain(one, package, skipped, seen)) for one in _learnt(part)]
                yield tuple(sorted(learnt, key=repr))  # in which order it was asked does not matter
        elif _holds(part, package) and id(part) not in seen and id(part) not in skipped:
            seen.add(id(part))
            if _is_of_triton(part):
                pending += [getattr(part, name) for name in _OF_TRITON[type(part).__name__]]
            else:
                pending += gc.get_referents(part)
            yield operator.length_hint(part, 0)
        else:
            yield type(part).__name__, operator.length_hint(part, 0)


def _is_of_triton(value: object) -> bool:
    kind = type(value)  # an enumeration may say that it is Triton's
    return _home(kind) == "triton" and kind.__name__ in _OF_TRITON and not issubclass(kind, Enum)


def _learnt(cached: object) -> Iterator[Any]:
    """What a cached function leads to: arguments and results that it knows, itself."""
    for part in gc.get_referents(cached):
        if isinstance(part, dict):
            yield from part.keys()
            yield from part.values()
        else:
            yield part


def _reachable(value: object, package: str, skipped: set[int], seen: set[int]) -> Iterator[torch.Tensor]:
    pending = [value]
    while pending:
        if len(seen) == _MOST:
            raise _TooMuch
        part = pending.pop()
        if id(part) in seen or id(part) in skipped or isinstance(part, _PLAIN):
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            yield part
        elif not isinstance(part, type) or part.__module__.split(".")[0] == package:
            pending += gc.get_referents(part)


def _key(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
