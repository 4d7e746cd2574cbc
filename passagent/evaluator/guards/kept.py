"""What a candidate's modules hold between calls: found by walking what their globals reach.

A table of constants may stay; a tensor that is new or different after calls on other values carries something
from one call to the next, in whatever container, closure, cache or iterator it is hidden. Plans of plain
numbers may stay too: once a subgraph was called they are made, and what changes with further calls of it
counts them, or knows the addresses that timed calls are given. Costs nothing while calls run.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from passagent.evaluator.result import Violation

_PLAIN = (str, bytes, int, float, complex, type(None), types.ModuleType, types.CodeType, torch.dtype)
_MOST = 200_000
"""Objects that are looked at: far more than a pass and its compiled kernels hold."""


_CONTAINERS = (dict, list, tuple, set, frozenset, types.FunctionType, types.CellType)
_CACHED = type(functools.cache(len))


class Kept:
    """What the modules of `package` hold: `remember` it, call, and ask what has `changed`."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._known: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
        self._plans: dict[tuple[str, str], Any] = {}
        self._called: str | None = None

    def remember(self) -> None:
        """Take note of every tensor that is held now, and of its values."""
        self._known = {_key(tensor): tensor.clone() for _, _, tensor in held_tensors(self.package)}

    def settle(self, graph: str) -> None:
        """Take note of the plans if it was another subgraph than `graph` that was called before."""
        if graph != self._called:
            self._called = graph
            self._plans = held_plans(self.package)

    def changed(self) -> list[Violation]:
        """A violation for each tensor that is new or holds other values, and each plan that is another."""
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
    """Of each global of the package's modules (file, name) the plain values in its containers and caches."""
    skipped, seen = _namespaces(), set[int]()
    return {
        (file, name): tuple(_plain(value, skipped, seen))
        for file, name, value in _globals(package)
        if isinstance(value, (*_CONTAINERS, _CACHED))
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


def _plain(value: object, skipped: set[int], seen: set[int]) -> Iterator[Any]:
    pending = [value]
    while pending and len(seen) < _MOST:
        part = pending.pop()
        if isinstance(part, (str, bytes, int, float, complex)):
            yield repr(part)
        elif isinstance(part, _CONTAINERS) and id(part) not in seen and id(part) not in skipped:
            seen.add(id(part))
            pending += gc.get_referents(part)
        elif isinstance(part, _CACHED):
            yield part.cache_info().currsize  # what it forgot it may learn again
        else:
            yield type(part).__name__, operator.length_hint(part, 0)


def _reachable(value: object, package: str, skipped: set[int], seen: set[int]) -> Iterator[torch.Tensor]:
    pending = [value]
    while pending and len(seen) < _MOST:
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
