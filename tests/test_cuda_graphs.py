"""Calls as replays of CUDA graphs: the outputs are those of the model, whatever changed since the capture."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from passagent.packages.cuda_graphs import CUDA_GRAPH, CudaGraphs
from passagent.packages.deployed import compile_model
from passagent.packages.loading import load_packages


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x, scale=1.0, more=None):
        y = self.norm(self.linear(x)) * scale
        return {"y": y, "sum": y.sum()} if more is None else y + more["bias"]


def graphed(model, device="cuda"):
    """The model, and its calls in CUDA graphs."""
    model = model.to(device).eval() if isinstance(model, nn.Module) else model
    return model, CudaGraphs(model, model)


def test_on_the_cpu_the_model_is_called():
    model, calls = graphed(Small(), "cpu")
    x = torch.randn(4, 16)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(calls(x), model(x))
    assert calls.why_not == "an input is not on a GPU"
    assert calls(x)["y"].requires_grad
    assert calls.why_not == "gradients are recorded: call it under torch.no_grad()"


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_each_replay_has_the_values_of_its_own_inputs(mode):
    model, calls = graphed(Small())
    with mode():
        given = [torch.randn(4, 16, device="cuda") for _ in range(6)]
        returned = [calls(x) for x in given]
        assert calls.why_not == "" and len(calls._graphs) == 1
        for x, got in zip(given, returned, strict=True):
            torch.testing.assert_close(got, model(x))
        for x in (torch.randn(2, 16, device="cuda"), torch.randn(16, 4, device="cuda").t()):
            for scale in (2.0, 3.0):
                for _ in range(3):
                    torch.testing.assert_close(calls(x, scale=scale), model(x, scale=scale))
        bias = {"bias": torch.randn(16, device="cuda")}
        for _ in range(4):
            torch.testing.assert_close(calls(x, more=bias), model(x, more=bias))
            assert calls.why_not == ""
            bias = {"bias": bias["bias"] + 1}


def _loads(model):
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def _replaces(model):
    model.linear.weight = nn.Parameter(torch.randn(16, 16, device="cuda"))


def _moves(model):
    model.linear.weight.data = torch.randn(16, 16, device="cuda")


def _trains(model):
    model.norm.train()
    model.train()


@pytest.mark.gpu
@pytest.mark.parametrize("change", [_loads, _replaces, _moves, _trains])
def test_a_change_of_the_model_is_seen_by_the_next_call(change):
    model, calls = graphed(Small())
    x = torch.randn(4, 16, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            calls(x)
        change(model)
        for _ in range(4):
            torch.testing.assert_close(calls(x)["y"], model(x)["y"])


def _writes(x):
    return x.add_(1.0) * 2


CALLS = {
    "it writes into an input": _writes,
    "an output shares memory with an input, a parameter, another output or itself": lambda x: (x[0], x * 2),
    "an output is not on a GPU": lambda x: x.cpu(),
    "an output is a set": lambda x: {float(x.shape[0])},
    "a CUDA graph cannot hold it": lambda x: x * 2 if x.sum().item() else x * 3,
}


@pytest.mark.gpu
@pytest.mark.parametrize("why", CALLS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_no_graph_can_stand_for_is_called(why, mode):
    function = CALLS[why]
    _, calls = graphed(function)
    with mode():
        for number in range(4):
            given = torch.full((4, 8), float(number), device="cuda")
            mine, other = given.clone(), given.clone()
            assert str(calls(mine)) == str(function(other))
            assert torch.equal(mine, other)
            assert number == 0 or calls.why_not.startswith(why)


class Projected(nn.Module):
    """Three layers of one input: a shipped pass joins their weights when the model is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))

    def forward(self, x):
        q, k, v = (layer(x) for layer in self.layers)
        return q * k + v


@pytest.mark.gpu
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_reset_of_dynamo_leaves_what_a_graph_reads(is_frozen):
    model, x = Projected().cuda().eval(), torch.randn(64, 256, device="cuda")
    calls = compile_model(model, load_packages("passagent.passes"), CUDA_GRAPH, is_frozen)
    with torch.no_grad():
        for number in range(6):
            if number == 3:
                torch._dynamo.reset()
                gc.collect()
                torch.cuda.empty_cache()
                torch.full((1 << 24,), float("nan"), device="cuda")
            torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-4)
        assert calls.why_not == ""


def test_a_reset_of_dynamo_leaves_what_was_compiled():
    model = Small().eval()
    calls = compile_model(model)
    with torch.no_grad():
        calls(torch.randn(4, 16))
    [part] = map(weakref.ref, calls.parts)
    torch._dynamo.reset()
    gc.collect()
    assert part() is not None


@pytest.mark.gpu
def test_calls_on_two_streams_do_not_disturb_each_other():
    model, calls = graphed(Small())
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    given = [torch.randn(4096, 16, device="cuda") for _ in range(40)]
    torch.cuda.synchronize()
    with torch.no_grad():
        returned = []
        for number, x in enumerate(given):
            with torch.cuda.stream(streams[number % 2]):
                returned.append(calls(x)["y"])
        torch.cuda.synchronize()
        for x, got in zip(given, returned, strict=True):
            torch.testing.assert_close(got, model(x)["y"])
