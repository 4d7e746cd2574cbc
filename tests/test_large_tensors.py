"""Large tensors are compared slice by slice, with the verdict of the whole."""

import pytest
import torch

from passagent.tasks import constraints
from passagent.tasks.constraints import close, equal, set_aside, slices

VALUES = torch.arange(60.0).reshape(3, 4, 5)
LAYOUTS = {
    "contiguous": lambda x: x.clone(),
    "permuted": lambda x: x.permute(2, 0, 1).clone().permute(1, 2, 0),
    "every second": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "one number": lambda x: x.sum(),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """All tensors are large."""
    monkeypatch.setattr(constraints, "LARGE", 1)
    monkeypatch.setattr(constraints, "SLICE", 7)


@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("change", [0.0, 1e-7, 1e-3, float("inf"), float("nan")])
def test_a_comparison_in_slices_has_the_verdict_of_the_whole(first, second, change):
    one, other = LAYOUTS[first](VALUES), LAYOUTS[second](VALUES)
    other[(-1,) * other.dim()] += change
    assert equal(one, other) == torch.equal(one, other)
    assert close(one, other) == torch.allclose(one, other, equal_nan=True)
    assert close(one, other, 0, 1e-2) == torch.allclose(one, other, 0, 1e-2, equal_nan=True)
    assert close(other, other.clone()) and equal(one, one.clone())


@pytest.mark.parametrize("layout", ["contiguous", "permuted"])
def test_slices_are_small_and_hold_all_elements(layout):
    parts = [a for a, _ in slices(LAYOUTS[layout](VALUES), VALUES)]
    assert len(parts) > 3 and max(part.numel() for part in parts) <= 12
    assert sorted(torch.cat([part.reshape(-1) for part in parts]).tolist()) == VALUES.reshape(-1).tolist()


def test_only_large_tensors_of_a_gpu_are_set_aside(monkeypatch):
    values = [VALUES, LAYOUTS["permuted"](VALUES).requires_grad_(), 3, None]
    assert all(kept is value for kept, value in zip(set_aside(values), values, strict=True))
    monkeypatch.setattr(constraints, "CROWDED", ("cpu",))
    *moved, number, nothing = set_aside(values)
    for copy, value in zip(moved, values, strict=False):
        assert copy.data_ptr() != value.data_ptr() and torch.equal(copy, value)
        assert (copy.stride(), copy.requires_grad) == (value.stride(), value.requires_grad)
    assert (number, nothing) == (3, None)


@pytest.mark.gpu
def test_a_tensor_in_host_memory_is_compared_with_one_on_the_gpu():
    there = torch.rand(100, device="cuda")
    [here] = set_aside([there])
    assert here.device.type == "cpu"
    assert equal(there, here) and close(here, there)
    assert all(a.is_cuda and b.is_cuda for a, b in slices(here, there))
    here[50] += 1
    assert not equal(there, here) and not close(here, there)
