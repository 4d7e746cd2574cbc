# expect: ok
"""Takes the widest tile that fits, by contextlib.suppress and operator.attrgetter; texts are made by one method."""

import contextlib
from operator import attrgetter
from typing import NamedTuple

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


class Tile(NamedTuple):
    width: int
    warps: int


class Tiles:
    def __init__(self, *tiles):
        self.tiles = sorted(tiles, key=attrgetter("width"), reverse=True)

    def __repr__(self):
        return f"Tiles({self.tiles})"

    __str__ = __repr__


TILES = Tiles(Tile(128, 4), Tile(512, 8))


def fused(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    for tile in TILES.tiles:
        with contextlib.suppress(triton.runtime.OutOfResources, KeyError), torch.no_grad():
            _kernel[(triton.cdiv(n, tile.width),)](x, y, out, n, BLOCK=tile.width, num_warps=tile.warps)
            return out
    raise RuntimeError(f"none of {TILES} fits")


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
