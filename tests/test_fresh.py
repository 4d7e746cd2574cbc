"""Fresh values: windows of a reservoir are valid inputs, none repeats early, and the copy is exact."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from passagent.evaluator.runner import fresh
from passagent.evaluator.runner.fresh import (
    MAX_WINDOWS,
    Draw,
    Rotation,
    pieces_of,
    refresher,
    window_of,
)
from passagent.tasks import Subgraph, TensorMeta
from passagent.tasks.inputs import is_endless, make_inputs

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)
BESIDE = 1 << 32
FLOATS = ["float32", "float16", "bfloat16", "float64", "complex64"]


def meta(dtype, shape, name="x", **fields) -> TensorMeta:
    return TensorMeta("in_0", name, tuple(shape), dtype, "cuda:0", **fields)


def subgraph(*metas) -> Subgraph:
    return Subgraph("g", Path("g"), metas, "", "float32", "")


@st.composite
def floats(draw):
    limits = draw(st.sampled_from([{}, {"min_val": -0.5, "max_val": 0.25}]))
    return meta(
        draw(st.sampled_from(FLOATS[:4] if limits else FLOATS)), draw(shapes), mean=0.1, std=1.0, **limits
    )


@st.composite
def integers(draw):
    """Drawn within a range, or recorded."""
    shape, low = draw(shapes), draw(st.integers(-3, 3))
    high = low + draw(st.integers(0, 5))
    data = None
    if draw(st.booleans()):
        data = draw(st.lists(st.integers(low, high), min_size=math.prod(shape), max_size=math.prod(shape)))
    return meta(draw(st.sampled_from(["int64", "int32"])), shape, min_val=low, max_val=high, data=data)


@st.composite
def masks(draw):
    shape = draw(shapes.filter(lambda shape: math.prod(shape) > 1))
    if draw(st.booleans()):
        return meta("bool", shape)
    return meta("int64", shape, name="L_attention_mask_", min_val=0, max_val=1)


def mask_of_one_row() -> TensorMeta:
    return meta("int64", (1, 24), name="L_attention_mask_", min_val=0, max_val=1)


@st.composite
def offsets(draw):
    steps = draw(st.lists(st.integers(1, 9), min_size=2, max_size=8))
    rising = [sum(steps[: i + 1]) for i in range(len(steps))]
    return meta("int64", (len(rising),), name="L_cu_seqlens_", data=rising)


def views(described, variant, seed=0):
    """The values as they were drawn, and windows of their reservoir as tensors of the input's shape."""
    rotation = Rotation.of(subgraph(described))
    values = make_inputs(subgraph(described), "cpu", seed, variant)[0]
    reservoir = torch.cat(rotation.reservoir(0, values, seed + 1, variant))
    (unit,), (count,) = rotation.units, rotation.counts
    starts = [i * unit for i in range(count)]
    assert count == 1 or starts[-1] + values.numel() == reservoir.numel()  # nothing is wasted, all fits
    starts = starts[:100] + starts[100::500]
    return values, starts, [reservoir.narrow(0, s, values.numel()).reshape(values.shape) for s in starts]


@given(st.one_of(floats(), integers(), masks(), offsets()), st.integers(0, 3), st.integers(0, 99))
def test_a_window_is_the_values_moved_along_and_more_of_their_kind(described, variant, seed):
    values, starts, windows = views(described, variant, seed)
    for start, window in zip(starts, windows, strict=True):
        rest = values.reshape(-1)[start:]
        assert torch.equal(window.reshape(-1)[: len(rest)], rest)
        if not is_endless(described):
            assert torch.equal(window, values.reshape(-1).roll(-start).reshape(values.shape))
    assert Rotation.of(subgraph(described)).first() == [0]
    assert torch.equal(windows[0], values)


@given(integers(), st.integers(0, 3))
def test_integers_stay_in_range(described, variant):
    values, _, windows = views(described, variant)
    for window in windows:
        assert described.min_val <= int(window.min())
        assert int(window.max()) <= described.max_val
        if described.data is not None:
            assert sorted(window.flatten().tolist()) == sorted(values.flatten().tolist())


@given(masks(), st.integers(1, 3), st.integers(0, 99))
def test_every_row_of_a_mask_keeps_a_one(described, variant, seed):
    _, _, windows = views(described, variant, seed)
    rows = described.shape[-1]
    assert all(bool((window.reshape(-1, rows) != 0).any(1).all()) for window in windows)
    if len(described.shape) > 1:
        assert all(bool((window.reshape(-1, rows)[:, 0] != 0).all()) for window in windows)


@given(st.sampled_from([meta("float32", (4, 64), std=1.0), meta("float32", ()), mask_of_one_row()]))
def test_what_does_not_depend_on_the_order_changes_too(described):
    """The sum of a tensor, a single number, the only row of a mask."""
    _, _, windows = views(described, 1)
    assert len({float(window.double().sum()) for window in windows}) > 5


@given(offsets(), st.integers(0, 3))
def test_offsets_do_not_move(described, variant):
    values, starts, windows = views(described, variant)
    assert starts == [0]
    assert tuple(windows[0].tolist()) == tuple(values.tolist()) == described.data


@given(st.integers(2, 4), st.integers(2, 4), st.integers(0, 3))
def test_the_corners_of_a_box_stay_together(boxes, batch, variant):
    corners = [[n, n + 100, n + 200, n + 300] for n in range(batch * boxes)]
    described = meta("int64", (batch, boxes, 4), data=corners)
    _, _, windows = views(described, variant)
    assert len(windows) == batch * boxes
    for window in windows:
        assert sorted(window.reshape(-1, 4).tolist()) == corners


def test_numbers_recorded_values_and_nothing_stay():
    metas = [
        meta("float", (), data=3.0),
        meta("float32", (), data=[0.5]),
        meta("int64", (), data=[7]),
        meta("float32", (1, 1), data=[0.5]),
        meta("float32", (0, 4)),
        meta("bool", (3, 0)),
    ]
    rotation = Rotation.of(subgraph(*metas))
    assert rotation.counts == (1,) * 6
    values = make_inputs(subgraph(*metas), "cpu", 0)
    lengths = [sum(map(len, rotation.reservoir(i, v, 1, 0))) for i, v in enumerate(values[1:], 1)]
    assert lengths == [1, 1, 1, 0, 0]


def test_large_inputs_have_as_many_windows_as_are_ever_needed():
    rotation = Rotation.of(subgraph(meta("float32", (100, 100)), meta("bool", (10000, 3))))
    assert rotation.counts == (MAX_WINDOWS, MAX_WINDOWS)
    assert sum(map(len, rotation.reservoir(0, torch.zeros(100, 100), 1, 1))) == 10_000 + MAX_WINDOWS - 1
    assert sum(map(len, rotation.reservoir(1, torch.zeros(10_000, 3), 1, 1))) == 30_000 + 3 * (
        MAX_WINDOWS - 1
    )


@pytest.mark.long
@given(st.lists(st.one_of(floats(), integers(), masks(), offsets()), min_size=1, max_size=4))
def test_no_window_repeats_before_all_were_used(metas):
    rotation = Rotation.of(subgraph(*metas))
    draw = Draw(rotation)
    rounds = 2 * max(rotation.counts)
    drawn = [draw.next() for _ in range(rounds)]
    for position, (unit, count) in enumerate(zip(rotation.units, rotation.counts, strict=True)):
        column = [windows[position] % BESIDE for windows in drawn]
        everything = [i * unit for i in range(count)]
        for start in range(0, rounds - count + 1, count):
            assert sorted(column[start : start + count]) == everything


def test_the_order_is_anothers_in_every_draw():
    recorded = [float(i) for i in range(64)]
    rotation = Rotation.of(subgraph(*(meta("float32", (64,), data=recorded) for _ in range(2))))
    first, second = ([draw.next() for _ in range(64)] for draw in (Draw(rotation), Draw(rotation)))
    assert first != second
    assert [a for a, _ in first] != [b for _, b in first]  # nor do the inputs move together


DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool, torch.complex64]


def test_no_element_of_a_drawn_tensor_comes_again_in_another_call():
    """However far it has moved: neither a result of each nor a piece of them can be kept."""
    described = meta("float32", (50,), mean=3.0, std=1.0)
    rotation, draw = Rotation.of(subgraph(described)), Draw(Rotation.of(subgraph(described)))
    values = make_inputs(subgraph(described), "cpu", 1, 1)[0]
    reservoir = torch.cat(rotation.reservoir(0, values, 2, 1))
    calls = [window_of(reservoir, draw.next()[0], 50).tolist() for _ in range(1000)]
    # about 90 of float32's values come twice by chance; unmixed there are 4,100 different ones
    assert len({value for call in calls for value in call}) > 49_500


@given(floats(), st.integers(1, 3))
def test_what_is_mixed_is_of_the_kind_that_is_drawn(described, variant):
    rotation = Rotation.of(subgraph(described))
    values = make_inputs(subgraph(described), "cpu", 1, variant)[0]
    reservoir = torch.cat(rotation.reservoir(0, values, 2, variant))
    draw = Draw(rotation)
    seen = torch.stack([window_of(reservoir, draw.next()[0], values.numel()) for _ in range(50)])
    assert seen.dtype == values.dtype
    assert bool(seen.isfinite().all())
    if described.min_val is not None:
        assert described.min_val <= float(seen.min())
        assert float(seen.max()) <= described.max_val


def test_the_refresher_and_whoever_checks_it_see_the_same_bits(monkeypatch):
    metas = [meta(dtype, (7, 33), mean=0.1, std=1.0) for dtype in ("float32", "bfloat16", "float16", "bool")]
    metas += [meta("float32", (4,), mean=-3e38, std=1e38), meta("float32", (5,), data=[1.0, 2, 3, 4, 5])]
    rotation = Rotation.of(subgraph(*metas))
    assert rotation.mixed == (True, True, True, False, False, False)
    live = make_inputs(subgraph(*metas), "cpu", 1, 1)
    reservoirs = [torch.cat(rotation.reservoir(i, v, 2, 1)) for i, v in enumerate(live)]
    which, draw = range(len(live)), Draw(rotation)
    refresh = refresher(live, reservoirs, which)
    for _ in range(40):
        windows = draw.next()
        refresh(windows)
        for value, reservoir, where in zip(live, reservoirs, windows, strict=True):
            assert torch.equal(value.reshape(-1), window_of(reservoir, where, value.numel()))
            for size in (16, 1 << 24):
                monkeypatch.setattr(fresh, "PIECE", size)
                assert torch.equal(
                    value.reshape(-1), torch.cat(list(pieces_of(reservoir, where, value.numel())))
                )


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 5)),
        min_size=1,
        max_size=6,
    ),
    st.data(),
)
def test_the_refresher_copies_exactly_the_windows(described, data):
    live, reservoirs, windows = [], [], []
    for number, (dtype, shape, start) in enumerate(described):
        count = math.prod(shape)
        live.append(torch.full(shape, 3).to(dtype))
        reservoirs.append(torch.arange(number, number + count + 5).to(dtype))
        windows.append(start)
    live.append(7)  # a Python number among them
    reservoirs.append(7)
    windows.append(0)
    which = data.draw(st.lists(st.integers(0, len(live) - 1), unique=True))
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in live]
    places = [value.data_ptr() for value in live[:-1]]
    kept = [reservoir.clone() for reservoir in reservoirs[:-1]]
    refresher(live, reservoirs, which)(windows)
    for i, value in enumerate(live[:-1]):
        window = kept[i][windows[i] : windows[i] + value.numel()].reshape(value.shape)
        assert torch.equal(value, window if i in which else before[i])
    assert places == [value.data_ptr() for value in live[:-1]]
    assert all(torch.equal(now, then) for now, then in zip(reservoirs[:-1], kept, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bits_are_copied_whatever_they_mean(dtype, device, monkeypatch):
    def copy_as_a_gpu_does(into, given):
        for target, values in zip(into, given, strict=True):
            is_half = values.dtype in (torch.float16, torch.bfloat16)
            target.copy_(torch.where(values.isnan(), torch.nan, values) if is_half else values)

    if device == "cpu":  # where no bit of a NaN would change
        monkeypatch.setattr(torch, "_foreach_copy_", copy_as_a_gpu_does)
    bits = torch.randint(0, 256, (64 * 4,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    bits[:64] = 0xFF  # a NaN that no operator returns
    reservoir = bits.to(device).view(dtype)
    live = torch.zeros(40, dtype=dtype, device=device)
    refresher([live], [reservoir], [0])([5])
    assert torch.equal(live.view(torch.uint8), reservoir[5:45].view(torch.uint8))
