"""Memory of audited calls: blocks between guard zones, of which nobody can tell what they will hold.

A block holds what the same block of the call before held, as recycled memory does in timed calls, but for a
run of other values: what a kernel leaves as it was is wrong. So blocks stay for two calls, those with outputs
to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
"""One part in so many of a block holds other values than before."""


@dataclass
class Block:
    """Memory between guard zones."""

    raw: torch.Tensor
    nbytes: int
    zones: torch.Tensor
    """The bytes that fill its guard zones."""
    like: torch.Tensor

    def inside(self) -> torch.Tensor:
        """The block's bytes."""
        return self.raw[ZONE : ZONE + self.nbytes]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Tell whether the tensor lies in it."""
        return 0 <= tensor.data_ptr() - self.raw.data_ptr() < len(self.raw)

    def overrun(self) -> str:
        """The first write into a guard zone, as Zoned.overrun says."""
        return Zoned(self.raw, self.zones, self.like).overrun()


class Blocks:
    """The blocks of audited calls; `close` forgets the memory of the calls made so far."""

    def __init__(self) -> None:
        self._found: list[Violation] = []
        self._kept: list[Block] = []
        self._before: list[Block] = []
        self._now: list[Block] = []
        """Blocks of older calls that outputs lie in, of the call before, and of this one."""
        self._is_poisoned = False
        self._random = unpredictable()

    @property
    def blocks(self) -> list[Block]:
        """All that are held."""
        return [*self._kept, *self._before, *self._now]

    @property
    def is_clean(self) -> bool:
        """Nothing was found since the last time."""
        return not self._found

    def begin(self, outputs: Sequence[torch.Tensor] = (), *, poisoned: bool = False) -> None:
        """A call begins: its blocks hold what those of the call before do; NaN if `poisoned`.

        The blocks of the calls before that one are checked and freed, but for those in which `outputs` lie:
        large inputs do not add up, and are elsewhere than in the call before.
        """
        self.check(self._before)
        self._kept += [block for block in self._before if any(map(block.holds, outputs))]
        self._before, self._now = self._now, []
        self._is_poisoned = poisoned

    def place(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of `values` (any strides; the copy is contiguous) in a block of its own."""
        return self.block(torch.empty(values.shape, dtype=values.dtype, device="meta"), values.device, values)

    def check_zones(self) -> None:
        """Report writes beside any block that is held."""
        self.check(self.blocks)

    def check(self, blocks: Iterable[Zoned | Block]) -> None:
        """Check the guard zones of any blocks."""
        if where := next(filter(None, (block.overrun() for block in blocks)), ""):
            outside = "a kernel writes outside of the tensors that it was given"
            self.report("out_of_bounds", f"{outside}: {where}; mask its stores at the borders")

    def close(self) -> None:
        """Free the memory of the calls made so far; their outputs must not be used any more."""
        for blocks in (self._kept, self._before, self._now):
            blocks.clear()

    def block(
        self, like: torch.Tensor, device: torch.device | str, values: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A tensor of the shape, strides and dtype of `like` on `device` in a block of its own."""
        raw, tensor = between_zones(like, device)
        block = Block(raw, len(raw) - 2 * ZONE, raw, like)
        self._fill(block, tensor, values)
        if values is not None:
            tensor.copy_(values)
        self._now.append(block)
        return tensor

    def _fill(self, block: Block, like: torch.Tensor, values: torch.Tensor | None) -> None:
        """Fill the block and its zones before anything is written there."""
        if self._is_poisoned:
            block.raw.fill_(_POISON)
            block.zones = torch.cat([block.raw[:ZONE], block.raw[-ZONE:]])
            return
        inside, before = block.inside(), self._block_before(block)
        content = values
        if content is None and before is not None:
            content = before.inside().view(like.dtype)
        block.zones = ordinary_bytes(content, like, self._random)
        fill_zones(block.raw, block.zones)
        if values is None and block.nbytes:
            start, end = 0, block.nbytes
            if before is not None:
                inside.copy_(before.inside())
                count = block.nbytes // like.itemsize
                length = max(1, count // _EXCHANGED)
                start = int(torch.randint(count - length + 1, (), generator=self._random)) * like.itemsize
                end = start + length * like.itemsize
            other = ordinary_bytes(content, like, self._random)
            inside[start:end] = other.repeat((end - start) // len(other) + 1)[: end - start]

    def _block_before(self, block: Block) -> Block | None:
        """The block of the call before that was made in its turn; None if there is none of its kind."""
        if len(self._now) >= len(self._before):
            return None
        before = self._before[len(self._now)]
        alike = before.nbytes == block.nbytes and before.like.dtype == block.like.dtype
        return before if alike and block.nbytes % block.like.itemsize == 0 else None

    def report(self, rule: str, message: str, file: str = "", line: int = 0) -> None:
        """Add a violation, once."""
        violation = Violation(rule=rule, file=file, line=line, message=message)
        if violation not in self._found:
            self._found.append(violation)

    def take(self) -> list[Violation]:
        """Return the violations found since the last time."""
        violations, self._found = self._found, []
        return violations
