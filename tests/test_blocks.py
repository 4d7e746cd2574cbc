"""Memory of audited calls: blocks between guard zones, and what they hold."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from passagent.evaluator.integrity.blocks import Blocks
from passagent.evaluator.integrity.zones import ZONE
from passagent.evaluator.runner.calls import same_bytes
from passagent.evaluator.runner.subgraphs import _live

X = torch.linspace(-2, 2, 24).reshape(4, 6)


EMPTY = {
    "torch.empty(4, 6)": (4, 6),
    "torch.empty(())": (),
    "torch.empty(3, dtype=torch.float16)": (3,),
    "torch.empty(3, dtype=torch.bfloat16)": (3,),
    "torch.empty(3, dtype=torch.float64)": (3,),
    "torch.empty(3, dtype=torch.complex64)": (3,),
    "torch.empty(3, dtype=torch.int64)": (3,),
    "torch.empty(3, dtype=torch.int8)": (3,),
    "torch.empty(3, dtype=torch.uint8)": (3,),
    "torch.empty(0)": (0,),
    "torch.empty(0, 6)": (0, 6),
    "torch.empty_like(x)": (4, 6),
    "torch.empty_like(x.t())": (6, 4),
    "torch.empty_like(x, dtype=torch.float16)": (4, 6),
    "x.new_empty(2, 5)": (2, 5),
    "x.new_empty((3, 4), dtype=torch.float64)": (3, 4),
    "torch.empty_strided((2, 3), (1, 2))": (2, 3),
    "torch.empty_strided((2, 2), (10, 3))": (2, 2),
    "torch.empty_strided((2, 3), (0, 1))": (2, 3),
    "x.new_empty_strided((2, 3), (3, 1))": (2, 3),
    "torch.empty_permuted((2, 3, 4), (2, 0, 1))": (2, 3, 4),
    "torch.empty((2, 3, 4, 5), memory_format=torch.channels_last)": (2, 3, 4, 5),
    "torch.empty_like(torch.empty(1, 2, 3, 4), memory_format=torch.channels_last)": (1, 2, 3, 4),
}


@pytest.mark.parametrize("expression", EMPTY)
def test_an_allocation_is_like_the_one_it_stands_for(expression):
    blocks, seen = Blocks(), []
    plain = eval(expression, {"torch": torch, "x": X})
    for poisoned in (False, True):
        blocks.begin(poisoned=poisoned)
        seen.append(blocks.block(plain, plain.device))
    for made in seen:
        assert (made.shape, made.stride(), made.dtype) == (plain.shape, plain.stride(), plain.dtype)
        assert made.shape == EMPTY[expression]
        assert (made.device, made.storage_offset(), type(made)) == (plain.device, 0, torch.Tensor)
        assert made.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
        assert made.is_contiguous() == plain.is_contiguous()
    ordinary, poisoned = seen
    if ordinary.is_floating_point() or ordinary.is_complex():
        assert not bool(ordinary.isnan().any()) and bool(poisoned.isnan().all())
    else:
        assert bool((ordinary < 100).all()) and bool((poisoned == torch.tensor(-1).to(poisoned.dtype)).all())


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.complex64]
KINDS += [torch.int64, torch.int32, torch.uint8, torch.uint16, torch.bool]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", KINDS)
def test_guard_zones_hold_ordinary_values_in_audits_and_timed_calls(dtype, device):
    """A kernel that reads behind a tensor cannot tell the two: neither is a pattern, neither holds NaN."""
    values = (torch.arange(600) % 7 * 40).to(torch.float32).to(dtype).reshape(30, 20).to(device)
    audit, memory = Blocks(), []
    placed, live = audit.place(values), _live(values.reshape(-1), [30, 20], memory)
    assert same_bytes(placed, values) and same_bytes(live, values)
    assert placed.is_contiguous() and live.is_contiguous()
    for tensor, raw in ((placed, audit.blocks[0].raw), (live, memory[0].raw)):
        assert tensor.data_ptr() == raw.data_ptr() + ZONE
        for zone in (raw[:ZONE], raw[-ZONE:]):
            found = zone.cpu().view(dtype)
            wide = found.to(torch.complex64 if dtype.is_complex else torch.float64)
            assert bool(wide.isfinite().all()) and 0 < float(wide.abs().max()) <= 240
            assert len(wide.abs().unique()) >= 2
    assert not torch.equal(audit.blocks[0].zones, memory[0].zones)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", [0, ZONE - 1, -ZONE, -1])
def test_a_single_byte_beside_a_block_is_seen(where, device):
    audit = Blocks()
    for poisoned in (False, True):
        audit.begin(poisoned=poisoned)
        audit.place(X.to(device))
        audit.check_zones()
        assert audit.take() == []
        audit.blocks[-1].raw[where] ^= 1
        audit.check_zones()
        assert [violation.rule for violation in audit.take()] == ["out_of_bounds"]
        audit.close()


@pytest.mark.parametrize(
    ("where", "element"), [(ZONE - 1, -1), (ZONE - 8, -4), (-ZONE, 600), (-ZONE + 2 * 40, 640)]
)
def test_a_write_beside_a_tensor_names_tensor_and_element(where, element):
    audit = Blocks()
    audit.place(torch.ones(30, 20, dtype=torch.float16))
    audit.blocks[-1].raw[where] ^= 1
    audit.check_zones()
    (violation,) = audit.take()
    assert f"element {element} of a float16[30, 20] tensor, which has 0 to 599" in violation.message


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_unwritten_memory_holds_what_the_call_before_left_but_for_a_part(dtype, device):
    blocks = Blocks()
    for left in (1, 2):
        blocks.begin()
        made = blocks.block(torch.empty((8, 50), dtype=dtype), device)
        before = made.clone()
        made.copy_(torch.arange(400).reshape(8, 50) + 1000 * left)
    kept = before == torch.arange(400).reshape(8, 50).to(device) + 1000
    assert 300 <= int(kept.sum()) < 400  # a number may be drawn where it was
    assert not blocks.take()


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]),
    st.booleans(),
)
def test_a_placed_input_holds_its_values(shape, dtype, transposed):
    values = (torch.arange(math.prod(shape)) % 3).reshape(shape).to(dtype)
    values = values.t() if transposed and values.dim() == 2 else values
    audit = Blocks()
    placed = [audit.place(values) for _ in range(2)]
    assert all(torch.equal(one, values) and one.is_contiguous() for one in placed)
    assert values.numel() == 0 or len({values.data_ptr(), *(one.data_ptr() for one in placed)}) == 3
    audit.check_zones()
    assert audit.take() == []
