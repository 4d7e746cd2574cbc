"""The thirty honest designs of INTEGRITY section 4, as sources of small candidates."""

import json

from passagent.evaluator.result import MANIFEST, Candidate

HEAD = """import functools
import math

import torch
import triton
import triton.language as tl
"""
PASS = """

def pattern(in_0, in_1):
    tmp_0 = in_0 + in_1
    return torch.nn.functional.relu(tmp_0)


def replacement_args(in_0, in_1):
    return (in_0, in_1)


def replacement_func():
    return fused
"""
KERNEL = """

@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, tl.maximum(x + y, 0.0).to(out_ptr.dtype.element_ty), mask=mask)
"""
HOST = """

@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add_relu[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out
"""


def candidate(*parts: str, **helpers: str) -> Candidate:
    """One pass of HEAD, the parts and PASS, and helper modules beside it."""
    files = {"P.py": HEAD + "".join(parts) + PASS, MANIFEST: json.dumps(["P"])}
    return Candidate(files | {f"{name}.py": text for name, text in helpers.items()})


def host(body: str, kernel: str = KERNEL, decorator: str = "@torch.fx.wrap") -> Candidate:
    """A candidate whose `fused(x, y)` has this body."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return candidate(kernel, f"\n\n{decorator}\ndef fused(x, y):\n{lines}\n")


CPP = '''

from passagent.kernels import cpp_kernel

_SOURCE = r"""
#include <cmath>
template <typename T> void add_relu(const T* x, const T* y, T* out, int64_t n) {
  #pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) out[i] = round_to<T>(fmaxf(load_f32(x + i) + load_f32(y + i), 0.0f));
}
"""
_kernel = cpp_kernel(_SOURCE, "add_relu")


@torch.fx.wrap
def fused(x, y):
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    _kernel(x, y, out, x.numel())
    return out
'''
LAUNCH = "add_relu[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)"
AUTOTUNED = KERNEL.replace(
    "@triton.jit",
    '@triton.autotune(configs=[triton.Config({"BLOCK": b}, num_warps=w) for b in (256, 1024) '
    'for w in (2, 4)], key=["n"])\n@triton.jit',
)
HEURISTIC = KERNEL.replace(
    "@triton.jit",
    '@triton.heuristics({"BLOCK": lambda args: min(4096, triton.next_power_of_2(args["n"]))})\n@triton.jit',
)
GRID = 'add_relu[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)'
ALLOCATE = "out = torch.empty_like(x)\nn = x.numel()\n"
CONSTANTS = """

_TABLE = torch.tensor([0.5, 0.25], dtype=torch.float32)
_SIZES = {96: (64, 4), 192: (128, 8)}
_SHIFTS = [(3, 128), (6, 64)]
EPS: tl.constexpr = tl.constexpr(1e-5)
_SCALE = math.sqrt(2.0) * float("0.5")


@triton.jit
def _relu(x):
    return tl.where(x > 0, x, EPS * 0.0)


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, _relu(x + tl.load(y_ptr + offsets, mask=offsets < n)), mask=offsets < n)
"""
PLANS = """

_CONFIGS = {}


@functools.lru_cache(maxsize=None)
def plan(n, dtype):
    block = 256 if n < 4096 else 1024
    return (triton.cdiv(n, block), block, dtype.itemsize)


def config(n):
    found = _CONFIGS.get(n)
    if found is None:
        found = _CONFIGS[n] = plan(n, torch.float32)
    return found
"""
OUTPUT = (
    "out = torch.empty({shape}, dtype={dtype}, device=x.device)\nn = x.numel()\n" + LAUNCH + "\nreturn out"
)
DROPOUT = """import torch


def pattern(in_0, p):
    return torch.nn.functional.dropout(in_0, p, False, False)


def replacement_args(in_0, p):
    return (in_0,)


def replacement_func():
    return fused


@torch.fx.wrap
def fused(x):
    return x
"""
MUTATING = """import torch
from passagent.kernels import cpp_kernel

_kernel = cpp_kernel("template <typename T> void f(T* x, const T* y, int64_t n) {}", "f")


def pattern(in_0, in_1):
    in_0 += in_1
    tmp_0 = torch.nn.functional.relu(in_0, inplace=True)
    return tmp_0


def replacement_args(in_0, in_1):
    return (in_0, in_1)


def replacement_func():
    return fused


def fused(x, y):
    _kernel(x, y, x.numel())
    return x
"""
INDEX = """import torch
import torch.nn.functional as F
from torch import device

from pass_dir.shared import fused

LOW = -3.4028234663852886e+38


def pattern(in_0, size):
    tmp_0 = torch.arange(0, size, device=device(type="cuda", index=0))
    tmp_1 = in_0[(slice(None, None, None), None, slice(0, size, None))]
    tmp_2 = tmp_1.to(torch.float32)
    tmp_3 = 1.0 - tmp_2
    tmp_4 = tmp_3.masked_fill(tmp_3.to(torch.bool), LOW)
    a, b = F.softmax(tmp_4, -1).chunk(2, dim=-1)
    return (tmp_0, a, b)


def replacement_args(in_0, size):
    return (in_0, size, -1, 2 * 3, "route_a", torch.float32, None, (1, 2), float("-inf"))


def replacement_func():
    return fused
"""

HONEST: dict[str, Candidate] = {
    "01 autotune": host(ALLOCATE + GRID + "\nreturn out", AUTOTUNED),
    "02 heuristics": host(ALLOCATE + GRID + "\nreturn out", HEURISTIC),
    "03 persistent grid": host(
        ALLOCATE + "sms = torch.cuda.get_device_properties(x.device).multi_processor_count\n"
        "add_relu[(min(sms, triton.cdiv(n, 1024)),)](x, y, out, n, BLOCK=1024)\nreturn out"
    ),
    "04 workspace and two kernels": host(
        ALLOCATE + "work = torch.empty((n + 7) // 8, dtype=torch.float32, device=x.device)\n"
        f"{LAUNCH}\nadd_relu[(1,)](out, work, out, 8, BLOCK=16)\nreturn out"
    ),
    "05 atomic_add": host(
        f"out = torch.zeros(1, dtype=torch.float32, device=x.device)\nn = x.numel()\n{LAUNCH}\nreturn out",
        KERNEL.replace("tl.store(out_ptr + offsets,", "tl.atomic_add(out_ptr + offsets * 0,"),
    ),
    "06 zeros as accumulator": host(
        f"out = x.new_zeros(x.shape)\nn = out.numel()\n{LAUNCH}\nreturn out.view(-1)"
    ),
    "07 view of an allocation": host(
        f"{ALLOCATE}{LAUNCH}\nreturn out.view(x.size(0), -1).transpose(0, 1).permute(1, 0).reshape(x.shape)"
    ),
    "08 contiguous input": host(
        f"x = x.contiguous()\ny = y.expand_as(x).contiguous()\n{ALLOCATE}{LAUNCH}\nreturn out"
    ),
    "09 strided kernel": host(
        "n = x.numel()\nout = torch.empty(x.shape, dtype=x.dtype, device=x.device)\n"
        "s0, s1 = x.stride(0), x.stride(-1)\nif x.is_contiguous() and x.dim() > 1 and s0 >= s1:\n"
        f"    {LAUNCH}\nelse:\n    {LAUNCH}\nreturn out"
    ),
    "10 half in, float32 inside": candidate(KERNEL, HOST),
    "11 pure data movement": host(
        f"out = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)\n"
        f"n = x.numel()\n{LAUNCH}\nreturn out"
    ),
    "12 partial fusion": candidate(CPP),
    "13 routes": host(
        'if x.ndim == 2:\n    route = "rows"\nelif x.ndim == 3:\n    route = "planes"\nelse:\n'
        f'    raise ValueError(f"unknown rank {{x.ndim}}")\nassert route\n{ALLOCATE}{LAUNCH}\nreturn out'
    ),
    "14 plans by ints": candidate(
        PLANS, KERNEL, HOST.replace("n = x.numel()", "n = x.numel()\n    grid, block, _ = config(n)")
    ),
    "15 fast path": host(
        f"{ALLOCATE}if x.shape[-1] == 1024 and x.dtype in (torch.float16, torch.bfloat16):\n"
        f"    {LAUNCH}\n    return out\n"
        f"{LAUNCH}\nreturn out"
    ),
    "16 two outputs": host(f"{ALLOCATE}other = torch.empty_like(out)\n{LAUNCH}\nreturn out, other"),
    "17 broadcast and scalars": host(
        "shape, dtype = torch.broadcast_shapes(x.shape, y.shape), torch.promote_types(x.dtype, y.dtype)\n"
        f"out = torch.empty(shape, dtype=dtype, device=x.device)\nif isinstance(y, (int, float)):\n"
        f"    y = float(y)\n"
        f"n = out.numel()\n{LAUNCH}\nreturn out"
    ),
    "18 empty tensors": host(f"{ALLOCATE}if n == 0:\n    return out\n{LAUNCH}\nreturn out"),
    "19 output is the input": Candidate({"P.py": MUTATING, MANIFEST: '["P"]'}),
    "20 in-place pattern": Candidate(
        {"P.py": MUTATING.replace("return x\n", "return x.view(x.shape)\n"), MANIFEST: '["P"]'}
    ),
    "21 infinities": host(
        ALLOCATE + LAUNCH + "\nreturn out", KERNEL.replace("other=0.0", 'other=-float("inf")')
    ),
    "22 boolean output": host(OUTPUT.format(shape="x.shape", dtype="torch.bool")),
    "23 another dtype": host(OUTPUT.format(shape="(x.shape[0], 1, *x.shape[1:])", dtype="torch.float32")),
    "24 dropout folded away": Candidate({"P.py": DROPOUT, MANIFEST: '["P"]'}),
    "25 constant output": host("return torch.full((4, 4), -1.0, dtype=torch.float32, device=x.device)"),
    "26 unused input": host(f"y = x\n{ALLOCATE}{LAUNCH}\nreturn out"),
    "27 tl.dot": host(
        f"{ALLOCATE}{LAUNCH}\nreturn out",
        KERNEL.replace("tl.maximum(x + y, 0.0)", 'tl.dot(x[:, None], y[None, :], input_precision="tf32x3")'),
    ),
    "28 several launches": host(f"{ALLOCATE}for start in range(0, n, 65536):\n    {LAUNCH}\nreturn out"),
    "29 tables, jit helpers, constexpr globals": candidate(CONSTANTS, HOST),
    "30 odd launch values": host(
        ALLOCATE
        + "add_relu[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64, num_warps=1, num_stages=7)\nreturn out"
    ),
    "on the input's device": host(
        f"with torch.cuda.device(x.device):\n    {ALLOCATE.strip().split(chr(10))[0]}\n"
        f"    n = x.numel()\n    {LAUNCH}\nreturn out"
    ),
    "try": host(
        f"{ALLOCATE}try:\n    {LAUNCH}\nexcept RuntimeError as error:\n"
        "    raise ValueError(str(error)) from error\n"
        "return out"
    ),
    "factories and index arithmetic in the pattern": Candidate(
        {
            "P.py": INDEX,
            "shared.py": HEAD
            + "from helper import block_of\n"
            + KERNEL
            + "\n\n@torch.fx.wrap\ndef fused(x, size, a, b, route, dtype, none, pair, low):\n"
            "    out = torch.empty_like(x, dtype=dtype)\n    n = x.numel()\n"
            "    add_relu[(triton.cdiv(n, block_of(n)),)](x, x, out, n, BLOCK=block_of(n))\n"
            "    return out, out, out\n",
            "helper.py": '"""Sizes."""\n\n\ndef block_of(n: int) -> int:\n'
            "    return max(16, min(1024, 1 << n.bit_length()))\n",
            MANIFEST: '["P"]',
        }
    ),
    "a compiled kernel launched again": candidate(
        KERNEL,
        "\n\n_COMPILED = {}\n",
        HOST.replace(
            "    add_relu[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)\n",
            "    grid = (triton.cdiv(n, 1024), 1, 1)\n    key = (n, x.dtype)\n    if key in _COMPILED:\n"
            "        _COMPILED[key][grid](x, y, out, n, 1024)\n    else:\n"
            "        _COMPILED[key] = add_relu[grid](x, y, out, n, BLOCK=1024)\n",
        ),
    ),
    "libdevice": host(
        f"{ALLOCATE}{LAUNCH}\nreturn out",
        "\nfrom triton.language.extra import libdevice\n"
        + KERNEL.replace("tl.maximum(x + y, 0.0)", "libdevice.tanh(x) + tl.math.exp(y) + tl.sum(x, axis=0)"),
    ),
}
