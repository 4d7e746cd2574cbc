"""Calls as replays of CUDA graphs: the outputs are those of the model, whatever changed since the capture.

On the CPU a graph is stood in for by one that computes again into the same memory, and gives NaN where what
it would read is no longer there. On a GPU it is a real one.
"""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from passagent.packages import cuda_graphs
from passagent.packages.cuda_graphs import CUDA_GRAPH, CudaGraphs
from passagent.packages.deployed import compile_model
from passagent.packages.loading import CompileSettings, load_packages

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MODES = [torch.no_grad, torch.inference_mode]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.scales = torch.ones(16)
        self.register_buffer("shift", None)

    def forward(self, x, scale=1.0, more=None):
        y = self.norm(self.linear(x)) * scale * self.scales
        y = self.drop(y if self.shift is None else y + self.shift)
        return {"y": y, "sum": y.sum()} if more is None else y + more["bias"]


def on(model, device):
    """Moves a model with the tensors that are no parameters."""
    if isinstance(model, Small):
        model.scales = model.scales.to(device)
    return model.to(device).eval()


class Function(nn.Module):
    """A function as a module, with a counter that nothing writes unless the function does."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("count", torch.zeros(()))

    def forward(self, *given):
        return self.function(self, *given)


class StandIn:
    """A graph that is none: it computes the call again, where the model's tensors are as they were."""

    def __init__(self, model, call, outputs) -> None:
        self.call, self.outputs = call, pytree.tree_leaves(outputs)
        self.state = cuda_graphs._State(model)

    def replay(self) -> None:
        returned, is_there = pytree.tree_leaves(self.call()), self.state.are_same()
        for old, new in zip(self.outputs, returned, strict=True):
            if isinstance(old, torch.Tensor):
                old.copy_(new if is_there else torch.full_like(new, torch.nan))


@pytest.fixture
def graphed(request, monkeypatch):
    """Makes a module and its calls in graphs, on the device of the test."""
    device = request.param
    graphs = []

    def made(model):
        model = on(model, device)
        calls = CudaGraphs(model, model)
        graphs.append(calls)
        return model, calls

    def record(warm, call, errors):
        warm()
        outputs = call()
        return StandIn(graphs[-1]._model, call, outputs), outputs

    if device == "cpu":
        stream = object()
        monkeypatch.setattr(cuda_graphs, "_last_streams", {})
        replaced = cuda_graphs._problem_of
        is_plain = {"is not on a GPU": "", "is not on the current device": ""}
        monkeypatch.setattr(
            cuda_graphs, "_problem_of", lambda value: is_plain.get(problem := replaced(value), problem)
        )
        monkeypatch.setattr(cuda_graphs.hostless, "record", record)
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
        monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    made.device = device
    return made


on_both = pytest.mark.parametrize("graphed", DEVICES, indirect=True)


def test_on_the_cpu_the_model_is_called():
    model = Small().eval()
    calls, x = CudaGraphs(model, model), torch.randn(4, 16)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(calls(x), model(x))
    assert calls.why_not == "an input is not on a GPU"
    assert calls(x)["y"].requires_grad
    assert calls.why_not == "gradients are recorded: call it under torch.no_grad()"


@on_both
@pytest.mark.parametrize("mode", MODES)
def test_each_replay_has_the_values_of_its_own_inputs(graphed, mode):
    model, calls = graphed(Small())
    with mode():
        given = [torch.randn(4, 16, device=graphed.device) for _ in range(6)]
        returned = [calls(x) for x in given]
        assert calls.why_not == "" and len(calls._graphs) == 1
        for x, got in zip(given, returned, strict=True):
            torch.testing.assert_close(got, model(x))
        for x in (given[0][:2].clone(), torch.randn(16, 4, device=graphed.device).t()):
            for scale in (2.0, 3.0, -0.0, 0.0):
                for _ in range(3):
                    torch.testing.assert_close(calls(x, scale=scale), model(x, scale=scale))
        bias = {"bias": torch.randn(16, device=graphed.device)}
        for _ in range(4):
            torch.testing.assert_close(calls(x, more=bias), model(x, more=bias))
            assert calls.why_not == ""
            bias = {"bias": bias["bias"] + 1}


CHANGES = {
    "other values": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "another parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(m.linear.weight * 2)),
    "another memory": lambda m: setattr(m.linear.weight, "data", m.linear.weight.data * 2),
    "training": lambda m: m.norm.train(),
    "another part": lambda m: setattr(m, "linear", nn.Linear(16, 16).to(m.linear.weight.device)),
    "a buffer that was none": lambda m: setattr(m, "shift", torch.ones_like(m.linear.bias)),
    "another tensor": lambda m: setattr(m, "scales", m.scales * 2),
    "a written tensor": lambda m: m.scales.mul_(2),
}


@on_both
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen_by_the_next_call(graphed, change):
    model, calls = graphed(Small())
    x, other = (torch.randn(rows, 16, device=graphed.device) for rows in (4, 8))
    with torch.no_grad():
        for _ in range(3):
            calls(x), calls(other)
        CHANGES[change](model)
        for given in (other, x, x, other, x, other):
            before = {name: value.clone() for name, value in model.state_dict().items()}
            got = calls(given)["y"]
            if change == "training":
                model.load_state_dict(before)  # statistics
            torch.testing.assert_close(got, model(given)["y"])
        assert (calls.why_not == "") == (change != "training")


def _counts(model, x):
    model.count += 1
    return x * model.count


def _appends(_, x, more):
    more.append(x)
    return x * 2


CALLS = {
    "it writes into an input": lambda _, x: x.add_(1.0) * 2,
    "it writes into a parameter or buffer": _counts,
    "an output shares memory with": lambda _, x: (x[0], x * 2),
    "an output is a set": lambda _, x: (x * 2, {1.0}),
    "it returns no tensor": lambda _, x: 3,
}


@on_both
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("why", CALLS)
def test_what_no_graph_can_stand_for_is_called(graphed, why, mode):
    (_, calls), (plain, _) = graphed(Function(CALLS[why])), graphed(Function(CALLS[why]))
    with mode():
        for number in range(4):
            value = torch.full((4, 8), float(number), device=graphed.device)
            mine, other = value.clone(), value.clone()
            assert str(calls(mine)) == str(plain(other))
            assert torch.equal(mine, other)
            assert calls.why_not.startswith(why)


@on_both
def test_an_argument_that_is_changed_stays_changed(graphed):
    _, calls = graphed(Function(_appends))
    more, x = [], torch.ones(4, device=graphed.device)
    with torch.no_grad():
        for count in range(1, 5):
            calls(x, more)
            assert len(more) == count


@on_both
def test_a_part_with_hooks_is_called(graphed):
    model, calls = graphed(Small())
    seen, x = [], torch.randn(4, 16, device=graphed.device)
    model.linear.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        for _ in range(4):
            calls(x)
    assert len(seen) == 4 and calls.why_not == "a part of it has hooks"


@on_both
def test_scalars_that_change_with_each_call_do_not_pile_up(graphed, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "_MOST_LAYOUTS", 8)
    model, calls = graphed(Small())
    x = torch.randn(4, 16, device=graphed.device)
    with torch.no_grad():
        for number in range(20):
            torch.testing.assert_close(calls(x, scale=float(number)), model(x, scale=float(number)))
    assert len(calls._graphs) == 8 and "more than 8 layouts" in calls.why_not


@on_both
def test_one_tensor_given_twice_is_one(graphed):
    _, calls = graphed(Function(lambda _, q, k: q * 2 if q is k else q + k))
    q, k = (torch.randn(4, device=graphed.device) for _ in range(2))
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(calls(q, q), q * 2) and torch.equal(calls(q, k), q + k)


@on_both
def test_a_graph_outlives_the_thread_that_captured_it(graphed):
    model, calls = graphed(Small())
    x = torch.randn(4, 16, device=graphed.device)

    def call():
        with torch.no_grad():
            for _ in range(3):
                calls(x)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    with torch.no_grad():
        torch.testing.assert_close(calls(x), model(x))
    assert calls.why_not == ""


@pytest.mark.gpu
def test_what_cannot_be_captured_is_called():
    model = Function(lambda _, x: x * 2 if x.sum().item() else x * 3).cuda()
    calls = CudaGraphs(model, model)
    with torch.no_grad():
        for number in range(4):
            x = torch.full((4,), float(number), device="cuda")
            assert torch.equal(calls(x), model(x))
    assert calls.why_not.startswith("a CUDA graph cannot hold it")


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
    calls = compile_model(model, load_packages("passagent.passes"), CompileSettings(CUDA_GRAPH, is_frozen))
    with torch.no_grad():
        for number in range(6):
            if number == 3:
                torch._dynamo.reset()
                gc.collect()
                torch.cuda.empty_cache()
                torch.full((1 << 24,), float("nan"), device="cuda")
            torch.testing.assert_close(calls(x), model(x), rtol=1e-4, atol=1e-4)
        assert calls.why_not == ""


def test_a_reset_of_dynamo_leaves_what_was_compiled(no_kernels):
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
    model = on(Small(), "cuda")
    calls = CudaGraphs(model, model)
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
