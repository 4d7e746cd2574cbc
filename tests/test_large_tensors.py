"""Large tensors of a GPU wait in host memory, and are compared there."""

import pytest
import torch

from passagent.tasks import constraints
from passagent.tasks.constraints import close, equal, set_aside

VALUES = torch.arange(60.0).reshape(3, 4, 5)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """All tensors are large."""
    monkeypatch.setattr(constraints, "LARGE", 1)


def test_only_large_tensors_of_a_gpu_are_set_aside(monkeypatch):
    values = [VALUES, VALUES.permute(2, 0, 1).requires_grad_(), 3, None]
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
    here[50] += 1
    assert not equal(there, here) and not close(here, there)
