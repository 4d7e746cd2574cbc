"""Inputs: GraphNet's formula as recorded, and draws of one's own within the constraints."""

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from passagent.tasks import Subgraph, TensorMeta, load_task
from passagent.tasks.inputs import BEYOND, RARE, make_inputs

EXAMPLES = Path(__file__).parent.parent / "examples" / "tasks"


def meta(dtype="float32", shape=(64, 32), name="x", **fields) -> TensorMeta:
    return TensorMeta(name="in_0", original_name=name, shape=shape, dtype=dtype, device="cuda:0", **fields)


def one(described: TensorMeta, seed=0, variant=0) -> torch.Tensor:
    subgraph = Subgraph("g", Path("g"), (described,), "", described.dtype, "")
    return make_inputs(subgraph, "cpu", seed, variant)[0]


def test_floats_follow_graphnets_formula():
    x = one(meta(mean=3.0, std=5.0, shape=(100, 100)))
    assert abs(x.mean().item() - 3.0) < 0.05
    assert abs(x.std().item() - 1.0) < 0.05
    assert one(meta(mean=1.0, std=0.0)).eq(1.0).all()
    assert abs(one(meta(shape=(100, 100))).std().item() - 0.02) < 0.002
    clamped = one(meta(mean=0.0, std=5.0, min_val=-0.5, max_val=0.1))
    assert clamped.min() == -0.5
    assert clamped.max() == pytest.approx(0.1)


def test_integers_bools_and_literals():
    assert set(one(meta("int64", min_val=-1, max_val=2)).unique().tolist()) == {-1, 0, 1, 2}
    share = one(meta("bool", shape=(100, 100))).float().mean().item()
    assert 0.28 < share < 0.34  # P(randn > 0.5)
    literal = meta("int64", shape=(2, 2), data=[5, 1, 2, 7])
    assert one(literal).tolist() == [[5, 1], [2, 7]]
    assert one(meta("bfloat16", shape=(), data=[2.6592], mean=0.0)).item() == pytest.approx(2.66, abs=0.01)


@pytest.mark.parametrize("variant", [1, 2, 3])
def test_own_draws_keep_the_constraints(variant):
    constant = one(meta(mean=1.0, std=0.0), variant=variant)
    assert constant.std() > 0.02
    variance = one(meta(mean=0.3, std=5.0, name="L_bn_buffers_running_var_"), variant=variant)
    assert variance.min() > 0
    assert one(meta(mean=0.7, std=0.2, min_val=0.1), variant=variant).min() >= 0.1
    positive = one(meta(shape=(50,), data=[0.01] * 50), variant=variant)
    assert positive.min() > 0
    assert positive.std() > 0
    ids = one(meta("int64", shape=(1, 6), data=[101, 7, 9, 7, 3, 102]), variant=variant)
    assert sorted(ids.flatten().tolist()) == [3, 7, 7, 9, 101, 102]
    assert one(meta("int64", shape=(), data=[4]), variant=variant).item() == 4
    offsets = one(meta("int64", shape=(3,), data=[0, 5, 9], name="offsets"), variant=variant)
    assert offsets.tolist() == [0, 5, 9]
    boxes = one(meta("int64", shape=(1, 2, 2), data=[1, 2, 30, 40]), variant=variant)
    assert sorted(map(tuple, boxes[0].tolist())) == [(1, 2), (30, 40)]


def test_large_activations_are_large_whatever_was_recorded():
    logits = meta(mean=0.0, std=0.02, name="attn_weights")
    large = one(logits, variant=4).abs()
    assert large.max() > 300
    assert large.median() < 30  # of all sizes
    assert large.flatten().square().topk(large.numel() // 10).values.sum() > 0.7 * large.square().sum()
    assert one(logits, variant=1).std() < 0.1
    assert one(meta(mean=0.0, std=0.02, name="L_self_parameters_weight_"), variant=4).std() < 10


def test_among_ordinary_activations_a_few_are_large():
    for std, shape, few in ((0.02, (64, 64), 4), (1.0, (1024, 512), 8), (1.0, (20,), 2), (1.0, (), 0)):
        values = one(meta(shape=shape, mean=0.0, std=std, name="attn_weights"), variant=RARE)
        far = values.abs() > 200
        assert 0.5 * few <= far.sum() <= few  # one place may be drawn twice
        assert values[~far].abs().max() < 6 * std
    assert (
        one(meta(shape=(64, 64), mean=0.0, std=1.0, name="L_self_parameters_weight_"), variant=RARE).max() < 6
    )
    assert one(meta(shape=(64,), mean=0.5, std=1.0, min_val=0.0, max_val=1.0), variant=RARE).max() <= 1
    assert one(meta(shape=(0, 4)), variant=RARE).numel() == 0


@pytest.mark.parametrize("seed", range(5))
def test_one_set_goes_beyond_every_recorded_range(seed):
    def drawn(**recorded):
        return one(meta(shape=(64, 64), **recorded), seed, BEYOND)

    assert drawn(mean=0.5, std=0.5, min_val=0.0).min() < 0
    assert drawn(mean=-900.0, std=0.5, max_val=-0.5).max() > 0
    assert 0.4 < abs(drawn(mean=0.0, std=1.0).mean()) < 1.1
    assert drawn(mean=0.0, std=1.0, max_val=0.5).max() > 0.5
    literal = one(meta(shape=(64,), data=[0.01] * 64), seed, BEYOND)
    assert literal.min() < 0 < literal.max() or abs(literal.mean() - 0.01) > 0.004
    assert drawn(mean=0.3, std=5.0, min_val=0.1, name="L_bn_buffers_running_var_").min() > 0
    assert abs(drawn(mean=0.0, std=0.02, name="L_self_parameters_weight_").mean()) < 0.005
    assert drawn(mean=-3.4e38, std=0.0).eq(torch.tensor(-3.4e38)).all()
    kept = dataclasses.replace(meta(shape=(64, 64), mean=0.5, std=0.5, min_val=0.0), role="recorded")
    assert one(kept, seed, BEYOND).min() == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.floats(-5, 5), st.floats(0, 5), st.integers(0, 1 << 40))
def test_few_elements_lie_beyond_both_recorded_limits_for_sure(count, low, width, seed):
    drawn = one(meta(shape=(count,), mean=low, std=1.0, min_val=low, max_val=low + width), seed, BEYOND)
    assert drawn.min() < low
    assert count == 1 or drawn.max() > low + width


def test_masks_get_both_values_and_no_empty_row():
    for recorded in ({"min_val": 1, "max_val": 1}, {"data": [1] * 200}):
        mask = one(meta("int64", (100, 2), name="L_kwargs_attention_mask_", **recorded), variant=1)
        assert set(mask.unique().tolist()) == {0, 1}
        assert mask.any(dim=-1).all()
    assert one(meta("bool", (100, 2)), variant=1).any(dim=-1).all()


def test_an_input_recorded_on_the_cpu_among_others_on_a_gpu_stays_there():
    on_gpu = meta()
    on_cpu = dataclasses.replace(on_gpu, name="in_1", device="cpu")
    mixed = Subgraph("g", Path("g"), (on_gpu, on_cpu), "", "float32", "")
    assert [value.device.type for value in make_inputs(mixed, "meta", 0)] == ["meta", "cpu"]
    all_cpu = Subgraph("g", Path("g"), (on_cpu,), "", "float32", "")
    assert make_inputs(all_cpu, "meta", 0)[0].device.type == "meta"


def test_python_scalars():
    number = dataclasses.replace(meta("int", shape=()), data=[7])
    assert one(number, variant=2) == 7
    assert type(one(dataclasses.replace(number, dtype="float"))) is float


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        ["float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool", "complex64"]
    ),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.integers(0, 2**40),
    st.integers(0, 4),
)
def test_shape_dtype_and_determinism(dtype, shape, seed, variant):
    described = meta(dtype, shape, mean=0.5, std=0.3)
    first, second = one(described, seed, variant), one(described, seed, variant)
    assert first.shape == shape
    assert first.dtype == getattr(torch, dtype)
    assert torch.equal(first, second)
    assert first.is_contiguous()
    assert not first.requires_grad


@pytest.mark.parametrize("variant", [0, 1])
def test_large_tensors_are_drawn_in_parts_that_differ(variant, monkeypatch):
    monkeypatch.setattr("passagent.tasks.inputs.PART", 1000)
    described = meta("bfloat16", shape=(7, 500), mean=2.0, std=0.5, max_val=2.5)
    first, again = one(described, 3, variant), one(described, 3, variant)
    assert torch.equal(first, again) and first.shape == (7, 500) and first.dtype == torch.bfloat16
    assert first.max() <= 2.5 and abs(first.float().mean().item() - 2.0) < 0.2
    parts = first.flatten().split(1000)
    assert len({tuple(part[:500].tolist()) for part in parts}) == 4
    assert first.unique().numel() > 20


def test_seeds_variants_and_inputs_differ():
    described = meta(mean=0.0, std=1.0)
    draws = [one(described, 0), one(described, 1), one(described, 0, 1), one(described, 0, 2)]
    assert len({draw.flatten()[0].item() for draw in draws}) == 4
    (subgraph, *_) = load_task(EXAMPLES / "scale_mask_softmax").subgraphs
    scores, mask = make_inputs(subgraph, "cpu", 3, 1)
    assert not torch.equal(scores.flatten()[: mask.numel()], mask.flatten())
