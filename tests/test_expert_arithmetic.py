"""Cheap forms of arithmetic keep t = -5: kernels run in Triton's interpreter with the errors that PTX states.

All 16-bit numbers are tried, and 2^20 float32 ones, of every magnitude.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from expert_cases import r
from interpreting import interpreted
from test_expert_cuda import source

INEXACT = """
    import math
    import numpy as np
    import torch
    import torch.nn.functional as F
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    from expert_cases import captured, check, write

    SIGN = 1.0

    def off(values, relative):
        return (values.astype(np.float64) * (1 + SIGN * relative)).astype(values.dtype)

    def exp(self, x):  # ex2.approx.f32 of the rounded product: 2^-22
        product = (x.data * np.float32(1.4426950408889634)).astype(np.float32)
        return TensorHandle(off(np.exp2(product), 2.0**-22), x.dtype)

    def divide(self, a, b):  # div.full.f32: two units in the last place
        return TensorHandle(off(a.data / b.data, 2.0**-22), a.dtype)

    np.seterr(all="ignore")
    InterpreterBuilder.create_exp = exp
    InterpreterBuilder.create_fdiv = divide

    def numbers(dtype):
        if dtype is not torch.float32:
            return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
        steps = torch.linspace(-126, 127, 1 << 17, dtype=torch.float64)
        return torch.cat([torch.exp2(steps), -torch.exp2(steps)]).float()
"""
"""What a GPU may give for each cheap form, the largest error that PTX allows in both directions."""

FUNCTIONS = {
    "sigmoid": "lambda x: torch.sigmoid(x)",
    "gelu by tanh": "lambda x: F.gelu(x, approximate='tanh')",
    "softplus": "lambda x: F.softplus(x)",
    "quotient": "lambda x: x / (x.abs() + 1.0)",
}


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_one_number_is_within_tolerance(name):
    interpreted(f"""{INEXACT}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = numbers(dtype)
        graph = captured({FUNCTIONS[name]}, [x])
        authored = write([graph], target="cuda")
        for SIGN in (1.0, -1.0):
            check(authored, graph, [x])
    """)


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "dtypes"),
    [
        ("F.softmax(x, -1)", "torch.float32, torch.float16"),
        ("F.log_softmax(x, -1)", "torch.float32,"),  # in 16 bits eager on the CPU is itself further off
        ("torch.logsumexp(x, -1)", "torch.float32, torch.float16"),
    ],
)
def test_a_row_is_within_tolerance(function, dtypes):
    interpreted(f"""{INEXACT}
    generator = torch.Generator().manual_seed(0)
    for dtype in ({dtypes}):
        for spread in (1e-3, 1.0, 30.0, 1e4):
            x = (torch.randn(16, 300, generator=generator) * spread).to(dtype)
            graph = captured(lambda x: {function}, [x])
            authored = write([graph], target="cuda")
            for SIGN in (1.0, -1.0):
                check(authored, graph, [x])
    """)


@pytest.mark.parametrize(
    ("function", "is_cheap"),
    [
        (lambda x, y: x / y + 1.0, True),
        (lambda x, y: torch.floor(x / y), False),
        (lambda x, y: torch.where(x / y > 0.5, x, y), False),
        (lambda x, y: (x / y).double() * 2.0, True),
        (lambda x, y: torch.argmax(x / y + 1.0, -1), False),
        (lambda x, y: (x / y + 1.0) @ y.T, True),
    ],
)
def test_what_decides_is_exact(function, is_cheap):
    text = source(function, [r(9, 8), r(9, 8, seed=1)])
    assert ("x_v / x2_v" in text) == is_cheap
    assert ("tl.div_rn(x_v, x2_v)" in text) != is_cheap


def test_a_row_is_divided_by_its_sum_once_and_a_mean_is_exact():
    text = source(lambda x: F.softmax(x, -1), [r(9, 300)])
    assert "tl.div_rn(1.0, sum_v)" in text and "power * ratio" in text
    assert "tl.div_rn(sum_v, " in source(lambda x: F.rms_norm(x, (300,), None, 1e-6), [r(9, 300)])


def test_an_exponential_that_is_a_result_is_exact():
    assert "libdevice.exp(" in source(lambda x: torch.exp(x) * 2.0, [r(9, 300)])
    assert "tl.exp(" not in source(lambda x: x.double().sigmoid(), [r(9)])
