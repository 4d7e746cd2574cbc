"""Audit calls: whose kernels wrote the outputs, and into whose memory (INTEGRITY L3). Not timed.

While a replaced region runs, every allocation becomes a block between two guard zones (blocks.py); what its
kernels are given is noted; afterwards each output must be a block that a kernel of the candidate was given, a
constant fill, a copy of such a block, or a view of an argument. Computing operators are noted as the gate
notes them; its dispatch key and a dispatch mode cannot be on at once, so here the mode does it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from passagent.evaluator.guards.blocks import Block, Blocks, start_of
from passagent.evaluator.guards.gate import Gate, computes, plain
from passagent.evaluator.guards.launches import observed
from passagent.evaluator.mode import Mode

_EMPTY = {"empty", "empty_strided", "empty_like", "empty_permuted", "new_empty", "new_empty_strided"}
_FILLED = {
    "zeros",
    "zeros_like",
    "new_zeros",
    "ones",
    "ones_like",
    "new_ones",
    "full",
    "full_like",
    "new_full",
}
_COPIED = {"clone", "_to_copy"}


class Audit(Blocks):
    """Watches the replaced regions of audit calls."""

    def __init__(self, gate: Gate, root: Path) -> None:
        super().__init__(gate.found)
        self.gate, self._root = gate, f"{root}/"

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement function, audited at every call."""

        @functools.wraps(function)
        def audited(*args: Any) -> Any:
            first, before = len(self.blocks), self.gate.calls
            pointers: set[int] = set()
            with observed(pointers), _Watch(self):
                result = plain(function(*args))
            if any(value.is_cuda for value in _tensors(args)):
                torch.cuda.synchronize()
            if self.gate.calls == before:  # what an operator of torch computed is no block
                self._judge(function, args, result, self.blocks[first:], pointers)
            return result

        return audited

    def allocated(self, name: str, made: torch.Tensor, args: Any) -> torch.Tensor:
        """What an allocating or copying operator returned, moved into a block."""
        if name in _EMPTY:
            return self.block(made, "empty")
        origin = "filled" if name in _FILLED else start_of(args[0])
        return self.block(made, origin, made)

    def written(self, name: str, target: torch.Tensor, args: Any) -> None:
        """Note a fill of, or a copy into, the whole of a block."""
        block = _find(self.blocks, start_of(target))
        if block is not None:
            block.origin = start_of(args[1]) if name == "copy_" else "filled"
            block.copied = block.inside().clone() if name == "copy_" else None

    def _judge(
        self, function: Callable[..., Any], args: Any, result: Any, made: list[Block], pointers: set[int]
    ) -> None:
        given = [(start_of(value), value.untyped_storage().nbytes()) for value in _tensors(args)]
        for value in _outputs(result):
            if type(value) is not torch.Tensor or vars(value):
                message = f"returns a {type(value).__name__}; return tensors that torch's factories made"
                self._report("tensor_type", function, message)
            elif value.numel() == 0 or any(start <= start_of(value) <= start + size for start, size in given):
                continue
            else:
                self._judge_origin(function, value, made, pointers)

    def _judge_origin(
        self, function: Callable[..., Any], value: torch.Tensor, made: list[Block], pointers: set[int]
    ) -> None:
        block, is_copy = _find(made, start_of(value)), False
        for _ in made:  # a copy of a copy: as long as the chain can be
            if block is None or block.written_by(pointers) or not isinstance(block.origin, int):
                break
            is_copy, block = True, _find(made, block.origin)
        if block is not None and (block.written_by(pointers) or block.origin == "filled"):
            if block.copied is not None:
                copied = block.copied.view(value.dtype)
                self.note_copy(value, copied.as_strided(value.size(), value.stride(), value.storage_offset()))
            return
        if is_copy:
            message = (
                "an output is a copy that torch made of an input and no kernel changed; read the input in a "
                "kernel and write the output there"
            )
            self._report("delegated_copy", function, message)
        elif block is not None:
            message = (
                "no kernel was given an output's memory; every output is written by a kernel of the pass"
            )
            self._report("not_written", function, message)
        else:
            message = (
                "an output lies in memory from before this call, or torch.tensor filled it; allocate the "
                "outputs of each call anew (torch.empty) and write them in a kernel"
            )
            self._report("kept_buffer", function, message)

    def _report(self, rule: str, function: Callable[..., Any], message: str) -> None:
        code = getattr(function, "__code__", None)
        file = code.co_filename.removeprefix(self._root).removeprefix("pass_dir/") if code is not None else ""
        self.report(rule, message, file, code.co_firstlineno if code is not None else 0)


class _Watch(Mode):
    def __init__(self, audit: Audit) -> None:
        super().__init__()
        self.audit = audit

    def on_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note who computes, allocates and writes."""
        owner = self.audit.gate.owner(sys._getframe(1))
        if owner is None:  # Triton's own: the interpreter's copies, the autotuner's benchmark
            return func(*args, **kwargs)
        reason = computes(func, args, kwargs)
        if reason is not None:
            self.audit.gate.record(reason, owner)
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else ""
        if name in _EMPTY or name in _FILLED or name in _COPIED:
            return self.audit.allocated(name, result, args)
        if name in ("zero_", "fill_", "copy_"):
            self.audit.written(name, args[0], args)
        return result


def _find(blocks: list[Block], start: int) -> Block | None:
    return next((block for block in blocks if block.start == start), None)


def _outputs(result: Any) -> list[Any]:
    return (
        [item for part in result for item in _outputs(part)]
        if isinstance(result, (tuple, list))
        else [result]
    )


def _tensors(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [item for part in values for item in _tensors(part)] if isinstance(values, (tuple, list)) else []
