"""Every operator that the expert lowers, on special values: differences that nobody else has.

    python benchmarks/special_values.py --device cpu

The operators of the expert's registry are called with all floating and integer dtypes on NaN, infinities,
zeros of both signs, subnormal numbers, the ends of each dtype, powers, constants and their neighbours, rows
of equal values. The expert's kernels run without a search. Each result is held against eager's, eager's in
float64 and, where it differs from both, Inductor's. For each operator and dtype the script prints how many
elements differ from eager's, and how many differ from all three. Names of the registry that no case calls,
and cases that the expert leaves to eager, are printed, too.
Raw results: benchmarks/results/special-values-DEVICE-DATE.json.
"""

from __future__ import annotations

import argparse
import copy
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from evaluator_repeatability import keep

from passagent.evaluator.matching.loaded_passes import load_passes
from passagent.evaluator.matching.rewrite import apply_passes
from passagent.evaluator.result import Candidate
from passagent.expert.author import author
from passagent.expert.choices import default
from passagent.expert.graph import op_name
from passagent.expert.lower import OPS
from passagent.sandbox.environment import describe
from passagent.tasks.capture import capture

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
Function = Callable[..., Any]
CONSTANTS = (0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 6.0, 20.0, 86.6, 88.0, 88.8, 95.0, 103.0, 0.044715)
"""Numbers that the cases compare with, clamp to or multiply by, and where exponentials end."""
IN_A_KERNEL = 24
"""Cases of a graph: a kernel of more takes its compiler too long."""
SILENT_S = 240
"""Seconds without any result after which those that are missing count as failed."""


def floats(dtype: torch.dtype) -> torch.Tensor:
    """Special numbers of a floating dtype, in float64."""
    info = torch.finfo(dtype)
    least = info.tiny * info.eps  # the smallest subnormal number
    exponents = range(round(math.log2(least)), math.frexp(info.max)[1])
    powers = [2.0**k for k in exponents] + [10.0**k for k in range(-45, 39) if least <= 10.0**k <= info.max]
    ends = [info.max, info.tiny, info.tiny * (1 - info.eps), least, 3 * least, info.tiny * 0.75, info.max / 2]
    around = torch.tensor(CONSTANTS, dtype=torch.float64).to(dtype)
    up, down = (torch.nextafter(around.cpu(), torch.tensor(end, dtype=dtype)) for end in (math.inf, 0.0))
    halves = [k / 2 for k in range(1, 24)] + [2.0**22 + 0.5, 2.0**23 - 0.5, 2.0**23 + 1, 2.0**24 + 2, 3.3e7]
    drawn = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    size = torch.tensor([*powers, *ends, *halves, *CONSTANTS], dtype=torch.float64)
    size = torch.cat([size, around.double(), up.double(), down.double(), drawn])
    values = torch.cat([torch.tensor([0.0, math.inf, math.nan], dtype=torch.float64), size])
    return torch.cat([values, -values]).to(dtype).double()


def integers(dtype: torch.dtype) -> torch.Tensor:
    """Special numbers of an integer dtype, in int64."""
    info = torch.iinfo(dtype)
    near = [
        0,
        1,
        2,
        3,
        5,
        6,
        7,
        10,
        100,
        127,
        128,
        200,
        255,
        256,
        1 << 15,
        (1 << 24) + 1,
        (1 << 31) - 1,
        1 << 31,
    ]
    near += [(1 << 53) + 1, info.max, info.max - 1, info.max // 2, info.max // 2 + 1, info.min + 1]
    both = [*near, *(-n for n in near), info.min]
    return torch.tensor(sorted({n for n in both if info.min <= n <= info.max}), dtype=torch.int64)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Special numbers of any dtype."""
    if dtype is torch.bool:
        return torch.tensor([False, True] * 9)
    return floats(dtype).to(dtype) if dtype.is_floating_point else integers(dtype).to(dtype)


def one(dtype: torch.dtype) -> list[torch.Tensor]:
    """All special numbers, and once more at other places of a vector."""
    values = numbers(dtype)
    return [torch.cat([values, values.flip(0), values[: -len(values) * 2 % 37]]).reshape(1, -1)]


def two(dtype: torch.dtype) -> list[torch.Tensor]:
    """All pairs of some special numbers."""
    values = numbers(dtype)
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        some = [0.0, 1.0, 0.5, 2.0, 3.0, 0.3, 6.0, 1.5, 7.25, info.max, info.tiny, info.tiny * info.eps]
        values = torch.tensor([*some, math.inf, math.nan], dtype=torch.float64)
        values = torch.cat([values, -values]).to(dtype)
    n = len(values)
    return [values[:, None].expand(n, n).contiguous(), values.expand(n, n).contiguous()]


def three(dtype: torch.dtype) -> list[torch.Tensor]:
    """Triples: pairs, with a third number that walks through all."""
    a, b = two(dtype)
    return [a, b, b.flatten().roll(5).reshape(a.shape).t().contiguous()]


def rows(dtype: torch.dtype) -> list[torch.Tensor]:
    """Rows with one special number each among ordinary ones, rows of one number, rows with two far ones."""
    values, n = numbers(dtype), 83
    if dtype.is_floating_point:
        picked = [0.0, -0.0, math.nan, math.inf, -math.inf, torch.finfo(dtype).max, 1.0, -95.0, 3.3e7, 1e4]
        picked += [-torch.finfo(dtype).max, torch.finfo(dtype).tiny, torch.finfo(dtype).tiny / 4, -1e4, -9.0]
        values = torch.tensor(picked, dtype=torch.float64).to(dtype)
        ordinary = torch.randn(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    else:
        ordinary = (torch.arange(n) % 7).to(dtype)
    planted, first, last = (ordinary.repeat(len(values), 1) for _ in range(3))
    planted[torch.arange(len(values)), torch.arange(len(values)) * 5 % n] = values
    first[:, 0], last[:, -1] = values, values
    if dtype.is_floating_point:  # rows of the largest number have no sum, and a mean to eager alone
        values = values[(values.abs() < torch.finfo(dtype).max / 1e3) | ~values.isfinite()]
    filled = values[:, None].expand(-1, n)
    far = filled.clone()
    far[:, 1::2] = values.flip(0)[:, None]
    extreme = filled.clone()
    extreme[:, 3] = values.roll(1)
    return [torch.cat([planted, first, last, filled, far, extreme])]


def short_rows(dtype: torch.dtype) -> list[torch.Tensor]:
    """Rows of a few numbers."""
    return [rows(dtype)[0][:, :5].contiguous()]


def long_rows(dtype: torch.dtype) -> list[torch.Tensor]:
    """Rows of more numbers than a block."""
    (values,) = rows(dtype)
    return [torch.cat([values[:, :1].expand(-1, 600), values], 1)]


def images(dtype: torch.dtype) -> list[torch.Tensor]:
    """Images with a special number here and there."""
    (values,) = rows(dtype)
    return [values[:, :72].reshape(-1, 3, 6, 4).contiguous()]


def tables(dtype: torch.dtype) -> list[torch.Tensor]:
    """A table of special numbers, and indices."""
    return [rows(dtype)[0][:40, :9].contiguous(), torch.arange(36).reshape(4, 9) * 7 % 40]


def scalars() -> Iterator[tuple[str, Function]]:
    """Operators with one number, for several numbers."""
    for n in (0.3, -0.7, 2, 300, -1, 0.0, 1e-30, 3.0e38, math.inf, math.nan, True):
        yield f"add {n}", lambda x, n=n: x + n
        yield f"sub {n}", lambda x, n=n: x - n
        yield f"rsub {n}", lambda x, n=n: n - x
        yield f"mul {n}", lambda x, n=n: x * n
        yield f"truediv {n}", lambda x, n=n: x / n
        yield f"rdiv {n}", lambda x, n=n: n / x
        yield f"lt {n}", lambda x, n=n: x < n
        yield f"le {n}", lambda x, n=n: x <= n
        yield f"gt {n}", lambda x, n=n: x > n
        yield f"ge {n}", lambda x, n=n: x >= n
        yield f"eq {n}", lambda x, n=n: x == n
        yield f"ne {n}", lambda x, n=n: x != n
        yield f"clamp_min {n}", lambda x, n=n: x.clamp_min(n)
        yield f"clamp_max {n}", lambda x, n=n: x.clamp_max(n)
        yield f"clamp {n}", lambda x, n=n: x.clamp(-1, n)
        yield f"masked_fill {n}", lambda x, n=n: x.masked_fill(x > 1, n)
        yield f"where {n}", lambda x, n=n: torch.where(x > 1, x, n)
        yield f"pow {n}", lambda x, n=n: x**n
        yield f"full_like {n}", lambda x, n=n: torch.full_like(x, n)
        yield f"add alpha {n}", lambda x, n=n: torch.add(x, x, alpha=n)
        yield f"lerp {n}", lambda x, n=n: torch.lerp(x, x * 0.5, n)
        if not isinstance(n, bool) and not math.isnan(n):
            yield f"leaky_relu {n}", lambda x, n=n: F.leaky_relu(x, n)
            yield f"elu {n}", lambda x, n=n: F.elu(x, n)
            yield f"softplus {n}", lambda x, n=n: F.softplus(x, n or 1, 5)
            yield f"threshold {n}", lambda x, n=n: F.threshold(x, n, -2)
            yield f"hardtanh {n}", lambda x, n=n: F.hardtanh(x, -2, max(n, 0.25))
            yield f"hardshrink {n}", lambda x, n=n: F.hardshrink(x, n)
            yield f"softshrink {n}", lambda x, n=n: F.softshrink(x, abs(n))
            yield f"celu {n}", lambda x, n=n: F.celu(x, n or 2.0)
            yield f"tensor gt {n}", lambda x, n=n: x > torch.tensor(n)
            yield f"tensor mul {n}", lambda x, n=n: x * torch.tensor(n)
            yield f"tensor add {n}", lambda x, n=n: x + torch.tensor(n)


def named(words: str) -> list[str]:
    """Words, separated by blanks."""
    return words.split()


ONE: dict[str, Function] = {
    name: getattr(torch, name)
    for name in named(
        "abs neg exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal square sin cos tan tanh erf "
        "sigmoid floor ceil round trunc frac sign isnan isinf isfinite isposinf isneginf logical_not "
        "bitwise_not"
    )
}
ONE |= {
    name: getattr(F, name)
    for name in named(
        "relu relu6 silu gelu hardtanh hardsigmoid hardswish leaky_relu elu selu celu softplus mish softsign "
        "tanhshrink softshrink hardshrink logsigmoid rrelu"
    )
}
ONE |= {
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.3, dtype=x.dtype, device=x.device)),
    "dropout": lambda x: F.dropout(x + x, training=False),
    "zeros_like": lambda x: torch.zeros_like(x) * x,
    "ones_like": lambda x: torch.ones_like(x) / x,
    "new_full": lambda x: x.new_full(x.shape, 0.3) + x,
    "float": lambda x: x.float() * 2,
    "double": lambda x: x.double() * 2,
    "bool": lambda x: x.bool(),
    "glu": lambda x: F.glu(torch.cat([x, x.flip(-1)], -1)),
    "pow 2": lambda x: x.pow(2),
    "pow 3": lambda x: x.pow(3),
    "pow 0.5": lambda x: x.pow(0.5),
    "pow -0.5": lambda x: x.pow(-0.5),
    "pow -1": lambda x: x.pow(-1),
    "masked_fill": lambda x: x.masked_fill(x.isnan(), 0.0),
    "log2 floor": lambda x: torch.log2(x).floor(),
    "log10 floor": lambda x: torch.log10(x).floor(),
    "clamp between": lambda x: x.clamp(2, 1),
}
CASTS: dict[str, Function] = {
    name: lambda x, name=name: getattr(x + x, name)() for name in named("half bfloat16 float double bool")
}
TWO: dict[str, Function] = {
    name: getattr(torch, name)
    for name in named(
        "add sub mul div maximum minimum eq ne lt le gt ge pow logical_and logical_or logical_xor max min"
    )
}
TWO |= {
    "__and__": lambda a, b: (a > 0) & (b > 0),
    "__or__": lambda a, b: (a > 0) | (b > 0),
    "__xor__": lambda a, b: (a > 0) ^ (b > 0),
    "where": lambda a, b: torch.where(a > b, a, b),
    "add alpha": lambda a, b: torch.add(a, b, alpha=2),
    "sub alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "clamp": lambda a, b: a.clamp(min=b),
    "clamp max": lambda a, b: a.clamp(max=b),
    "addcmul": lambda a, b: torch.addcmul(a, b, b, value=2),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=2),
}
THREE: dict[str, Function] = {
    "lerp": torch.lerp,
    "clamp": torch.clamp,
    "addcmul": torch.addcmul,
    "addcdiv": torch.addcdiv,
    "where": lambda a, b, c: torch.where(a > 0, b, c),
}
ROWS: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "amax 0": lambda x: (x + x).amax(0),
    "amin 0": lambda x: (x + x).amin(0),
    "max": lambda x: x.max(-1)[0],
    "min": lambda x: x.min(-1)[0],
    "max index": lambda x: x.max(-1)[1],
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "max all": lambda x: (x * 2).max(),
    "min all": lambda x: (x * 2).min(),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "any nan": lambda x: x.isnan().any(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1, unbiased=False),
    "var_mean": lambda x: torch.var_mean(x, -1)[0],
    "std_mean": lambda x: torch.std_mean(x, -1)[0],
    "softmax": lambda x: F.softmax(x, -1),
    "softmin": lambda x: F.softmin(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "softmax 0": lambda x: F.softmax(x, 0),
    "entropy": lambda x: -(F.softmax(x, -1) * F.softmax(x, -1).log()).sum(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: x.norm(dim=-1),
    "norm 1": lambda x: x.norm(1, -1),
    "norm inf": lambda x: x.norm(math.inf, -1),
    "linalg_vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "layer_norm add": lambda x: F.layer_norm(x, x.shape[-1:]) + 1.0,
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], None, 1e-6),
    "instance_norm": lambda x: F.instance_norm(x[None]),
    "batch_norm": lambda x: F.batch_norm(x[None], None, None, training=True),
    "group_norm": lambda x: F.group_norm(x[:, None], 1),
}
IMAGES: dict[str, Function] = {
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d padded": lambda x: F.max_pool2d(x * 2, 3, 1, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, x.new_full((3,), 0.5), x.new_full((3,), 2.0)),
    "group_norm": lambda x: F.group_norm(x, 3),
    "instance_norm": F.instance_norm,
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0) * 2,
    "bilinear": lambda x: F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=False),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=-math.inf) * 2,
    "pixel_shuffle": lambda x: F.pixel_unshuffle(x, 2) * 2,
    "depthwise": lambda x: F.conv2d(x, x.new_ones((3, 1, 3, 3)), padding=1, groups=3),
    "tril": lambda x: x.tril() * 2,
    "triu": lambda x: x.triu() * 2,
}
TABLES: dict[str, Function] = {
    "embedding": lambda t, i: F.embedding(i, t) * 2,
    "getitem": lambda t, i: t[i] * 2,
    "gather": lambda t, i: t.gather(1, i % 9) * 2,
    "index_select": lambda t, i: t.index_select(0, i[0]) * 2,
    "one_hot": lambda t, i: F.one_hot(i, 40) * 2,
}
GROUPS: dict[str, tuple[dict[str, Function], Callable[[torch.dtype], list[torch.Tensor]]]] = {
    "one": (ONE, one),
    "casts": (CASTS, one),
    "scalar": (dict(scalars()), one),
    "two": (TWO, two),
    "three": (THREE, three),
    "rows": (ROWS, rows),
    "short rows": (ROWS, short_rows),
    "long rows": (ROWS, long_rows),
    "images": (IMAGES, images),
    "tables": (TABLES, tables),
}


class Several(torch.nn.Module):
    """Functions of the same inputs."""

    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: Any) -> Any:
        return tuple(function(*inputs) for function in self.functions)


@dataclass
class Outcome:
    """What an operator gave in one dtype: elements, and how many differ."""

    group: str
    name: str
    dtype: str
    elements: int = 0
    from_eager: int = 0
    from_all: int = 0
    """Neither eager's, nor its float64's, nor Inductor's."""
    example: str = ""
    left: bool = False
    """Eager computes it."""
    operators: tuple[str, ...] = ()
    failure: str = ""
    """Why there is no result of the expert's code."""


def lowered(
    functions: list[Function], inputs: list[Any], device: str
) -> tuple[list[Any], list[Any], Any, Any]:
    """The expert's results and eager's, the captured graph and the rewritten one."""
    target = torch.device(device).type
    graph = capture(Several(functions), inputs)
    authored = author([graph.graph_module.graph], target, default(target))
    given, eager = ([inputs[k].clone() for k in graph.order] for _ in range(2))
    rewritten = copy.deepcopy(graph.graph_module)
    with tempfile.TemporaryDirectory() as scratch:  # Triton reads a kernel's text at its first call
        if authored.files:
            passes = load_passes(Candidate(authored.files), Path(scratch))
            result = apply_passes(rewritten, passes)
            assert result.applied, [m.reason for m in result.mismatches]
            rewritten = result.graph_module
        return list(rewritten(*given)), list(graph.graph_module(*eager)), graph.graph_module, rewritten


def calls(node: torch.fx.Node) -> set[torch.fx.Node]:
    """The operators that a value is made of."""
    seen, waiting = set[torch.fx.Node](), [node]
    while waiting:
        for one in waiting.pop().all_input_nodes:
            if one not in seen:
                seen.add(one)
                waiting.append(one)
    return {n for n in {node, *seen} if n.op in {"call_function", "call_method"}}


def differs(ours: torch.Tensor, theirs: torch.Tensor, signs: bool) -> torch.Tensor:
    """Where class (NaN, an infinity, zero, another number) or value differ; `signs`: those of zeros, too."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return torch.ones_like(ours, dtype=torch.bool)
    if not ours.dtype.is_floating_point:
        return ours != theirs
    info = torch.finfo(ours.dtype)
    a, b = ours.double(), theirs.double()
    relative = max(1.3e-6, 2 * info.eps)
    near = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= relative * b.abs() + 1e-5)
    near &= (a != 0) | (b == 0)  # what is no zero there is none here
    near |= torch.maximum(a.abs(), b.abs()) <= 8 * info.tiny * info.eps
    near |= (a.isinf() ^ b.isinf()) & (torch.minimum(a.abs(), b.abs()) > 0.99 * info.max)
    return ~near | (signs & (a == 0) & (b == 0) & (a.signbit() != b.signbit()))


def in_float64(function: Function, inputs: list[Any], like: torch.Tensor) -> torch.Tensor | None:
    """Eager's result in float64, rounded; None if it has none."""
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
    try:
        result = function(*wide)
    except RuntimeError:
        return None
    return result.to(like.dtype) if result.shape == like.shape else None


def by_inductor(functions: list[Function], inputs: list[Any]) -> list[Any]:
    """Inductor's results of functions, compiled together, or one by one where that fails; None for none."""
    torch._dynamo.reset()
    try:
        return list(torch.compile(Several(functions))(*[x.clone() for x in inputs]))
    except Exception as error:  # a compiler of its own: whatever it raises, it has no result
        if len(functions) > 1:
            return [by_inductor([function], inputs)[0] for function in functions]
        print(f"Inductor: {type(error).__name__}: {last_line(error)}", flush=True)
        return [None]


def last_line(error: Exception) -> str:
    """The last line of an error that says something, which is where compilers say what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return (lines or [""])[-1][:100]


def beside(x: torch.Tensor, up: bool) -> torch.Tensor:
    """Numbers one unit in the last place further from zero, or nearer to it; every other one stays."""
    if not x.is_floating_point():
        return x
    moved = torch.nextafter(x, torch.copysign(torch.full_like(x, math.inf), x) if up else torch.zeros_like(x))
    stays = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 2 == 0
    return torch.where(stays | ~x.isfinite() | ~moved.isfinite(), x, moved)


def runs(function: Function, inputs: list[Any]) -> bool:
    """Whether eager takes these inputs."""
    try:
        function(*[x.clone() for x in inputs])
    except (RuntimeError, NotImplementedError, IndexError, TypeError):
        return False
    return True


@dataclass(frozen=True)
class Share:
    """Cases of a group that one kernel computes, in one dtype."""

    group: str
    dtype: torch.dtype
    names: tuple[str, ...]

    @property
    def pointwise(self) -> bool:
        """Elements are computed one by one: elsewhere the sign of a zero hangs on the order of a sum."""
        return self.group in {"one", "casts", "scalar", "two", "three"}


def shares(group: str, dtype: torch.dtype, device: str, names: Collection[str] = ()) -> list[Share]:
    """The cases of a group that eager takes, in shares of a kernel; of `names` only, if there are any."""
    functions, make = GROUPS[group]
    inputs = [x.to(device) for x in make(dtype)]
    able = [n for n, f in functions.items() if (not names or n in names) and runs(f, inputs)]
    step = 1 if group == "casts" else IN_A_KERNEL  # where one cannot be lowered, others are left with it
    return [Share(group, dtype, tuple(able[k : k + step])) for k in range(0, len(able), step)]


def swept(
    group: str, dtype: torch.dtype, device: str, names: Collection[str] = (), inductor: bool = True
) -> list[Outcome]:
    """A group's operators in one dtype; of `names` only, if there are any."""
    return [o for share in shares(group, dtype, device, names) for o in swept_share(share, device, inductor)]


def swept_share(share: Share, device: str, inductor: bool) -> list[Outcome]:
    """A share's outcomes. Cases that fail together, or are left to eager together, are tried apart."""
    try:
        outcomes = held(share, device, inductor)
    except Exception as error:  # the expert's failure, whatever its text makes a compiler raise
        if len(share.names) > 1:
            return swept_apart([(name,) for name in share.names], share, device, inductor)
        failure = f"{type(error).__name__}: {last_line(error)}"
        return [Outcome(share.group, share.names[0], dtype_text(share.dtype), failure=failure)]
    left = tuple(o.name for o in outcomes if o.left)
    if not left or len(share.names) == 1:
        return outcomes
    half = len(left) // 2
    again = [left] if len(left) < len(share.names) else [left[:half], left[half:]]
    return [o for o in outcomes if not o.left] + swept_apart(again, share, device, inductor)


def swept_apart(parts: list[tuple[str, ...]], share: Share, device: str, inductor: bool) -> list[Outcome]:
    """Outcomes of parts of a share."""
    alone = [Share(share.group, share.dtype, names) for names in parts]
    return [outcome for part in alone for outcome in swept_share(part, device, inductor)]


def held(share: Share, device: str, inductor: bool) -> list[Outcome]:
    """A share's outcomes: where its results differ from eager's, float64's and Inductor's."""
    functions, make = GROUPS[share.group]
    inputs = [x.to(device) for x in make(share.dtype)]
    chosen = [functions[name] for name in share.names]
    results, wanted, graph, rewritten = lowered(chosen, inputs, device)
    (before,), (after,) = ([n for n in g.graph.nodes if n.op == "output"] for g in (graph, rewritten))
    kept = {n.name for n in rewritten.graph.nodes}
    outcomes, wrong = [], []
    for k, name in enumerate(share.names):
        outcome = Outcome(share.group, name, dtype_text(share.dtype), wanted[k].numel())
        outcome.operators = tuple(sorted({op_name(n) for n in calls(before.args[0][k])}))
        outcome.left = before.args[0][k].name in kept and after.args[0][k].name == before.args[0][k].name
        outcomes.append(outcome)
        wrong.append(differs(results[k], wanted[k], share.pointwise))
        outcome.from_eager = int(wrong[k].sum())
    differing = [k for k, outcome in enumerate(outcomes) if outcome.from_eager]
    for k in differing:
        wide = in_float64(chosen[k], inputs, wanted[k])
        if wide is not None:
            wrong[k] &= differs(results[k], wide, share.pointwise)
    differing = [k for k in differing if wrong[k].any()]
    others = by_inductor([chosen[k] for k in differing], inputs) if inductor and differing else []
    for k, other in zip(differing, others, strict=False):
        if other is not None:
            wrong[k] &= differs(results[k], other, share.pointwise)
    for k in differing:
        for up in () if share.pointwise or not wrong[k].any() else (True, False):
            moved = chosen[k](*[beside(x, up) for x in inputs])
            wrong[k] &= ~differs(moved, wanted[k], share.pointwise)
        outcomes[k].from_all = int(wrong[k].sum())
        if outcomes[k].from_all:
            place = tuple(wrong[k].nonzero()[0].tolist())
            values = [x[place].item() for x in inputs if x.shape == wanted[k].shape]
            both = f"{results[k][place].item()}, eager {wanted[k][place].item()}"
            outcomes[k].example = f"{values} at {place}: {both}"
    return outcomes


def dtype_text(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def in_turn(lists: list[list[Share]]) -> list[Share]:
    """The first share of each list, then the second of each: a run that is cut has seen all kinds."""
    longest = max(map(len, lists), default=0)
    return [shares[k] for k in range(longest) for shares in lists if k < len(shares)]


def start_worker() -> None:
    """One thread a process; compilers start no processes of their own."""
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def sweep(work: list[Share], asked: argparse.Namespace) -> tuple[list[Outcome], int]:
    """All shares' outcomes, in processes side by side; and how many shares the time did not reach.

    A share whose process dies is counted as a failure of each of its cases, once nothing else is under way.
    """
    outcomes, began = list[Outcome](), time.monotonic()
    with multiprocessing.get_context("spawn").Pool(asked.jobs, start_worker) as pool:
        inductor = not asked.no_inductor
        waiting = [(share, pool.apply_async(swept_share, (share, asked.device, inductor))) for share in work]
        heard = began
        while waiting and time.monotonic() - began < asked.most_s and time.monotonic() - heard < SILENT_S:
            ready = [(share, result) for share, result in waiting if result.ready()]
            waiting = [(share, result) for share, result in waiting if not result.ready()]
            for _, result in ready:
                heard = time.monotonic()
                for outcome in result.get():
                    outcomes.append(outcome)
                    report(outcome)
            time.sleep(0.1)
        silent = time.monotonic() - heard >= SILENT_S
    if not silent:
        return outcomes, len(waiting)
    for share, _ in waiting:
        failure = f"no answer in {SILENT_S} s: the process died, or hangs"
        outcomes += [Outcome(share.group, n, dtype_text(share.dtype), failure=failure) for n in share.names]
    return outcomes, 0


def report(o: Outcome) -> None:
    """A line for a case that differs from eager's result or fails."""
    if o.from_eager or o.failure:
        counts = "fails" if o.failure else f"{o.from_eager:5} {o.from_all:5}"
        print(f"{o.group:10} {o.name:20} {o.dtype:8} {counts} {o.failure or o.example}", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--groups", default=",".join(GROUPS), help="of cases, separated by commas")
    parser.add_argument("--dtypes", default=",".join(map(dtype_text, DTYPES)))
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--no-inductor", action="store_true", help="hold against eager and float64 only")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--most-s", type=float, default=math.inf, help="seconds after which it ends")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    names = {g: [n for n in GROUPS[g][0] if asked.only in n] for g in asked.groups.split(",")}
    dtypes = [getattr(torch, name) for name in asked.dtypes.split(",")]
    lists = [
        shares(g, dtype, asked.device, chosen) for g, chosen in names.items() if chosen for dtype in dtypes
    ]
    outcomes, unreached = sweep(in_turn(lists), asked)
    called = {op for o in outcomes if not o.left for op in o.operators}
    data: dict[str, Any] = {
        "environment": describe(asked.device, 1),
        "elements": sum(o.elements for o in outcomes),
        "cases": len(outcomes),
        "from_eager": sum(o.from_eager for o in outcomes),
        "from_all": sum(o.from_all for o in outcomes),
        "failed": sum(bool(o.failure) for o in outcomes),
        "kernels_not_reached": unreached,
        "differences": [o.__dict__ for o in outcomes if o.from_eager or o.failure],
        "left_to_eager": sorted({f"{o.name} {o.dtype}" for o in outcomes if o.left}),
        "not_called": sorted(name for name in OPS if name not in called and name + "_" not in called),
    }
    print(f"left to eager: {len(data['left_to_eager'])} cases")
    print(f"not called: {', '.join(data['not_called'])}")
    print(
        "{cases} cases, {elements} elements: {from_eager} differ from eager's, {from_all} from all; "
        "{failed} cases fail, {kernels_not_reached} kernels were not reached".format(**data)
    )
    if not asked.only:
        print(f"wrote {keep('special-values', asked.device, asked.out, data)}")


if __name__ == "__main__":
    main()
