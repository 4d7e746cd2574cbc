"""Comparison of outputs: metadata exactly, values by level."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from passagent.evaluator.compare import compare
from passagent.evaluator.rounding import to_bfloat16_bits
from passagent.evaluator.score import tolerance

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@given(st.sampled_from(DTYPES), st.integers(0, 2**31 - 1), st.floats(1e-9, 30), st.booleans())
def test_level_is_the_smallest_that_allclose_accepts(dtype, seed, scale, relative):
    generator = torch.Generator().manual_seed(seed)
    want = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(7, 5, generator=generator, dtype=torch.float64) * scale
    want, have = want.to(dtype), (want + (noise * want if relative else noise)).to(dtype)
    found = compare([want], [have]).passes_from_t
    name = str(dtype).removeprefix("torch.")

    def accepted(t):
        atol, rtol = tolerance(name, t)
        return torch.allclose(have.double(), want.double(), rtol=rtol, atol=atol)

    expected = next((t for t in range(-10, 2) if accepted(t)), None)
    assert found == expected


def test_nan_and_infinity_are_values():
    nan, inf = float("nan"), float("inf")
    want = torch.tensor([nan, inf, -inf, 1.0])
    assert compare([want], [want.clone()]).passes_from_t == -10
    assert compare([want], [torch.tensor([0.0, inf, -inf, 1.0])]).passes_from_t is None
    assert compare([want], [torch.tensor([nan, -inf, -inf, 1.0])]).passes_from_t is None
    assert compare([want], [torch.tensor([nan, 3e38, -inf, 1.0])]).passes_from_t is None
    assert compare([torch.zeros(1)], [torch.tensor([nan])]).passes_from_t is None


def test_metadata_is_exact():
    a = torch.zeros(2, 3)
    assert "shape" in compare([a], [torch.zeros(1, 3)]).problem
    assert "float16" in compare([a], [a.half()]).problem
    assert "2 outputs" in compare([a], [a, a]).problem
    assert compare([a], [a.t().contiguous().t()]).problem is None


def test_worst_element_is_named():
    want = torch.ones(3, 4)
    have = want.clone()
    have[1, 2] = 5.0
    result = compare([torch.zeros(2), want], [torch.zeros(2), have])
    assert (result.worst.output, result.worst.index) == (1, [1, 2])
    assert (result.worst.expected, result.worst.got) == (1.0, 5.0)
    assert result.max_abs_diff == 4.0


def test_integers_must_be_equal():
    assert compare([torch.arange(4)], [torch.arange(4)]).passes_from_t == -10
    assert compare([torch.arange(4)], [torch.arange(4) + 1]).passes_from_t is None


def test_the_interpreters_cast_to_bfloat16_rounds_as_torch_does():
    values = torch.randn(10_000) * torch.logspace(-40, 38, 10_000)
    values[:6] = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 3.39e38])
    rounded = torch.from_numpy(to_bfloat16_bits(values.numpy()).view("int16")).view(torch.bfloat16)
    assert torch.equal(rounded.isnan(), values.isnan())
    assert torch.equal(rounded.nan_to_num(), values.bfloat16().nan_to_num())
