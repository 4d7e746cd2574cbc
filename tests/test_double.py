"""Eager in float64: nearer to what the graph means than eager itself, or None where it cannot run."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from passagent.evaluator.correctness.double import in_float64
from passagent.evaluator.correctness.settled import settle
from passagent.evaluator.score import tolerance
from passagent.tasks.capture import capture

LOW = [torch.float32, torch.bfloat16, torch.float16]
EPS = 1e-5


def graph(function) -> fx.GraphModule:
    return fx.symbolic_trace(function)


def captured(function, inputs) -> tuple[fx.GraphModule, list]:
    """What Dynamo captures of the function, and the inputs in the graph's order."""
    module = torch.nn.Module()
    module.forward = function
    found = capture(module, inputs)
    return found.graph_module, [inputs[i] for i in found.order]


def draw(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def error(have: torch.Tensor, exact: torch.Tensor) -> float:
    return float((have.double() - exact).norm() / exact.norm())


def rms_norm(x, w):
    """As models write it: up to float32, down again before the weight."""
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return w * (wide * scale).to(x.dtype)


def rms_norm_exact(x, w):
    return w * (x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt())


def casting(dtype):
    def attention(x, y):
        scores = torch.matmul(x, y.transpose(0, 1)) * 0.125
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(dtype)
        return torch.matmul(weights, y)

    return attention


def attention_exact(x, y):
    scores = x @ y.T * 0.125
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ y


def constants(dtype):
    def function(x, y):
        half = torch.full((64,), 0.7, dtype=dtype)
        table = torch.arange(64, dtype=dtype) / 64
        return (x * half + table).to(torch.float16).sum(-1) + y.half().sum(-1) * 0.1

    return function


def constants_exact(x, y):
    return (x * 0.7 + torch.arange(64, dtype=torch.float64) / 64).sum(-1) + 0.1 * y.sum(-1)


def chain(x, y):
    z = F.gelu(x * 0.5 + y, approximate="tanh")
    return F.silu(z).mean(-1, keepdim=True) - torch.tanh(y).var(-1, unbiased=False, keepdim=True)


def chain_exact(x, y):
    z = x * 0.5 + y
    z = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return (z / (1 + torch.exp(-z))).mean(-1, keepdim=True) - y.tanh().var(-1, unbiased=False, keepdim=True)


def norm(x, y):
    return F.layer_norm(x.float(), (64,), y[0].float(), y[1].float(), EPS).to(x.dtype)


def norm_exact(x, y):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() * y[0] + y[1]


CASES = {
    "rms_norm": (lambda _: rms_norm, rms_norm_exact),
    "softmax in float32": (casting, attention_exact),
    "constants of a half type": (constants, constants_exact),
    "a chain": (lambda _: chain, chain_exact),
    "layer_norm": (lambda _: norm, norm_exact),
}


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_it_is_nearer_to_the_mathematics_than_eager(name, dtype):
    make, exact = CASES[name]
    x, y = draw((32, 64), (32, 64), dtype=dtype)
    inputs = [x, y[0] if name == "rms_norm" else y]
    traced, given = captured(make(dtype), inputs)
    (wide,) = in_float64(traced, given)
    (eager,) = traced(*given)
    want = exact(*[value.double() for value in inputs])
    assert wide.dtype == torch.float64
    assert wide.shape == eager.shape
    assert error(wide, want) < 1e-6  # constants are as exact as they were written
    assert error(wide, want) < 0.1 * error(eager, want)


def test_what_is_no_narrow_float_stays_what_it_is():
    traced = graph(
        lambda x, n, m: (x.float() + n, x > 0, n * 2, torch.where(m, x, x.to(torch.float64)), x.int())
    )
    x, n, m = torch.tensor([0.5, -1.5]), torch.tensor([1, 2]), torch.tensor([True, False])
    outputs = in_float64(traced, [x, n, m])
    assert [out.dtype for out in outputs] == [
        torch.float64, torch.bool, torch.int64, torch.float64, torch.int32,
    ]  # fmt: skip
    assert outputs[4].tolist() == [0, -1]
    assert torch.equal(outputs[0], torch.tensor([1.5, 0.5], dtype=torch.float64))


def test_float64_and_python_numbers_are_taken_as_they_are():
    traced = graph(lambda x, n: x * n)
    (out,) = in_float64(traced, [torch.tensor([0.1], dtype=torch.float64), 3])
    assert out.item() == 0.1 * 3


def test_inputs_are_not_written():
    x = torch.ones(4, dtype=torch.bfloat16)
    (out,) = in_float64(graph(lambda x: x.add_(1.0).relu_()), [x])
    assert torch.equal(out, torch.full((4,), 2.0, dtype=torch.float64))
    assert torch.equal(x, torch.ones(4, dtype=torch.bfloat16))


def test_only_tensors_in_order():
    outputs = in_float64(graph(lambda x: ((x, [x + 1]), None, 3, x.sum())), [torch.ones(2)])
    assert [out.tolist() for out in outputs] == [[1, 1], [2, 2], 2]


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8])
def test_none_where_a_graph_looks_at_the_bits(dtype):
    x = torch.tensor([-1.3, 0.7, 5.0, -2.0], dtype=torch.bfloat16)
    mask = 0x7FFF if dtype == torch.int16 else 0xFF
    assert in_float64(graph(lambda x: (x.view(dtype) & mask).view(torch.bfloat16) * 2), [x]) is None


def fails(x):
    return x.reshape(7, -1)


IMPOSSIBLE = {
    "a complex input": (lambda x: x * 2, [torch.ones(4, dtype=torch.complex64)]),
    "what does not run": (fails, [torch.ones(4)]),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_none_where_it_cannot_run(name):
    function, inputs = IMPOSSIBLE[name]
    assert in_float64(graph(function), inputs) is None


def test_the_mode_ends_with_the_call():
    for function in (lambda x: x.half(), fails):
        in_float64(graph(function), [torch.ones(4)])
    assert torch.ones(2).half().dtype == torch.float16
    assert torch.zeros(2, dtype=torch.float32).dtype == torch.float32


def room(graph_module, *inputs, seed=0):
    """How far each element of the only output may be missed."""
    return settle(graph_module, list(inputs), [], seed)[0]


@pytest.mark.parametrize("dtype", LOW)
def test_whole_outputs_count_unless_terms_of_a_product_overflow(dtype):
    x, y = torch.zeros(4, 8, dtype=dtype), torch.ones(8, 2, dtype=dtype)
    first_greatest = graph(lambda x, y: (x @ y).argmax(0))
    for value, is_steady in [(torch.finfo(dtype).max, False), (math.inf, True), (1.0, True)]:
        x[1, 2:4] = value
        assert bool(room(first_greatest, x, y).isfinite().all()) is is_steady


def test_whole_outputs_of_values_that_are_not_finite_count():
    x = torch.tensor([1.0, math.nan, math.inf, -math.inf])
    assert not room(graph(lambda x: x.float().isfinite()), x).any()


SUMS = {
    "product": lambda x, y: x @ y,
    "sum": lambda x, y: (x * y.t()).sum(-1, keepdim=True),
    "mean": lambda x, y: (x * y.t()).mean(-1, keepdim=True) * 4,
    "difference": lambda x, y: x[:, :1] * y[:1] + x[:, 1:2] * y[1:2],
    "difference in place": lambda x, y: (x[:, :1] * y[:1]).add_(x[:, 1:2] * y[1:2]),
    "linear": lambda x, y: F.linear(x, y.t(), x[0, :1]),
    "convolution": lambda x, y: F.conv1d(x[None], y.t()[None]),
    "average pool": lambda x, y: F.avg_pool2d((x * y.t())[None], (1, 4)) * 4,
    "average pool of two windows": lambda x, y: F.adaptive_avg_pool2d((x * y.t())[None], (1, 2)) * 2,
    "running sum": lambda x, y: (x * y.t()).cumsum(-1)[:, 1:],
}


@pytest.mark.parametrize(("place", "name"), enumerate(SUMS))
def test_a_sum_whose_terms_cancel_may_be_off_by_a_rounding_of_its_terms_whatever_is_drawn(place, name):
    dtype = LOW[place % len(LOW)]
    x = torch.tensor([[96.0, 96.0, 0.0, 0.0]], dtype=dtype)
    y = torch.tensor([[96.0], [-96.0], [0.0], [0.0]], dtype=dtype)
    for seed in range(20):
        assert float(room(graph(SUMS[name]), x, y, seed=seed).min()) > 4 * torch.finfo(dtype).eps * 96**2


def test_a_quotient_by_a_sum_may_be_any_where_its_largest_terms_cancel_and_others_are_lost():
    x = torch.tensor([[1e15, 1e7, -1e15, -4096.0], [3.0, 1e7, 2.0, -4096.0]])
    cancelling, ordinary = room(graph(lambda x: x / x.sum(-1, keepdim=True)), x).view(2, 4)
    assert bool(cancelling.isinf().all()) and float(ordinary.max()) < 1e-2


def test_a_value_may_be_off_where_eager_overflows_and_float64_rests_on_last_places():
    x = torch.tensor([[1e23, -1e23, 0.0, 0.0]])
    scaled = graph(lambda x: x.sum(-1) * x.square().sum(-1).rsqrt() * 1e23)  # the squares overflow in float32
    for seed in range(40):
        assert float(room(scaled, x, seed=seed).min()) > 1e6


@pytest.mark.parametrize("dtype", LOW)
def test_a_sum_of_ordinary_values_is_held_to_its_tolerance(dtype):
    x, y = draw((16, 512), (512, 16), dtype=dtype)
    x, y = x.abs(), y.abs()
    atol, rtol = tolerance(str(dtype).removeprefix("torch."), -3)
    allowed = atol + rtol * (x @ y).flatten().double()
    assert bool((room(graph(lambda x, y: x @ y), x, y) < 4 * allowed).all())
