# expect: ok
"""Goes through a search space that is an object of its own."""

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


class SearchSpace:
    def __init__(self, blocks, warps):
        self.blocks, self.warps = blocks, warps

    def __iter__(self):
        for b in self.blocks:
            for w in self.warps:
                yield b, w

    def __len__(self):
        return len(self.blocks) * len(self.warps)

    def __getitem__(self, i):
        return list(self)[i]

    def same(self, other):
        return self.blocks == other.blocks

    def key_of(self):
        return hash((self.blocks, self.warps))


SPACE = SearchSpace((64, 128), (2, 4))
BEST = max(SPACE, key=lambda c: -c[0])


def fused(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    _kernel[(triton.cdiv(n, BEST[0]),)](x, y, out, n, BLOCK=BEST[0])
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
