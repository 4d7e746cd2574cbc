"""Comparison of outputs: metadata exactly, values by level, and errors against float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from passagent.evaluator.correctness.compare import compare, surely_agree
from passagent.evaluator.correctness.precision import Expected, Fact, is_as_exact, judge_precision
from passagent.evaluator.correctness.settled import first_beyond, room_of
from passagent.evaluator.judging.agreement import judge_timed
from passagent.evaluator.judging.verdict import Failed, Refused
from passagent.evaluator.result import GraphResult
from passagent.evaluator.score import tolerance
from passagent.sandbox import pieces

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


@given(st.integers(0, 2**31 - 1), st.integers(1, 400), st.floats(1e-9, 3))
def test_parts_and_chunks_of_an_output_change_nothing(seed, size, scale):
    generator = torch.Generator().manual_seed(seed)
    want = torch.randn(size, generator=generator)
    have = want + scale * torch.randn(size, generator=generator).pow(9)
    whole = compare([want], [have])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("passagent.sandbox.pieces.PART", 64)
        patch.setattr("passagent.sandbox.pieces.CHUNK", 24)
        assert compare([want], [have]) == whole


@given(st.integers(0, 2**31 - 1), st.integers(1, 400), st.integers(0, 4), st.sampled_from([0.0, 2**-12, 3.0]))
def test_nor_do_they_where_values_surely_agree(seed, size, count, by):
    generator = torch.Generator().manual_seed(seed)
    eager = torch.randn(size, generator=generator)
    have = eager.clone()
    have[torch.randperm(size, generator=generator)[:count]] += by
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("passagent.sandbox.pieces.PART", 64)
        patch.setattr("passagent.sandbox.pieces.CHUNK", 24)
        assert surely_agree([eager], [have], -2) == torch.allclose(have, eager, atol=1e-2)


@given(st.integers(0, 2**31 - 1), st.integers(1, 400), st.sampled_from([None, 0.0, float("nan")]))
def test_equal_and_copied_in_parts(seed, size, there):
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    other = torch.empty_like(tensor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("passagent.sandbox.pieces.PART", 64)
        pieces.copy(other, tensor)
        assert pieces.equal(tensor, other) and torch.equal(tensor, other)
        for unlike in (tensor.reshape(-1, 1), tensor[1:], tensor.double()):
            assert not pieces.equal(tensor, unlike)
        if there is not None:
            other[seed % size] = there
            assert not pieces.equal(tensor, other)


SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3e38, -3e38, 65504.0, 1e-40)


@given(
    st.sampled_from(DTYPES),
    st.integers(0, 2**31 - 1),
    st.floats(1e-9, 3),
    st.integers(-5, 1),
    st.lists(st.tuples(st.sampled_from(SPECIAL), st.sampled_from(SPECIAL)), max_size=3),
)
def test_what_surely_agrees_agrees(dtype, seed, scale, t, special):
    generator = torch.Generator().manual_seed(seed)
    want = torch.randn(90, generator=generator).pow(5)
    have = want + scale * want * torch.randn(90, generator=generator)
    for place, (one, other) in enumerate(special):
        want[30 * place], have[30 * place] = one, other
    want, have = want.to(dtype), have.to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("passagent.sandbox.pieces.CHUNK", 24)
        surely = surely_agree([want], [have], t)
    level = compare([want], [have]).passes_from_t
    assert not surely or (level is not None and level <= t)


@given(st.sampled_from(DTYPES[:3]), st.integers(0, 2**31 - 1), st.integers(-3, 1))
def test_the_tolerance_decides_whether_values_surely_agree(dtype, seed, t):
    generator = torch.Generator().manual_seed(seed)
    want = torch.randn(50, generator=generator).to(dtype)
    atol, rtol = tolerance(str(dtype).removeprefix("torch."), t)
    allowed = atol + rtol * want.double().abs()
    assert surely_agree([want], [(want.double() + 0.9 * allowed).to(dtype)], t) or dtype != torch.float32
    have = want.double()
    have[7] += 1.2 * allowed[7]
    assert not surely_agree([want], [have.to(dtype)], t) or have.to(dtype)[7] - have[7] < -0.1 * allowed[7]


def test_what_is_near_or_equal_surely_agrees():
    for dtype in DTYPES[:3]:
        want = torch.randn(1000).to(dtype)
        assert surely_agree([want, want[:0]], [want.clone(), want[:0]], -2)
        assert surely_agree([want], [(want.double() * 1.001).to(dtype)], -1)
        assert not surely_agree([want], [want + 1], -2)
    assert not surely_agree([want], [want.float()], 1)
    assert not surely_agree([want], [want[1:]], 1)
    assert not surely_agree([want], [want, want], 1)


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
    large = torch.tensor([1, 2**53, 3])  # float64 has no 2^53 + 1
    found = compare([large], [large + torch.tensor([0, 1, 0])])
    assert (found.passes_from_t, found.worst.index) == (None, [1])


FACT = Fact(contiguous=True, device="cpu")


def expected(exact, *eager) -> Expected:
    return Expected(list(eager), [FACT] * len(eager), exact)


def random(*shape, seed=0, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def tf32(x: torch.Tensor) -> torch.Tensor:
    """float32 rounded to TF32's ten bits, to nearest even."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def through(narrow):
    """Arithmetic on operands that are first rounded by `narrow`, as tensor cores have it."""
    return lambda x, w: narrow(x) @ narrow(w)


def gelu_norm(x, w):
    return F.gelu(F.layer_norm(x @ w, (w.shape[1],)))


def gated(x, w):
    return F.silu(x @ w) * torch.sigmoid(x.sum(-1, keepdim=True))


def softmax(x, w):
    return torch.softmax(x @ w / 4, -1) @ w.T


REDUCED = {
    "tf32 operands": (torch.matmul, through(tf32)),
    "half operands": (torch.matmul, through(lambda x: x.half().float())),
    "bfloat16 operands": (torch.matmul, through(lambda x: x.bfloat16().float())),
    "a tf32 product in a chain": (gelu_norm, lambda x, w: gelu_norm(tf32(x), tf32(w))),
    "half throughout": (gelu_norm, lambda x, w: gelu_norm(x.half(), w.half()).float()),
    "bfloat16 throughout": (gated, lambda x, w: gated(x.bfloat16(), w.bfloat16()).float()),
    "tf32 before a softmax": (softmax, lambda x, w: softmax(tf32(x), tf32(w))),
    "a result rounded to half": (gated, lambda x, w: gated(x, w).half().float()),
    "a result rounded to tf32": (torch.matmul, lambda x, w: tf32(x @ w)),
}
shapes = st.sampled_from([(8, 32), (16, 64), (5, 130)])


@given(st.sampled_from(sorted(REDUCED)), shapes, st.integers(0, 999), st.sampled_from([1e-3, 1.0, 50.0]))
def test_float32_computed_in_less_is_reduced(name, shape, seed, scale):
    """Whatever the size of the values: the tolerance at t = 1 lets much of it pass."""
    function, narrow = REDUCED[name]
    if name == "half throughout" or function is gated:
        scale = 1.0  # half overflows; and rows that differ by powers of ten hide each other's errors
    x, w = random(*shape, seed=seed) * scale, random(shape[1], 24, seed=seed + 1)
    eager, exact = function(x, w), function(x.double(), w.double())
    found = judge_precision([(expected([exact], eager), [narrow(x, w)])])
    assume(found.error > 2**-15)  # softmax of nearly equal values may lie on float16's grid by chance
    assert found.kind == "reduced"
    assert not is_as_exact(expected([exact], eager), [narrow(x, w)])
    assert not found.is_far
    assert found.error > found.eager_error


def reordered(x, w):
    """The same sum in blocks, from the end."""
    order = torch.arange(x.shape[-1] - 1, -1, -1)
    total = torch.zeros(x.shape[0], w.shape[1])
    for block in order.split(7):
        total = total + x[:, block] @ w[block]
    return total


def one_by_one(x, w):
    total = torch.zeros(x.shape[0], w.shape[1])
    for i in range(x.shape[1]):
        total = total + x[:, i, None] * w[i]
    return total


HONEST = {
    "in blocks": (torch.matmul, reordered),
    "one by one": (torch.matmul, one_by_one),
    "in float64": (torch.matmul, lambda x, w: (x.double() @ w.double()).float()),
    "mean by one pass": (
        lambda x, w: (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt(),
        lambda x, w: (
            (x - x.sum(-1, keepdim=True) / x.shape[-1])
            * torch.rsqrt(x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square() + 1e-5)
        ),
    ),
    "exp2 for exp": (
        softmax,
        lambda x, w: (
            torch.exp2(_log2(x @ w / 4)).div(torch.exp2(_log2(x @ w / 4)).sum(-1, keepdim=True)) @ w.T
        ),
    ),
    "an approximate sigmoid": (gated, lambda x, w: gated(x, w) * (1 + 2**-20)),
}


def _log2(x):
    return (x - x.amax(-1, keepdim=True)) * 1.4426950408889634


@given(st.sampled_from(sorted(HONEST)), shapes, st.integers(0, 999), st.sampled_from([1e-3, 1.0, 50.0]))
def test_float32_in_another_order_is_not_reduced(name, shape, seed, scale):
    function, other = HONEST[name]
    x, w = random(*shape, seed=seed) * scale, random(shape[1], 24, seed=seed + 1)
    if name == "an approximate sigmoid":
        x = x / scale
    eager, exact = function(x, w), function(x.double(), w.double())
    found = judge_precision([(expected([exact], eager), [other(x, w)])])
    assert found.kind == "right"
    assert not found.is_far


@pytest.mark.long
@given(st.sampled_from([torch.bfloat16, torch.float16]), shapes, st.integers(0, 999))
def test_half_outputs_as_exact_as_eagers_or_better_are_exact(dtype, shape, seed):
    x, w = random(*shape, seed=seed, dtype=dtype), random(shape[1], 24, seed=seed + 1, dtype=dtype)
    eager, exact = gelu_norm(x, w), gelu_norm(x.double(), w.double())
    fused = gelu_norm(x.float(), w.float()).to(dtype)  # rounded once: it differs from eager's
    for have in (eager.clone(), fused, exact.to(dtype)):
        found = judge_precision([(expected([exact], eager), [have])])
        assert is_as_exact(expected([exact], eager), [have])
        assert (found.kind, found.is_far) == ("right", False)
    coarse = (exact * 16).round() / 16
    assert not is_as_exact(expected([exact], eager), [coarse.to(dtype)])


def eight_bits(x, dim):
    """Rows or columns quantised to integers of eight bits."""
    scale = x.float().abs().amax(dim, keepdim=True) / 127
    return (x.float() / scale).round() * scale


def in_parts(x, w):
    """A product added in four parts, each rounded."""
    return sum(a @ b for a, b in zip(x.chunk(4, 1), w.chunk(4, 0), strict=True))


HALVES = st.sampled_from([torch.bfloat16, torch.float16])


@given(HALVES, st.integers(0, 999), st.sampled_from([1e-2, 1.0, 20.0]))
def test_operands_of_eight_bits_are_coarse_and_rounded_parts_are_not(dtype, seed, scale):
    x, now = ((random(16, 256, seed=seed + i) * scale).to(dtype) for i in (0, 2))
    w = random(256, 24, seed=seed + 1, dtype=dtype)
    of_the_set = expected([x.double() @ w.double()], x @ w)
    of_a_call = expected([now.double() @ w.double()], now @ w)
    for values, known in ((x, of_the_set), (now, of_a_call)):
        narrow = (eight_bits(values, 1) @ eight_bits(w, 0)).to(dtype)
        assert judge_precision([(known, [narrow])]).kind == "reduced"
        for have in (in_parts(values, w), (values.float() @ w.float()).to(dtype)):
            assert judge_precision([(known, [have])]).kind == "right"


@given(HALVES, shapes, st.integers(0, 999))
def test_a_norm_that_rounds_every_step_is_not_coarse(dtype, shape, seed):
    x = random(*shape, seed=seed, dtype=dtype)
    centred = x - x.mean(-1, keepdim=True)
    stepwise = centred * ((centred * centred).mean(-1, keepdim=True) + 1e-5).rsqrt()
    known = expected([F.layer_norm(x.double(), shape[1:])], F.layer_norm(x, shape[1:]))
    assert judge_precision([(known, [stepwise])]).kind == "right"


def test_few_elements_are_not_called_coarse():
    exact = torch.ones(8, 8)
    have = (exact * 1.02).bfloat16()
    for rows, kind in ((8, "wrong"), (4, "right")):
        known = expected([exact[:rows].double()], exact[:rows].bfloat16())
        assert judge_precision([(known, [have[:rows]])]).kind == kind


def test_a_few_elements_on_the_other_side_of_a_jump_do_not_count():
    x = random(64, 64)
    exact = torch.floor(x.double() * 4) + x.double()
    eager = exact.float()
    have = eager.clone()
    have.view(-1)[::40] += 1.0  # 2.5 in 100 rounded the other way
    found = judge_precision([(expected([exact], eager), [have])])
    assert found.kind == "right"
    assert not found.is_far
    assert found.error < 1e-6
    have.view(-1)[::5] += 1.0
    assert judge_precision([(expected([exact], eager), [have])]).error > 0.1


GARBAGE = {
    "zeros": torch.zeros_like,
    "noise": lambda x: random(*x.shape, seed=7),
    "its negative": lambda x: -x,
    "twice": lambda x: 2 * x,
    "another row": lambda x: x.roll(1, 0),
    "a tenth off": lambda x: x * 1.1,
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_garbage_is_far_and_not_reduced(name, scale):
    x, w = random(16, 64), random(64, 24, seed=1)
    exact = x.double() @ w.double() * scale
    eager = (x @ w) * scale
    found = judge_precision([(expected([exact], eager), [GARBAGE[name](eager)])])
    assert (found.is_far, found.kind) == (True, "wrong")
    assert not is_as_exact(expected([exact], eager), [GARBAGE[name](eager)])


def test_tiny_values_hide_under_the_tolerance_but_not_here():
    eager = random(8, 8) * 1e-7
    zeros = torch.zeros(8, 8)
    assert compare([eager], [zeros]).passes_from_t <= -5
    assert judge_precision([(expected([eager.double()], eager), [zeros])]).is_far


@pytest.mark.parametrize(("every", "far"), [(11, True), (25, True), (50, False)])
def test_elements_left_out_are_far_unless_they_are_few(every, far):
    """A few may lie on the other side of a jump."""
    eager = random(100, 100) * 1e-7
    have = eager.clone().reshape(-1)
    have[::every] = 0
    have = have.reshape(100, 100)
    assert compare([eager], [have]).passes_from_t <= -5
    assert judge_precision([(expected([eager.double()], eager), [have])]).is_far == far


def test_where_eager_jumps_the_candidate_may_too():
    exact = random(100, 100).double()
    eager, have = exact.float().reshape(-1), exact.float().reshape(-1)
    eager[::40] += 1
    have[7::40] -= 1
    eager, have = eager.reshape(100, 100), have.reshape(100, 100)
    assert not judge_precision([(expected([exact], eager), [have])]).is_far


def as_it_is(expected):
    return expected


def test_a_timed_call_is_credited_what_it_reaches_and_no_more():
    """The level and the float64 error of audits do not stand where a timed call is less exact."""
    exact = [random(4000, seed=seed, dtype=torch.float64) for seed in (1, 2)]
    audit, timed = (expected([one], one.float()) for one in exact)
    result = GraphResult(name="g", dtype="float32", status="ok", passes_from_t=-10, float64_error=2.0**-24)
    judge_timed(timed, [timed.eager[0]], result, -2, as_it_is, is_candidate=True)
    assert result.passes_from_t == -10 and result.float64_error < 2.0**-23
    judge_timed(timed, [timed.eager[0] * (1 + 2.0**-17)], result, -2, as_it_is, is_candidate=True)
    assert (result.passes_from_t, result.status) == (-4, "ok")
    assert 2.0**-18 < result.float64_error < 2.0**-16
    judge_timed(audit, [audit.eager[0]], result, -2, as_it_is, is_candidate=True)
    assert result.passes_from_t == -4  # what was lost is not won back
    for factor, rule in ((1 + 2.0**-12, Refused), (1.5, Failed)):
        with pytest.raises(rule):
            judge_timed(timed, [timed.eager[0] * factor], result, -2, as_it_is, is_candidate=True)


def test_a_half_result_of_a_timed_call_is_wrong_unless_it_is_as_exact_as_eagers():
    exact = random(4000, dtype=torch.float64)
    eager = (exact + 0.01 * random(4000, seed=1)).bfloat16()
    of_the_call = expected([exact], eager)
    result = GraphResult(name="g", dtype="bfloat16", status="ok", passes_from_t=-4)
    judge_timed(of_the_call, [exact.bfloat16()], result, -1, as_it_is, is_candidate=True)
    assert result.status == "ok" and result.passes_from_t > -3
    result = GraphResult(name="g", dtype="bfloat16", status="ok", passes_from_t=-4)
    judge_timed(of_the_call, [(eager.float() + 0.05).bfloat16()], result, -1, as_it_is, is_candidate=True)
    assert result.status == "wrong_result" and "agree with eager's only from t" in result.error


def test_a_value_that_is_small_by_chance_has_the_error_of_its_kind():
    of_a_call = Expected([torch.tensor([1e-3])], [FACT], None, usual_sizes=[10.0])
    found = judge_precision([(of_a_call, [torch.tensor([1.001e-3])])])
    assert (found.kind, found.is_far) == ("right", False)


def test_the_worst_output_counts():
    x, n = random(16, 16), torch.arange(4)
    given_ = expected([x.double(), n, x.double()], x, n, x)
    assert judge_precision([(given_, [x, n, x])]).kind == "right"
    for position in (0, 2):
        have = [x, n, x]
        have[position] = tf32(x)
        found = judge_precision([(given_, have)])
        assert found.kind == "reduced"
        assert found.error > 2**-14
        have[position] = torch.zeros_like(x)
        assert judge_precision([(given_, have)]).is_far


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_without_float64_outputs_are_held_against_eagers(name, scale):
    function, other = HONEST[name]
    x, w = random(32, 64) * (scale if name != "an approximate sigmoid" else 1.0), random(64, 24, seed=1)
    eager = function(x, w)
    for exact in (None, [eager.double()] * 2, [torch.zeros(3).double()]):
        given_ = expected(exact, eager)
        assert judge_precision([(given_, [other(x, w)])]).kind == "right"
        for garbage in GARBAGE.values():
            assert judge_precision([(given_, [garbage(eager)])]).kind != "right"  # rows may be much alike
        assert not is_as_exact(given_, [eager])


@given(st.sampled_from([torch.bfloat16, torch.float16]), shapes, st.integers(0, 999))
def test_without_float64_halves_may_be_rounded_once(dtype, shape, seed):
    x, w = random(*shape, seed=seed, dtype=dtype), random(shape[1], 24, seed=seed + 1, dtype=dtype)
    given_ = expected(None, gelu_norm(x, w))
    found = judge_precision([(given_, [gelu_norm(x.float(), w.float()).to(dtype)])])
    assert (found.kind, found.is_far) == ("right", False)


@pytest.mark.parametrize("name", ["half", "tf32"])
def test_without_float64_low_precision_is_seen(name):
    x, w = random(64, 64), random(64, 64, seed=1)
    low = {"half": lambda v: v.half().float(), "tf32": tf32}[name]
    assert judge_precision([(expected(None, x @ w), [low(x) @ low(w)])]).kind == "reduced"


def test_empty_constant_and_infinite_outputs():
    empty, zero = torch.empty(0, 3), torch.zeros(3)
    infinite = torch.tensor([1.0, float("inf"), float("nan")])
    for x in (empty, zero, infinite):
        found = judge_precision([(expected([x.double()], x), [x.clone()])])
        assert (found.error, found.kind) == (0.0, "right")
        assert is_as_exact(expected([x.double()], x), [x.clone()])


def test_a_float64_of_another_shape_vouches_for_nothing():
    x = random(8)
    assert not is_as_exact(expected([random(32).double()], x), [random(8, seed=1)])


def test_a_float64_that_eager_is_far_from_vouches_for_nothing():
    eager, garbage = random(8, 8), random(8, 8, seed=1).double()
    assert not is_as_exact(expected([garbage], eager), [random(8, 8, seed=2)])


def beyond(eager, others, have):
    """Where a pass that returns `have` is wrong on special values, if eager may also give the `others`."""
    return first_beyond(0, eager, room_of(eager, others), have)


NAN, INF = float("nan"), float("inf")
CLASSES = [NAN, INF, -INF, 1.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eager", CLASSES)
@pytest.mark.parametrize("have", CLASSES)
def test_class_that_is_not_eagers_is_wrong_only_where_eager_keeps_its_own(dtype, eager, have):
    wanted, got = (torch.ones(4, 8, dtype=dtype) for _ in range(2))
    wanted[1, 3], got[1, 3] = eager, have
    worst = beyond(wanted, [wanted.clone(), wanted.double()], got)
    same = str(eager) == str(have)
    assert worst is None if same else worst.index == [1, 3]
    for other in CLASSES:
        unsettled = wanted.clone()
        unsettled[1, 3] = other
        if str(other) != str(eager):
            assert beyond(wanted, [unsettled], got) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_value_is_held_to_the_tolerance_and_to_eagers_own_spread(dtype):
    eager = random(32, 64).to(dtype) + 4
    atol, rtol = tolerance(str(dtype).removeprefix("torch."), -3)
    within, times = atol + rtol * eager.double().abs(), 16 if dtype == torch.float32 else 4
    once = [eager.double()]
    assert beyond(eager, once, (eager.double() + 0.5 * within).to(dtype)) is None
    far = eager.clone()
    far[3, 5] += 2.5 * times * within[3, 5]
    assert beyond(eager, once, far).index == [3, 5]
    nudged = eager.clone()
    nudged[3, 5] += 5 * within[3, 5]  # as at a jump: it excuses that element, and no other
    assert beyond(eager, [nudged], far) is None
    far[4, 5] += 5 * times * within[4, 5]
    assert beyond(eager, [nudged], far).index == [4, 5]
    assert beyond(eager, [(eager.double() + within).to(dtype)], far) is None  # nowhere settled


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_integer_or_bool_is_exact_where_eager_keeps_it(dtype):
    eager = (random(16, 16) > 0).to(dtype)
    other = eager.clone()
    other[2, 2] = 1 - other[2, 2].to(torch.int8)
    assert beyond(eager, [eager.clone()], eager.clone()) is None
    assert beyond(eager, [eager.clone()], other).index == [2, 2]
    assert beyond(eager, [other], other) is None
    huge = torch.tensor([[2**62 + 1]])
    assert beyond(huge, [huge.clone()], huge + 1).index == [0, 0]
    assert beyond(huge, [huge + 2**20], torch.tensor([[2**31]])) is not None  # it moves, but not so far


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_outputs_of_few_elements_are_judged(shape):
    eager = torch.ones(shape)
    assert beyond(eager, [eager.clone()], eager.clone()) is None
    assert (beyond(eager, [eager.clone()], eager + 1) is None) == (eager.numel() == 0)


@pytest.mark.parametrize("known", [True, False])
def test_complex_numbers_are_judged_as_pairs(known):
    x, w = random(16, 32, 2), random(16, 32, 2, seed=1)
    a, b = torch.view_as_complex(x), torch.view_as_complex(w)
    eager = a * b
    given_ = expected([a.to(torch.complex128) * b.to(torch.complex128)] if known else None, eager)
    other = torch.complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)
    low = torch.view_as_complex(x.half().float()) * torch.view_as_complex(w.half().float())
    assert judge_precision([(given_, [other])]).kind == "right"
    assert beyond(eager, [eager.clone()], other) is None
    assert is_as_exact(given_, [other]) == known
    assert judge_precision([(given_, [low])]).kind == "reduced"
    for garbage in (torch.zeros_like(eager), eager.conj(), eager * 1j):
        assert judge_precision([(given_, [garbage])]).is_far
        assert beyond(eager, [eager.clone()], garbage) is not None
        assert not is_as_exact(given_, [garbage])
