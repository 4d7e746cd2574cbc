"""A call of the device that cannot be made is the machine's fault or the model's, never a candidate's."""

import os
from types import SimpleNamespace

import pytest
import torch

from passagent.evaluator.runner import calls, worker
from passagent.packages import model_timing
from passagent.tasks.extract.model_capture import Model

BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


@pytest.fixture
def state(monkeypatch):
    """A worker's state, where its sandbox lets NVML count no device."""
    monkeypatch.setenv(BY_NVML, "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return SimpleNamespace(is_prepared=False)


def test_worker_with_a_context_counts_no_devices_by_nvml(state, monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(calls, "load_kernels", lambda device: None)
    worker._prepare(state, "cuda:0")
    assert BY_NVML not in os.environ


@pytest.mark.gpu
def test_worker_waits_for_its_gpu_where_nvml_counts_none(state):
    with pytest.raises(RuntimeError, match="invalid argument to exchangeDevice"):
        torch.cuda.synchronize()
    worker._prepare(state, "cuda")
    torch.cuda.synchronize()


def test_model_that_cannot_be_captured_is_timed_without_that_side():
    model, sides = Model("m", torch.nn.ReLU(), (torch.ones(4),)), {}
    with torch.no_grad():
        reasons = model_timing._add_graph(model, sides)
    assert sides == {}
    measured = model_timing.Measurement("cpu", {"eager": 1.0}, {}, {}, [], left_out=reasons)
    line = "not timed: eager in a CUDA graph: an input is not on a GPU"
    assert line in str(measured).splitlines()


@pytest.mark.gpu
def test_model_that_asks_for_a_value_leaves_the_gpu_as_it_was():
    class Asking(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.sum().item() else x

    class Tripling(torch.nn.Module):
        def forward(self, x):
            return x * 3

    x, sides, stream = torch.ones(64, device="cuda"), {}, torch.cuda.current_stream()
    with torch.no_grad():
        assert "cannot hold it" in model_timing._add_graph(Model("m", Asking(), (x,)), sides)[0]
        assert sides == {} and torch.cuda.current_stream() == stream
        assert model_timing._add_graph(Model("m", Tripling(), (x,)), sides) == []
        x.fill_(2.0)
        assert sides["eager in a CUDA graph"]().tolist() == [6.0] * 64
