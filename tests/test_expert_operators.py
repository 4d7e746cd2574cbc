"""Every operator that the expert lowers equals eager, in several shapes, dtypes and broadcasts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from expert_cases import captured, check, r, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from passagent.expert import graph


def several(functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    """One function with an output for each: one kernel to build."""
    return lambda *args: tuple(function(*args) for function in functions)


UNARY: list[Callable[[Any], Any]] = [
    F.relu, F.relu6, F.hardtanh, F.hardswish, F.hardsigmoid, F.silu, F.gelu, F.mish, F.selu, F.celu, F.elu,
    F.leaky_relu, F.softplus, F.softsign, F.tanhshrink, F.softshrink, F.hardshrink, F.logsigmoid, F.rrelu,
    lambda x: F.threshold(x, 0.1, -2.0), lambda x: F.gelu(x, approximate="tanh"), lambda x: F.celu(x, 0.7),
    torch.sigmoid, torch.tanh, torch.exp, torch.abs, torch.neg, torch.square, torch.sin, torch.cos,
    torch.erf, torch.floor, torch.ceil, torch.round, torch.trunc, torch.frac, torch.sign, torch.expm1,
    torch.isnan, torch.isinf, torch.isfinite, lambda x: x.clamp(-0.5, 0.5), lambda x: x.clamp_max(0.2),
    lambda x: x.pow(2), lambda x: x.pow(3), lambda x: x.masked_fill(x > 0.3, -1.0),
    lambda x: torch.where(x < 0, x, 0.0), lambda x: 2.0 - x, lambda x: torch.add(x, x, alpha=0.5),
]  # fmt: skip
POSITIVE: list[Callable[[Any], Any]] = [
    torch.sqrt, torch.rsqrt, torch.log, torch.log2, torch.log10, torch.log1p, torch.reciprocal,
    lambda x: x.pow(0.5), lambda x: x.pow(-0.5), lambda x: 1.0 / x, lambda x: x**-1,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.sub, operator.mul, lambda a, b: a / (b.abs() + 1.0), torch.maximum, torch.minimum,
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
    lambda a, b: (a > 0) & (b > 0), lambda a, b: (a > 0) | (b > 0), lambda a, b: (a > 0) ^ (b > 0),
    lambda a, b: ~(a > b), lambda a, b: torch.lerp(a, b, 0.3), lambda a, b: torch.addcmul(a, a, b, value=0.5),
    lambda a, b: torch.addcdiv(a, a, b.abs() + 1.0), lambda a, b: torch.where(a > b, a, b),
]  # fmt: skip
REDUCTIONS: list[Callable[[Any], Any]] = [
    lambda x: x.sum(-1), lambda x: x.mean(0), lambda x: x.amax(-1), lambda x: x.amin(0), torch.sum,
    lambda x: x.max(-1)[0], lambda x: x.min(0).values, lambda x: x.norm(dim=-1), lambda x: x.norm(1, -1),
    lambda x: x.norm(float("inf"), 0), lambda x: (x > 0).any(-1), lambda x: (x > 0).all(0),
    lambda x: F.softmax(x, -1), lambda x: F.softmax(x, 0), lambda x: F.softmin(x, -1),
    lambda x: F.log_softmax(x, -1), lambda x: F.normalize(x, dim=-1), lambda x: F.normalize(x, dim=0),
]  # fmt: skip
STATISTICS: list[Callable[[Any], Any]] = [
    lambda x: x.var(-1), lambda x: x.std(0), lambda x: x.std(-1, unbiased=False), lambda x: x.logsumexp(-1),
    lambda x: torch.var_mean(x, -1)[0], lambda x: torch.std_mean(x, 0)[1],
    lambda x: F.instance_norm(x[None]), lambda x: F.rms_norm(x, (x.shape[-1],), None, 1e-6),
    lambda x: F.glu(torch.cat([x, x + 1], -1)), lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: (x * 1000.0).logsumexp(-1),
]  # fmt: skip
IMAGES: list[Callable[[Any], Any]] = [
    lambda x: F.pixel_shuffle(x, 2), lambda x: F.pixel_unshuffle(x, 2), lambda x: F.channel_shuffle(x, 2),
    lambda x: F.group_norm(x, 2), lambda x: x.flip(-1), lambda x: x.flip(1, 2),
    lambda x: x.tril(), lambda x: x.triu(1), lambda x: x.movedim(1, -1), lambda x: torch.roll(x, 3),
    lambda x: torch.roll(x, (1, -2), (2, 3)), lambda x: F.pad(x, (1, 2, 0, 1)), lambda x: x.unfold(2, 2, 2),
    lambda x: F.pad(x, (1, 2, 2, 0), mode="reflect"), lambda x: F.pad(x, (3, 0, 0, 2), mode="replicate"),
    lambda x: F.adaptive_avg_pool2d(x, 1), lambda x: x.repeat(1, 2, 1, 1), lambda x: x[:, :, 1::2, :-1],
    lambda x: x.transpose(1, 2).reshape(x.shape[0], -1), lambda x: x.repeat_interleave(2, 1),
    lambda x: torch.stack([x, x + 1], 2).flatten(1, 2), lambda x: torch.cat([x, x * 2], axis=1),
    lambda x: F.unfold(x, (2, 3), stride=(1, 2)), lambda x: F.unfold(x, 2, 2, (1, 0), 1),
]  # fmt: skip
WINDOWS: list[Callable[[Any], Any]] = [
    lambda x: F.interpolate(x, scale_factor=2), lambda x: F.interpolate(x, size=(12, 24)),
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
    lambda x: F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=False),
    lambda x: F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=True),
    lambda x: F.max_pool2d(x, 2), lambda x: F.max_pool2d(x, (3, 1), (2, 1), (1, 0)),
    torch.nn.AvgPool2d(3, 1, 1), lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True), lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
]  # fmt: skip
GATHERS: list[Callable[[Any, Any], Any]] = [
    lambda t, i: F.embedding(i, t), lambda t, i: t[i], lambda t, i: t[i - 3], lambda t, i: t[:, i],
    lambda t, i: t[i, i - 2], lambda t, i: t[i][..., None], lambda t, i: t.gather(1, i[:, :2]),
    lambda t, i: F.one_hot(i, 9), lambda t, i: t.index_select(0, i[0]),
]  # fmt: skip
CONVOLUTIONS: list[Callable[[Any, Any, Any], Any]] = [
    lambda x, w, b: F.conv2d(x, w, groups=6), lambda x, w, b: F.conv2d(x, w, b, (1, 2), (2, 0), 2, 6),
    lambda x, w, b: F.conv2d(x, w[:, :, :1, :1].contiguous(), b, groups=6).relu(),
    lambda x, w, b: F.conv1d(x[:, :, 0], w[:, :, 0], b, padding=1, groups=6),
    lambda x, w, b: F.conv2d(x.tanh(), w, b, padding=1, groups=6).flatten(2).transpose(1, 2).sigmoid(),
    lambda x, w, b: F.max_pool2d(F.conv2d(x, w, b, 1, 1, 1, 6), 2),
]  # fmt: skip


def equal_to_eager(functions: list[Callable[..., Any]], inputs: list[Any]) -> None:
    """All in kernels, none left out, and what they give is what eager gives."""

    def all_of(*args: Any) -> Any:
        return several(functions)(*args)

    kept = captured(all_of, inputs)
    authored = write([kept])
    result = check(authored, kept, inputs)
    left = [n for n in result.graph_module.graph.nodes if n.op in {"call_function", "call_method"}]
    names = {n.name for n in left if not n.name.startswith("call")}
    assert not authored.refused, authored.refused
    assert len(names) <= len(functions) // 3, names  # free views, and what no kernel pays for


pytestmark = pytest.mark.slow

FLOAT, HALF, BFLOAT = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("functions", "dtype"),
    [(UNARY, BFLOAT), (POSITIVE, FLOAT)],
)
def test_unary(functions, dtype):
    x = r(5, 37, dtype=dtype)
    equal_to_eager(functions, [x.abs() + 0.5 if functions is POSITIVE else x])


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    drop=st.tuples(*[st.sampled_from(["keep", "one"])] * 4),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
@pytest.mark.long
def test_binary_broadcasts(shape, drop, dtype):
    other = [1 if how == "one" else n for n, how in zip(shape, drop, strict=False)]
    equal_to_eager(BINARY, [r(*shape, dtype=dtype), r(*other, dtype=dtype, seed=1)])


def test_reductions():
    equal_to_eager(REDUCTIONS, [r(6, 33, dtype=HALF)])


def test_statistics():
    equal_to_eager(STATISTICS, [r(6, 33)])


def test_images():
    equal_to_eager(IMAGES, [r(2, 4, 6, 8, dtype=BFLOAT)])


def test_windows(monkeypatch):
    monkeypatch.setitem(graph.SLOW_ON, "cpu", set())  # what is lowered for CUDA is checked here
    equal_to_eager(WINDOWS, [r(2, 3, 6, 8, dtype=HALF)])


def test_depthwise_convolutions(monkeypatch):
    monkeypatch.setitem(graph.SLOW_ON, "cpu", set())
    shapes = (2, 6, 7, 9), (6, 1, 3, 3), (6,)
    equal_to_eager(CONVOLUTIONS, [r(*shape, dtype=BFLOAT) for shape in shapes])


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(window=st.lists(st.tuples(*[st.integers(1, 4)] * 2), min_size=2, max_size=2), data=st.data())
@pytest.mark.long
def test_windows_of_any_kind(window, data, monkeypatch):
    monkeypatch.setitem(graph.SLOW_ON, "cpu", set())
    kernel, stride = zip(*window, strict=True)
    padding = tuple(data.draw(st.integers(0, size // 2)) for size in kernel)
    rounds_up, counts = data.draw(st.booleans()), data.draw(st.booleans())
    function = data.draw(
        st.sampled_from(
            [
                lambda x: F.max_pool2d(x, kernel, stride, padding, ceil_mode=rounds_up) * 2,
                lambda x: F.avg_pool2d(x, kernel, stride, padding, rounds_up, counts) * 2,
            ]
        )
    )
    x = r(2, 3, *data.draw(st.tuples(*[st.integers(5, 11)] * 2)))
    kept = captured(function, [x])
    authored = write([kept])
    assert not authored.refused or "hangs over" in str(authored.refused)
    if not authored.refused:
        check(authored, kept, [x])


def test_windows_of_three_dimensions(monkeypatch):
    monkeypatch.setitem(graph.SLOW_ON, "cpu", set())
    functions = [
        lambda x: F.max_pool3d(x, 2, 1, 1, 2),
        lambda x: F.avg_pool3d(x * 2, (1, 2, 3), 1, (0, 1, 1)),
        lambda x: F.avg_pool3d(F.avg_pool3d(x, 2), 2).relu(),
    ]  # fmt: skip
    equal_to_eager(functions, [r(2, 3, 4, 6, 8)])


def test_gathers():
    equal_to_eager(GATHERS, [r(9, 9), torch.randint(3, 9, (4, 5))])
