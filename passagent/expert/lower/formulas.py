"""Formulas of pointwise operators: what each computes of an element of every argument."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from passagent.expert.lower.expressions import FLOATING, Expr, apply
from passagent.expert.lower.symbolic_sizes import Unsupported

where, fma, maximum, minimum = (partial(apply, op) for op in ("where", "fma", "maximum", "minimum"))
log1p, expm1 = (partial(apply, op) for op in ("log1p", "expm1"))


def on_cuda(x: Expr) -> bool:
    """Tell whether the kernel is for CUDA, where eager's own formula is another one at times."""
    return x.trace.target == "cuda"


def grow(x: Expr) -> Expr:
    """exp(x) that is added to something larger, so that its own last places do not show."""
    return apply("exp_added", x)


def shrink(x: Expr) -> Expr:
    """exp(x) of x up to 0, in a sum with exp(0)."""
    return apply("exp_added" if on_cuda(x) else "exp_below", x)


def logistic(x: Expr) -> Expr:
    return 1.0 / (grow(-x) + 1.0)


def inverse_root(x: Expr) -> Expr:
    """1 / sqrt(x): on CUDA eager takes the machine's own approximation."""
    return apply("rsqrt", x) if on_cuda(x) else 1.0 / apply("sqrt", x)


def inverse_root_of_any(x: Expr) -> Expr:
    """1 / sqrt(x), of subnormal numbers, too, which Triton's own form takes for zero."""
    if not on_cuda(x) or x.dtype != "float32":
        return inverse_root(x)
    tiny = x < 2.0**-126
    root = inverse_root(where(tiny, x * 2.0**24, x))
    return root * where(tiny, x.trace.number(2.0**12, x.dtype), 1.0)


def reciprocal_of(dtype: str, number: float) -> float:
    """1 / number as arithmetic of that dtype has it."""
    kind = torch.float64 if dtype == "float64" else torch.float32
    return float(torch.tensor(number, dtype=kind).reciprocal())


def clip(x: Expr, low: float, high: float) -> Expr:
    return minimum(maximum(x, low), high)


def gelu_by_erf(x: Expr) -> Expr:
    scaled = x * math.sqrt(0.5)
    by_table = not on_cuda(x) and x.dtype == "float32"
    return x * 0.5 * ((_erf_of_eager(scaled) if by_table else apply("erf", scaled)) + 1.0)


def gelu_by_tanh(x: Expr) -> Expr:
    cube = x * x * x
    if on_cuda(x):  # (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y))
        inner = fma(cube, 0.044715, x) * math.sqrt(2 / math.pi)
        return x / (grow(inner * -2.0) + 1.0)
    inner = (x + cube * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (apply("tanh", inner) + 1.0)


GELUS = {"none": gelu_by_erf, "tanh": gelu_by_tanh}


def _erf_of_eager(x: Expr) -> Expr:
    """erf as eager's vectorised kernels have it on the CPU (Abramowitz and Stegun 7.1.26, error 1.5e-7)."""
    t = 1.0 / fma(abs(x), 0.3275911, 1.0)
    r = fma(t, 1.061405429, -1.453152027)
    for p in (1.421413741, -0.284496736, 0.254829592):
        r = fma(r, t, p)
    return apply("copysign", 1.0 - r * t * shrink(-(x * x)), x)


def sixth(x: Expr) -> Expr:
    return x * reciprocal_of(x.dtype, 6.0) if on_cuda(x) else x / 6.0


def by_sign(x: Expr, positive: Any, negative: Any) -> Expr:
    """A choice by the sign of x; 0 is positive to eager on the CPU, negative on CUDA."""
    return where(x > 0.0, positive, negative) if on_cuda(x) else where(x < 0.0, negative, positive)


def softplus(x: Expr, beta: Any, threshold: Any) -> Expr:
    scaled = x * beta
    power = grow(scaled) if on_cuda(x) else apply("exp", scaled)
    return where(scaled > threshold, x, log1p(power) / beta)


def selu(x: Expr) -> Expr:
    scale = 1.0507009873554804934193349852946
    negative = expm1(x) * (scale * 1.6732632423543772848170429916717)
    return by_sign(x, x * scale, negative)


def mish(x: Expr) -> Expr:
    """x tanh(log(1 + e)); on CUDA (e^2 + 2e) / (e^2 + 2e + 2), which from x = 20 on is 1."""
    if not on_cuda(x):
        return x * apply("tanh", log1p(apply("exp", x)))
    power = grow(minimum(x, 20.0))
    above = power * (power + 2.0)
    return x * (above / (above + 2.0))


def softshrink(x: Expr, by: Any) -> Expr:
    inside = x * 0.0 + 0.0  # NaN, or a zero without a sign
    low = where(x < -by, x + by, inside)
    return where(x > by, x - by, low)


def sign(x: Expr) -> Expr:
    if x.dtype == "bool":
        raise Unsupported("sign", "on booleans is not lowered")
    unit, zero, less = (x.trace.number(n, x.dtype) for n in (1, 0, -1))
    return where(x > zero, unit, where(x < zero, less, zero))


def truncated(x: Expr) -> Expr:
    return where(x < 0.0, apply("ceil", x), apply("floor", x))


def lerp(a: Any, b: Any, w: Any) -> Expr:
    by = b - a
    far = fma(-by, 1.0 - w, b) if on_cuda(a) else fma(by, w - 1.0, b)
    return where(abs(w) < 0.5, fma(w, by, a), far)


def absolute(x: Expr) -> Expr:
    return abs(x) if x.dtype in FLOATING else maximum(x, -x)


def square(x: Expr) -> Expr:
    return apply("mul", x, x)


def scaled_sum(name: str, x: Expr, y: Expr, by: Expr) -> Expr:
    """x + by * y or x - by * y: one multiply-add in eager's kernels."""
    if x.dtype in FLOATING:
        return fma(-by if name == "sub" else by, y, x)
    return apply(name, x, apply("mul", by, y))


def by_reciprocal(x: Expr, y: Expr) -> Expr:
    """x / y: eager's CUDA kernel multiplies by the reciprocal of a number that is known before the launch."""
    is_constant = y.kind == "const" and y.data
    return x * (reciprocal_of(x.dtype, y.data) if is_constant else 1.0 / y)
