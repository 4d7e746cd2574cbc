"""A table of formulas: what pointwise operators compute of an element of each argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from passagent.expert.lower.call import FLOATING, OPS, Call, apply, arguments, grow, shrink
from passagent.expert.lower.expressions import Value

where, fma, maximum, minimum = (partial(apply, op) for op in ("where", "fma", "maximum", "minimum"))
log1p, expm1 = (partial(apply, op) for op in ("log1p", "expm1"))


def on_cuda(x: Any) -> bool:
    """Tell whether the kernel is for CUDA, where eager's own formula is another one at times."""
    return bool(x.call.target == "cuda")


def logistic(x: Any) -> Any:
    return 1.0 / (grow(-x) + 1.0)


def inverse_root(x: Any) -> Any:
    """1 / sqrt(x): on CUDA eager takes the machine's own approximation."""
    return apply("rsqrt", x) if on_cuda(x) else 1.0 / apply("sqrt", x)


def inverse_root_of_any(x: Any) -> Any:
    """1 / sqrt(x), of subnormal numbers, too, which Triton's own form takes for zero."""
    if not on_cuda(x) or x.dtype != "float32":
        return inverse_root(x)
    tiny = x < 2.0**-126
    root = inverse_root(where(tiny, x * 2.0**24, x))
    return root * where(tiny, x.number(2.0**12), 1.0)


def reciprocal_of(dtype: str, number: float) -> float:
    """1 / number as arithmetic of that dtype has it."""
    kind = torch.float64 if dtype == "float64" else torch.float32
    return float(torch.tensor(number, dtype=kind).reciprocal())


def clip(x: Any, low: float, high: float) -> Any:
    return minimum(maximum(x, low), high)


def gelu_by_erf(x: Any) -> Any:
    scaled = x * math.sqrt(0.5)
    by_table = not on_cuda(x) and x.dtype == "float32"
    return x * 0.5 * ((_erf_of_eager(scaled) if by_table else apply("erf", scaled)) + 1.0)


def gelu_by_tanh(x: Any) -> Any:
    cube = x * x * x
    if on_cuda(x):  # (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y))
        inner = fma(cube, 0.044715, x) * math.sqrt(2 / math.pi)
        return x / (grow(inner * -2.0) + 1.0)
    inner = (x + cube * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (apply("tanh", inner) + 1.0)


def _erf_of_eager(x: Any) -> Any:
    """erf as eager's vectorised kernels have it on the CPU (Abramowitz and Stegun 7.1.26, error 1.5e-7)."""
    t = 1.0 / fma(abs(x), 0.3275911, 1.0)
    r = fma(t, 1.061405429, -1.453152027)
    for p in (1.421413741, -0.284496736, 0.254829592):
        r = fma(r, t, p)
    return apply("copysign", 1.0 - r * t * shrink(-(x * x)), x)


def _sixth(x: Any) -> Any:
    return x * reciprocal_of(x.dtype, 6.0) if on_cuda(x) else x / 6.0


def _signed(x: Any, positive: Any, negative: Any) -> Any:
    """A choice by the sign of x; 0 is positive to eager on the CPU, negative on CUDA."""
    return where(x > 0.0, positive, negative) if on_cuda(x) else where(x < 0.0, negative, positive)


def _softplus(x: Any, beta: Any, threshold: Any) -> Any:
    scaled = x * beta
    power = grow(scaled) if on_cuda(x) else apply("exp", scaled)
    return where(scaled > threshold, x, log1p(power) / beta)


def _celu(x: Any, alpha: Any) -> Any:
    return _signed(x, x, alpha * expm1(x * (1.0 / alpha) if on_cuda(x) else x / alpha))


def _selu(x: Any) -> Any:
    scale = 1.0507009873554804934193349852946
    negative = expm1(x) * (scale * 1.6732632423543772848170429916717)
    return _signed(x, x * scale, negative)


def _mish(x: Any) -> Any:
    """x tanh(log(1 + e)); on CUDA (e^2 + 2e) / (e^2 + 2e + 2), which from x = 20 on is 1."""
    if not on_cuda(x):
        return x * apply("tanh", log1p(apply("exp", x)))
    power = grow(minimum(x, 20.0))
    above = power * (power + 2.0)
    return x * (above / (above + 2.0))


def _softshrink(x: Any, by: Any) -> Any:
    inside = x * 0.0 + 0.0  # NaN, or a zero without a sign
    low = where(x < -by, x + by, inside)
    return where(x > by, x - by, low)


def _sign(x: Any) -> Any:
    if x.dtype == "bool":
        raise x.call.fail("on booleans is not lowered")
    unit, zero = x.number(1), x.number(0)
    return where(x > zero, unit, where(x < zero, x.number(-1), zero))


def _whole(x: Any) -> Any:
    return where(x < 0.0, apply("ceil", x), apply("floor", x))


def _lerp(a: Any, b: Any, w: Any) -> Any:
    by = b - a
    far = fma(-by, 1.0 - w, b) if on_cuda(a) else fma(by, w - 1.0, b)
    return where(abs(w) < 0.5, fma(w, by, a), far)


def _addcdiv(x: Any, a: Any, b: Any, by: Any) -> Any:
    return fma(by, a / b, x) if on_cuda(x) else x + by * a / b


def _abs(x: Any) -> Any:
    return abs(x) if x.dtype in FLOATING else maximum(x, -x)


@dataclass(frozen=True)
class Row:
    """The formula of an operator, of one element of each argument."""

    formula: str | Callable[..., Any]
    """An operation, or a function of a Term for each argument."""
    numbers: str = ""
    """The arguments behind the first one, with their defaults; `inplace` may follow."""
    exact: bool = False
    """True if a 16-bit type holds the result."""
    rounds: tuple[str, ...] = ()
    """Targets on which numbers have the tensor's dtype, as in eager."""
    floats: bool = False
    """True if integers are not lowered."""

    def lower(self, c: Call, *args: Any, **named: Any) -> Value:
        """The operator's result. Raises TypeError for arguments that it does not have."""
        if self.floats and c.out not in FLOATING:
            raise c.fail("on integers is not lowered")
        words = [word.partition("=") for word in f"input {self.numbers}".split()]
        names = [name for name, _, _ in words]
        values: dict[str, Any] = {name: float(default) for name, _, default in words if default}
        values |= arguments(f"{' '.join(names)} inplace", args, named)
        inputs = [values[name] for name in names]
        return c.pointwise(self.formula, *inputs, exact=self.exact, rounds=c.target in self.rounds)


BOTH = ("cpu", "cuda")
ROWS: dict[str, Row] = {
    **{op: Row(op) for op in ("exp", "log", "sqrt", "sin", "cos", "tanh", "erf", "log1p", "expm1")},
    "log2": Row("log2"),
    "log10": Row("log10"),
    "neg negative __neg__": Row("neg", exact=True),
    "abs __abs__ absolute": Row(_abs, exact=True),
    "rsqrt": Row(inverse_root),
    "reciprocal": Row(lambda x: 1.0 / x),
    "square": Row(lambda x: x * x),
    "tan": Row(lambda x: apply("tan", x) if on_cuda(x) else apply("sin", x) / apply("cos", x)),
    "sign sgn": Row(_sign, exact=True),
    "trunc fix": Row(_whole, floats=True),
    "frac": Row(lambda x: x - _whole(x), floats=True),
    "lerp": Row(_lerp, "end weight"),
    "addcmul": Row(lambda x, a, b, by: fma(by * a, b, x), "tensor1 tensor2 value=1", floats=True),
    "addcdiv": Row(_addcdiv, "tensor1 tensor2 value=1", floats=True),
    "relu": Row("relu", exact=True),
    "sigmoid": Row(logistic),
    "silu": Row(lambda x: x / (grow(-x) + 1.0)),
    "hardsigmoid": Row(lambda x: _sixth(clip(x + 3.0, 0.0, 6.0))),
    "hardswish": Row(lambda x: _sixth(x * clip(x + 3.0, 0.0, 6.0))),
    "leaky_relu": Row(lambda x, slope: where(x > 0.0, x, x * slope), "negative_slope=0.01"),
    "elu": Row(lambda x, alpha: _signed(x, x, alpha * expm1(x)), "alpha=1"),
    "celu": Row(_celu, "alpha=1"),
    "selu": Row(_selu),
    "mish": Row(_mish),
    "softplus": Row(_softplus, "beta=1 threshold=20"),
    "softshrink": Row(_softshrink, "lambd=0.5", rounds=("cuda",)),
    "hardshrink": Row(
        lambda x, by: where((x >= -by) & (x <= by), 0.0, x), "lambd=0.5", exact=True, rounds=BOTH
    ),
    "threshold": Row(lambda x, t, v: where(x <= t, v, x), "threshold value", rounds=("cuda",)),
    "logsigmoid log_sigmoid": Row(lambda x: minimum(x, 0.0) - log1p(shrink(-abs(x)))),
}
OPS.update({name: row.lower for names, row in ROWS.items() for name in names.split()})
