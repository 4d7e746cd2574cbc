"""Memory of audited calls: blocks between guard zones, of which nobody can tell what they will hold.

A block holds what the same block of the call before held, as recycled memory does in timed calls, but for a
run of other values: what a kernel leaves as it was is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from passagent.evaluator.integrity.zones import (
    ZONE,
    Zoned,
    between_zones,
    fill_zones,
    ordinary_bytes,
    unpredictable,
)
from passagent.evaluator.result import Violation

_POISON = 0xFF
"""Bytes of NaN: in calls whose inputs tell a kernel that no time is measured."""
_EXCHANGED = 4
"""Of a block one part in so many holds other values than it held before."""


@dataclass
class Block:
    """Memory between guard zones."""

    raw: torch.Tensor
    nbytes: int
    zones: torch.Tensor
    """What its guard zones were filled with."""
    dtype: torch.dtype

    def inside(self) -> torch.Tensor:
        """The block's bytes."""
        return self.raw[ZONE : ZONE + self.nbytes]

    def overrun(self) -> bool:
        """Something was written beside the block."""
        return Zoned(self.raw, self.zones).overrun()


class Blocks:
    """The blocks of audited calls; `close` forgets the memory of the calls made so far."""

    def __init__(self) -> None:
        self._found: list[Violation] = []
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

    def place(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of `values` (any strides; the copy is contiguous) in a block of its own."""
        return self.block(torch.empty(values.shape, dtype=values.dtype, device=values.device), values)

    def check_zones(self) -> None:
        """Report writes beside any block made so far."""
        self.check(self.blocks)

    def check(self, blocks: Iterable[Zoned | Block]) -> None:
        """The same for any blocks."""
        if any(block.overrun() for block in blocks):
            message = (
                "a kernel writes outside of the tensors that it was given; mask its stores at the borders"
            )
            self.report("out_of_bounds", message)

    def note_copy(self, output: torch.Tensor, copied: torch.Tensor) -> None:
        """Torch had copied these values to where a kernel then wrote an output."""
        if output.numel():
            self._copies[start_of(output)] = copied

    def copy_of(self, output: torch.Tensor) -> torch.Tensor | None:
        """What torch had copied to where a kernel then wrote an output; None if no copy was there."""
        return self._copies.get(start_of(output))

    def close(self) -> None:
        """Free the memory of the calls made so far; their outputs must not be used any more."""
        self._before = self._first = 0
        self.blocks.clear()
        self._copies.clear()

    def block(self, like: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
        """A tensor of the shape, strides, dtype and device of `like` in a block of its own."""
        raw, made = between_zones(like)
        block = Block(raw, len(raw) - 2 * ZONE, raw, like.dtype)
        self._fill(block, like, values)
        if values is not None:
            made.copy_(values)
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

    def report(self, rule: str, message: str, file: str = "", line: int = 0) -> None:
        """Add a violation, once."""
        violation = Violation(rule=rule, file=file, line=line, message=message)
        if violation not in self._found:
            self._found.append(violation)

    def take(self) -> list[Violation]:
        """What breaks a rule, found since the last time."""
        found, self._found = self._found, []
        return found


def start_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
