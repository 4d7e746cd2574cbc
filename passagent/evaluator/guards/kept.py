"""Tensors that a candidate's modules hold between calls: found by walking what their globals reach.

A table of constants may stay; what is new or different after calls on other values carries something from
one call to the next, in whatever container, closure, cache or iterator it is hidden. Costs nothing while
calls run.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator

import torch

from passagent.evaluator.result import Violation

_PLAIN = (str, bytes, int, float, complex, type(None), types.ModuleType, types.CodeType, torch.dtype)
_MOST = 200_000
"""Objects that are looked at: far more than a pass and its compiled kernels hold."""


class Kept:
    """What the modules of `package` hold: `remember` it, call, and ask what has `changed`."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._known: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}

    def remember(self) -> None:
        """Take note of every tensor that is held now, and of its values."""
        self._known = {_key(tensor): tensor.clone() for _, _, tensor in held_tensors(self.package)}

    def changed(self) -> list[Violation]:
        """A violation for each tensor that was not held then, or held other values."""
        found: list[Violation] = []
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
    skipped = {
        id(vars(module)) for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)
    }
    seen: set[int] = set()
    for module_name, module in sorted(sys.modules.items()):
        if module_name.split(".")[0] != package or not isinstance(module, types.ModuleType):
            continue
        file = f"{module_name.partition('.')[2].replace('.', '/') or '__init__'}.py"
        for name, value in sorted(vars(module).items()):
            if name.startswith("__"):
                continue
            for tensor in _reachable(value, package, skipped, seen):
                yield file, name, tensor


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
