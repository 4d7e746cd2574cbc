# expect: ok
"""Names fields and methods as it likes."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass
class TileConfig:
    tile_elems: int
    warps_per_block: int
    prefetch_distance: int = 2
    eviction_hint: str = "evict_last"
    occupancy_goal: float = 0.75

    def num_blocks(self, numel: int) -> int:
        return (numel + self.tile_elems - 1) // self.tile_elems

    @property
    def threads_per_block(self) -> int:
        return self.warps_per_block * 32

    def describe(self) -> str:
        return f"TileConfig(tile={self.tile_elems}, warps={self.warps_per_block})"


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


_SMALL = TileConfig(tile_elems=128, warps_per_block=2)
_LARGE = TileConfig(tile_elems=1024, warps_per_block=8)


def fused(x, y):
    out = torch.empty_like(x)
    numel = out.numel()
    cfg = _SMALL if numel < 65536 else _LARGE
    _kernel[(cfg.num_blocks(numel),)](x, y, out, numel, BLOCK=cfg.tile_elems, num_warps=cfg.warps_per_block)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
