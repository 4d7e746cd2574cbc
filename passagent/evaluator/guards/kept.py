"""What a candidate's modules hold between calls: found by walking what their globals reach.

A table of constants may stay; a tensor that is new or different after calls on other values carries something
from one call to the next, in whatever container, closure, cache or iterator it is hidden. Plans of plain
numbers may stay too: once a subgraph was called they are made, and what changes with further calls of it
counts them, or knows the addresses that timed calls are given. Costs nothing while calls run.
"""

from __future__ import annotations

import gc
import logging
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from passagent.evaluator.guards.plans import MOST, TooMuch, globals_of, held_plans, namespaces
from passagent.evaluator.result import Violation

_PLAIN = (
    str, bytes, int, float, complex, type(None), torch.dtype, types.ModuleType, types.CodeType,
    logging.Logger,
)  # fmt: skip


class Kept:
    """What the modules of `package` hold: `remember` it, call, and ask what has `changed`."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._known: dict[tuple[int, int], torch.Tensor] = {}
        self._plans: dict[tuple[str, str], Any] = {}
        self._called: str | None = None

    def remember(self) -> None:
        """Take note of every tensor that is held now, and of its values."""
        with suppress(TooMuch):  # `changed` says so
            held = [_memory(tensor) for _, _, tensor in held_tensors(self.package)]
            self._known = {(memory.data_ptr(), memory.numel()): memory.clone() for memory in held}

    def settle(self, graph: str) -> None:
        """Take note of the plans if it was another subgraph than `graph` that was called before."""
        if graph != self._called:
            self._called = graph
            self.note()

    def note(self) -> None:
        """Take note of the plans."""
        with suppress(TooMuch):
            self._plans = held_plans(self.package)

    def changed(self) -> list[Violation]:
        """A violation for each tensor that is new or holds other values, and each plan that is another."""
        try:
            return self._changed()
        except TooMuch:
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
            memory = _memory(tensor)
            before = self._known.get((memory.data_ptr(), memory.numel()))
            if before is not None and before.equal(memory):
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
    skipped, seen = namespaces(), set[int]()
    for file, name, value in globals_of(package):
        for tensor in _reachable(value, package, skipped, seen):
            yield file, name, tensor


def _reachable(value: object, package: str, skipped: set[int], seen: set[int]) -> Iterator[torch.Tensor]:
    pending = [value]
    while pending:
        if len(seen) == MOST:
            raise TooMuch
        part = pending.pop()
        if id(part) in seen or id(part) in skipped or isinstance(part, _PLAIN):
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            yield part
        elif not isinstance(part, type) or part.__module__.split(".")[0] == package:
            pending += gc.get_referents(part)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that a tensor is a view of: what lies beside it can be kept too."""
    made = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return made.set_(tensor.untyped_storage())
