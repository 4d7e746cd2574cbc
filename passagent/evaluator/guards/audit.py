"""Audit calls: whose kernels wrote the outputs, and into whose memory (INTEGRITY L3). Not timed.

While a replaced region runs, every allocation becomes a block between two guard zones; what its kernels are
given is noted; afterwards each output must be a block that a kernel of the candidate was given, a constant
fill, a copy of such a block, or a view of an argument. A block holds what the same block of the call before
held, as recycled memory does in timed calls, but for a run of other values: what a kernel leaves as it was is
wrong. Computing operators are noted as the gate notes them; its dispatch key and a dispatch mode cannot be on
at once, so here the mode does it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from passagent.evaluator.guards.gate import Gate, computes, plain
from passagent.evaluator.guards.launches import observed
from passagent.evaluator.guards.zones import ZONE, between_zones, fill_zones, ordinary_bytes, unpredictable
from passagent.evaluator.mode import Mode
from passagent.evaluator.result import Violation

_POISON = 0xFF
"""Bytes of NaN: in calls whose inputs tell a kernel that no time is measured."""
_EXCHANGED = 4
"""Of a block one part in so many holds other values than it held before."""
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


@dataclass
class Block:
    """Memory between guard zones; `origin` says what it holds."""

    raw: torch.Tensor
    start: int
    nbytes: int
    origin: str | int
    """`empty`, `filled`, or the address that it was copied from."""
    zones: torch.Tensor
    """What its guard zones were filled with."""
    dtype: torch.dtype
    copied: torch.Tensor | None = None
    """What torch copied into it, bytes: a kernel that leaves it so did not write it."""

    def inside(self) -> torch.Tensor:
        """The block's bytes."""
        return self.raw[ZONE : ZONE + self.nbytes]

    def written_by(self, pointers: set[int]) -> bool:
        """A kernel was given the block, and changed it if it held a copy."""
        given = any(self.start <= pointer < self.start + max(self.nbytes, 1) for pointer in pointers)
        return given and (self.copied is None or not torch.equal(self.inside(), self.copied))

    def overrun(self) -> bool:
        """Something was written beside the block."""
        return not torch.equal(torch.cat([self.raw[:ZONE], self.raw[-ZONE:]]), self.zones)


class Audit:
    """Watches the replaced regions of audit calls; `close` forgets the memory of the calls made so far."""

    def __init__(self, gate: Gate, root: Path) -> None:
        self.gate, self._root = gate, f"{root}/"
        self.blocks: list[Block] = []
        self._copies: dict[int, torch.Tensor] = {}
        self._before = self._first = 0
        """Where the blocks of the call before, and of this one, begin."""
        self._is_poisoned = False
        self._random = unpredictable()

    def begin(self, *, poisoned: bool = False) -> None:
        """A call begins: its blocks hold what those of the call before do; NaN if `poisoned`."""
        self._before, self._first = self._first, len(self.blocks)
        self._is_poisoned = poisoned

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

    def place(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of `values` (any strides; the copy is contiguous) in a block of its own."""
        return self._block(
            torch.empty(values.shape, dtype=values.dtype, device=values.device), "filled", values
        )

    def check_zones(self) -> None:
        """Report writes beside any block made so far."""
        if any(block.overrun() for block in self.blocks):
            message = (
                "a kernel writes outside of the tensors that it was given; mask its stores at the borders"
            )
            self._report("out_of_bounds", None, message)

    def copy_of(self, output: torch.Tensor) -> torch.Tensor | None:
        """What torch had copied to where a kernel then wrote an output; None if no copy was there."""
        copied = self._copies.get(_start(output))
        if copied is None or output.numel() == 0:
            return None
        values = copied.view(output.dtype)
        return values.as_strided(output.size(), output.stride(), output.storage_offset())

    def close(self) -> None:
        """Free the memory of the calls made so far; their outputs must not be used any more."""
        self._before = self._first = 0
        self.blocks.clear()
        self._copies.clear()

    def _block(
        self, like: torch.Tensor, origin: str | int, values: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A tensor of the shape, strides, dtype and device of `like` in a block of its own."""
        raw, made = between_zones(like)
        block = Block(raw, raw.data_ptr() + ZONE, len(raw) - 2 * ZONE, origin, raw, like.dtype)
        self._fill(block, like, values)
        if values is not None:
            made.copy_(values)
        if isinstance(origin, int):
            block.copied = block.inside().clone()
        self.blocks.append(block)
        return made

    def _fill(self, block: Block, like: torch.Tensor, values: torch.Tensor | None) -> None:
        """What is in the block and around it before anything is written there."""
        if self._is_poisoned:
            block.raw.fill_(_POISON)
            block.zones = torch.cat([block.raw[:ZONE], block.raw[-ZONE:]])
            return
        inside, before = block.inside(), self._block_before(block)
        known = values
        if known is None and before is not None:
            known = before.inside().view(block.dtype)
        block.zones = ordinary_bytes(known, like, self._random)
        fill_zones(block.raw, block.zones)
        if values is None and block.nbytes:
            start, end = 0, block.nbytes
            if before is not None:
                inside.copy_(before.inside())
                count = block.nbytes // like.itemsize
                length = max(1, count // _EXCHANGED)
                start = int(torch.randint(count - length + 1, (), generator=self._random)) * like.itemsize
                end = start + length * like.itemsize
            other = ordinary_bytes(known, like, self._random)
            inside[start:end] = other.repeat((end - start) // len(other) + 1)[: end - start]

    def _block_before(self, block: Block) -> Block | None:
        """The block of the call before that was made in its turn; None if there is none of its kind."""
        place = self._before + len(self.blocks) - self._first
        if place >= self._first:
            return None
        before = self.blocks[place]
        alike = before.nbytes == block.nbytes and before.dtype == block.dtype
        return before if alike and block.nbytes % block.dtype.itemsize == 0 else None

    def allocated(self, name: str, made: torch.Tensor, args: Any) -> torch.Tensor:
        """What an allocating or copying operator returned, moved into a block."""
        if name in _EMPTY:
            return self._block(made, "empty")
        origin = "filled" if name in _FILLED else _start(args[0])
        return self._block(made, origin, made)

    def written(self, name: str, target: torch.Tensor, args: Any) -> None:
        """Note a fill of, or a copy into, the whole of a block."""
        block = _find(self.blocks, _start(target))
        if block is not None:
            block.origin = _start(args[1]) if name == "copy_" else "filled"
            block.copied = block.inside().clone() if name == "copy_" else None

    def _judge(
        self, function: Callable[..., Any], args: Any, result: Any, made: list[Block], pointers: set[int]
    ) -> None:
        given = [(_start(value), value.untyped_storage().nbytes()) for value in _tensors(args)]
        for value in _outputs(result):
            if type(value) is not torch.Tensor or vars(value):
                message = f"returns a {type(value).__name__}; return tensors that torch's factories made"
                self._report("tensor_type", function, message)
            elif value.numel() == 0 or any(start <= _start(value) <= start + size for start, size in given):
                continue
            else:
                self._judge_origin(function, value, made, pointers)

    def _judge_origin(
        self, function: Callable[..., Any], value: torch.Tensor, made: list[Block], pointers: set[int]
    ) -> None:
        block, copied = _find(made, _start(value)), False
        for _ in made:  # a copy of a copy: as long as the chain can be
            if block is None or block.written_by(pointers) or not isinstance(block.origin, int):
                break
            copied, block = True, _find(made, block.origin)
        if block is not None and (block.written_by(pointers) or block.origin == "filled"):
            if block.copied is not None:
                self._copies[_start(value)] = block.copied
            return
        if copied:
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

    def _report(self, rule: str, function: Callable[..., Any] | None, message: str) -> None:
        code = getattr(function, "__code__", None)
        file = code.co_filename.removeprefix(self._root).removeprefix("pass_dir/") if code is not None else ""
        line = code.co_firstlineno if code is not None else 0
        violation = Violation(rule=rule, file=file, line=line, message=message)
        if violation not in self.gate.found:
            self.gate.found.append(violation)


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


def _start(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


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
