"""Small functions as captured graphs, and what the expert makes of them."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from closeness import assert_as_near

from passagent.evaluator.correctness.double import in_float64
from passagent.evaluator.matching.loaded_passes import load_passes
from passagent.evaluator.matching.rewrite import Rewritten, apply_passes
from passagent.evaluator.result import Candidate
from passagent.expert.author import Authored, author
from passagent.expert.choices import Plan, default
from passagent.tasks.capture import Captured, capture

SCRATCH = tempfile.TemporaryDirectory(prefix="passagent-tests-")
"""Where candidates' files lie until the process ends: Triton reads a kernel's text at its first call."""


class Module(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@functools.cache
def case_of(name: str) -> tuple[Captured, Sequence[Any]]:
    """The graph and the inputs of a case of CASES."""
    function, inputs = CASES[name]
    return captured(function, inputs), inputs


def captured(function: Callable[..., Any], inputs: Sequence[Any]) -> Captured:
    """The function's graph."""
    return capture(Module(function), list(inputs))


def write(graphs: list[Captured], target: str = "cpu", plan: Plan | None = None) -> Authored:
    """What the expert writes for these graphs."""
    return author([c.graph_module.graph for c in graphs], target, plan or default(target))


def rewritten(authored: Authored, graph: Captured) -> Rewritten:
    """The graph with the passes applied."""
    passes = load_passes(Candidate(authored.files), Path(tempfile.mkdtemp(dir=SCRATCH.name)))
    return apply_passes(copy.deepcopy(graph.graph_module), passes)


def check(authored: Authored, graph: Captured, inputs: Sequence[Any]) -> Rewritten:
    """Apply the passes and hold the outputs against eager's and float64, with exact shapes and dtypes."""
    result = rewritten(authored, graph)
    assert result.applied, [m.reason for m in result.mismatches]
    eager = graph.graph_module(*fresh(graph, inputs))
    ours = result.graph_module(*fresh(graph, inputs))
    exact = in_float64(graph.graph_module, fresh(graph, inputs)) or [None] * len(eager)
    for have, want, true in zip(ours, eager, exact, strict=True):
        assert_as_near(have, want, true)
    return result


def held(
    function: Callable[..., Any], inputs: Sequence[Any], target: str = "cpu", plan: Plan | None = None
) -> Authored:
    """What the expert writes for a function, once it was held against eager on these inputs."""
    graph = captured(function, inputs)
    authored = write([graph], target, plan)
    check(authored, graph, inputs)
    return authored


def held_in_each(cases: Sequence[tuple[Callable[..., Any], Sequence[Any]]], target: str = "cpu") -> Authored:
    """What the expert writes for several graphs of a task, once it was held against eager in each."""
    graphs = [captured(*case) for case in cases]
    authored = write(graphs, target)
    for graph, (_, inputs) in zip(graphs, cases, strict=True):
        check(authored, graph, inputs)
    return authored


def check_empty(function: Callable[..., Any], inputs: Sequence[torch.Tensor], target: str = "cpu") -> None:
    """With each of the sizes 0 in turn: eager's outputs, or an error that names the shapes."""
    graph = captured(function, inputs)
    authored, tried = write([graph], target), 0
    for size in {n for x in inputs for n in x.shape}:
        empty = [x.new_zeros([n * (n != size) for n in x.shape]) for x in inputs]
        try:
            graph.graph_module(*fresh(graph, empty))
        except (RuntimeError, IndexError):
            continue  # eager has no answer
        tried += 1
        try:
            check(authored, graph, empty)
        except RuntimeError as error:
            if "does not take tensors of shapes" not in str(error):
                raise
    assert tried


def fresh(graph: Captured, inputs: Sequence[Any]) -> list[Any]:
    return [inputs[i].clone() if isinstance(inputs[i], torch.Tensor) else inputs[i] for i in graph.order]


def r(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal draws; the seed is mixed with the shape, so that inputs differ."""
    generator = torch.Generator().manual_seed(seed + sum(shape) * 7 + len(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def mask(batch: int, length: int) -> torch.Tensor:
    """An additive mask; the first row is -inf throughout."""
    keep = torch.rand(batch, 1, 1, length, generator=torch.Generator().manual_seed(3)) > 0.3
    keep[0] = False
    return torch.zeros(keep.shape).masked_fill(~keep, float("-inf"))


def pooled(hidden: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
    wide = attention.unsqueeze(-1).expand(hidden.size()).float()
    return (hidden * wide).sum(1) / torch.clamp(wide.sum(1), min=1e-9)


def norm_pool(x: Any, m: Any, v: Any, w: Any, b: Any) -> Any:
    y = F.relu(F.batch_norm(x, m, v, w, b, False, 0.1, 1e-5), inplace=True)
    return y, F.adaptive_avg_pool2d(y, 1).flatten(1)


def rms(x: Any, residual: Any, w: Any) -> Any:
    h = x + residual
    scale = torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return h, w * (h.float() * scale).to(h.dtype)


def gated(x: torch.Tensor) -> torch.Tensor:
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def window(x: Any, w: Any, b: Any, residual: Any) -> Any:
    rolled = torch.roll(x.view(-1, 8, 8, 24), shifts=(3, 3), dims=(1, 2))[:, :7, :7, :].contiguous()
    return residual + F.layer_norm(rolled.view(1, 49, 24), (24,), w, b, 1e-5)


CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "broadcast": (lambda a, b, c: torch.sigmoid(a * b + 1.0) * c, [r(2, 3, 5, 7), r(3, 1, 1), r(2, 1, 5, 1)]),
    "silu_mul": (lambda a, b: F.silu(a) * b, [r(700, 33), r(700, 33, seed=1)]),
    "masked_softmax": (lambda s, m: F.softmax(s / 8.0 + m, dim=-1), [r(2, 4, 9, 9), mask(2, 9)]),
    "softmax_inner": (lambda a: F.softmax(a * 0.5, dim=1), [r(3, 5, 40)]),
    "layer_norm": (
        lambda x, y, w, b: F.layer_norm(x + y, (96,), w, b, 1e-5),
        [r(3, 11, 96), r(3, 11, 96, seed=1), r(96), r(96, seed=2)],
    ),
    "rms_norm": (rms, [r(3, 11, 96), r(3, 11, 96, seed=1), r(96)]),
    "group_norm": (
        lambda x, w, b: F.silu(F.group_norm(x, 4, w, b, 1e-5)),
        [r(2, 8, 5, 5), r(8), r(8, seed=1)],
    ),
    "norm_pool": (norm_pool, [r(2, 6, 9, 9), r(6), r(6).abs() + 0.5, r(6, seed=2), r(6, seed=3)]),
    "masked_mean": (pooled, [r(2, 17, 40), torch.randint(0, 2, (2, 17))]),
    "window": (window, [r(1, 8, 8, 24), r(24), r(24, seed=1), r(1, 49, 24)]),
    "permute_out": (
        lambda x, y: (x + y).permute(0, 2, 1).contiguous() * 2.0,
        [r(2, 5, 30), r(2, 5, 30, seed=1)],
    ),
    "cat_norm": (
        lambda x, y, m, v: F.relu(F.batch_norm(torch.cat([x, y], 1), m, v, None, None, False)),
        [r(2, 3, 6, 6), r(2, 4, 6, 6), r(7), r(7).abs() + 0.5],
    ),
    "rotate": (
        lambda x, c, s: x * c + torch.cat((-x[..., 8:], x[..., :8]), -1) * s,
        [r(2, 3, 5, 16), r(5, 16), r(5, 16, seed=1)],
    ),
    "stack": (lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(2, 5, 12) * x, [r(2, 5, 12)]),
    "embedding": (
        lambda i, t, p: F.embedding(i, t) * 3.0 + p,
        [torch.randint(0, 50, (2, 9)), r(50, 16), r(9, 16)],
    ),
    "chunk": (gated, [r(4, 7, 20)]),
    "transposed_self": (lambda x: x.softmax(-1) + x.softmax(-1).transpose(0, 1), [r(9, 9)]),
    "where": (lambda x, y: torch.where(x > y, x, y * 2).masked_fill(x < 0, -5.0), [r(7, 9), r(7, 9, seed=1)]),
    "outer": (lambda p: (p[:, None] - p[None, :]).abs().float() * 0.5, [torch.randint(0, 9, (13,))]),
    "amax": (lambda x: (x * 2).amax(-1) + x.sum(-1), [r(6, 40)]),
    "max_along": (lambda x: torch.max(x, dim=1)[0], [r(5, 7, 33)]),
}

BLOCKS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "layer_norm_transposed": (
        lambda x, w, b: F.layer_norm(F.gelu(x).flatten(2).transpose(1, 2), (40,), w, b, 1e-5),
        [r(2, 40, 7, 9), r(40), r(40, seed=1)],
    ),
    "layer_norm_of_patches": (
        lambda x, first, places, w: F.layer_norm(
            torch.cat([first.expand(1, -1, -1), x.flatten(2).transpose(1, 2)], 1) + places, (24,), w
        ),
        [r(1, 24, 4, 5), r(1, 1, 24), r(1, 21, 24), r(24)],
    ),
    "narrow": (lambda x: F.layer_norm(x.transpose(1, 2), (1100,)) * 2.0, [r(2, 1100, 17)]),
    "tall": (lambda x: F.layer_norm(x.transpose(1, 2), (2100,)) * 2.0, [r(2, 2100, 17)]),
    "pools_of_a_softmax": (
        lambda x: F.avg_pool3d(F.max_pool3d(F.softmax(x, 1), 2), 2, 1, 1, False, True, None),
        [r(2, 5, 4, 8, 6)],
    ),
    "pools_over_an_edge": (
        lambda x: F.avg_pool2d(F.max_pool2d(x, 3, 2, ceil_mode=True).relu(), 2, 2, 1, True, False),
        [r(2, 3, 10, 9)],
    ),
    "patches": (
        lambda x, y: torch.cat([F.unfold(x, (3, 2), stride=2).permute(2, 0, 1), y], 0).relu(),
        [r(2, 3, 7, 8), r(2, 2, 18)],
    ),
    "mean_outer": (lambda x: x.mean(1) * 2.0, [r(3, 37, 50)]),
    "softmax_outer": (lambda x: F.softmax(x * 2.0, 1), [r(3, 37, 50)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b) + 1.0, [r(2, 8, 7, 9), r(8), r(8, seed=1)]),
    "group_norm_long": (lambda x, w: F.group_norm(x, 1, w) + 1.0, [r(1, 20, 30, 31), r(20)]),
    "cat_layer_norm": (
        lambda a, b, w, v: F.layer_norm(torch.cat([a, b], -1).view(1, -1, 24), (24,), w, v, 1e-5),
        [r(1, 4, 4, 12), r(1, 4, 4, 12, seed=1), r(24), r(24, seed=1)],
    ),
    "long": (lambda x: F.softmax(x * 2.0, -1), [r(3, 17000)]),
    "transpose": (
        lambda x, y: (x.transpose(1, 2) + y).contiguous(),
        [r(3, 40, 70), r(3, 70, 40)],
    ),
    "sum_pool": (lambda x: F.adaptive_avg_pool2d(x.sum(1), 1), [r(2, 3, 8, 5, 5)]),
    "mean_of_rows": (lambda x: F.softmax(x, -1).mean(1), [r(4, 30, 50)]),
}
"""For the forms of blocks that CUDA kernels have."""

LAYOUTS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "pointwise": (lambda x, y: torch.tanh(x + y) * 2.0, [r(7, 4, 5).permute(1, 2, 0), r(4, 5, 7)]),
    "all alike": (
        lambda x, y: torch.tanh(x + y) * 2.0,
        [r(5, 4, 7).transpose(0, 1), r(5, 4, 7).transpose(0, 1)],
    ),
    "channels last": (
        lambda x, w: F.relu(x * w + 1.0),
        [r(2, 6, 5, 8).contiguous(memory_format=torch.channels_last), r(6, 1, 1)],
    ),
    "rows": (
        lambda x, w: F.layer_norm(x.permute(0, 2, 3, 1) * 2.0, (24,), w),
        [r(2, 5, 3, 24).permute(0, 3, 1, 2), r(24)],
    ),
    "reduced": (lambda x: F.softmax(x * 2.0, 1).mean(-1), [r(7, 33, 4).permute(2, 1, 0)]),
    "einsum": (
        lambda a, b, x: (torch.einsum("bchj,bhwj->bchw", a, b) + x).mul(2.0).contiguous(),
        [r(2, 3, 4, 6), r(2, 4, 5, 6), r(2, 3, 4, 5)],
    ),
    "one batch": (lambda x, y: torch.tanh(x + y), [r(1, 6, 9, 5).transpose(1, 2), r(1, 9, 6, 5)]),
}
"""With inputs that do not lie row-major; some in a permutation that is not its own inverse."""
