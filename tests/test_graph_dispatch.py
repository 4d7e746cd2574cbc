"""`dispatch: graph`: the host's share of a call does not count; a GPU replays calls in a CUDA graph."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import cases_of
from cases import write_task as write_case
from test_timing import Scripted, reference, scripted
from tiny import candidate, write_subgraph, write_task

from passagent.config import EvaluatorConfig
from passagent.errors import TaskError
from passagent.evaluator.fleet.opening import environment_key
from passagent.evaluator.judging import judging
from passagent.evaluator.judging.loaded_worker import LoadedWorker
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.reference.baseline import Baseline
from passagent.evaluator.runner import hostless
from passagent.evaluator.runner.calls import Graph, refresh_all, same_bytes
from passagent.evaluator.runner.fresh import Draw, Rotation, Slots, refresher, window_of
from passagent.evaluator.runner.samples import Samples, counted
from passagent.evaluator.timing.timing import together
from passagent.sandbox.channel import Arena
from passagent.tasks import Subgraph, TensorMeta
from passagent.tasks.reader import load_task

CONFIG = EvaluatorConfig(dispatch="graph", budget_s=1e-6, timeout_s=120, memory_gb=6)
GPU = CONFIG.model_copy(update={"device": "cuda"})


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return load_task(write_task(tmp_path_factory.mktemp("task") / "silu_mul_add"))


@pytest.fixture(scope="module")
def referee(forks):
    with Referee(CONFIG, forks) as one:
        yield one


@pytest.fixture
def references(monkeypatch):
    """The references for this dispatch that baselines give out while a test runs."""
    given, reference = [], Baseline.reference

    def noted(self, subgraph, dispatch, judged=None):
        answer = reference(self, subgraph, dispatch)
        given.extend([answer] if dispatch == "graph" else [])  # what Dynamo must capture is taken as "direct"
        return answer

    monkeypatch.setattr(Baseline, "reference", noted)
    return given


def check_times(result):
    for graph in result.graphs:
        assert graph.trials == len(graph.eager_samples_ms) == len(graph.compiled_samples_ms) >= 20
        assert min(graph.eager_samples_ms + graph.compiled_samples_ms) > 0
        assert graph.speedup.low <= graph.speedup.e2e <= graph.speedup.high


def test_it_is_named_in_the_result_and_in_what_is_kept(referee, task, references):
    result = referee.evaluate(task, candidate())
    assert (result.status, result.dispatch, result.timing) == ("ok", "graph", "wall")
    assert "estimate" in result.protocol["host"]
    check_times(result)
    assert {one.subgraph.name for one in references} == {one.name for one in result.graphs}
    assert environment_key(CONFIG) != environment_key(CONFIG.model_copy(update={"dispatch": "direct"}))


def test_a_candidate_is_credited_with_no_more_than_eager_whatever_it_says(
    referee, task, monkeypatch, references
):
    seen = []
    pair = judging.TimedPair
    monkeypatch.setattr(judging, "TimedPair", lambda *args: seen.append(args[0].overhead_ns) or pair(*args))
    referee.evaluate(task, candidate())
    honest, most = seen[:], {one.host_ns(one.dispatches) for one in references}
    assert all(0 < one < min(most) for one in honest)  # a replay for three operators
    monkeypatch.setattr(LoadedWorker, "dispatches", lambda *_: 1e9)
    referee.evaluate(task, candidate())
    assert set(seen[len(honest) :]) <= most


def test_what_timed_calls_return_is_verified(referee, task, monkeypatch):
    """Eager's values for timed calls are another's here: a right candidate's differ from them."""
    again = Baseline.again

    def changed(self, *args):
        expected = again(self, *args)
        expected.eager[0] += 1
        return expected

    monkeypatch.setattr(Baseline, "again", changed)
    result = referee.evaluate(task, candidate())
    assert "wrong_result" in {graph.status for graph in result.graphs}


IN_PLACE = """import torch
class GraphModule(torch.nn.Module):
    def forward(self, in_0, in_1):
        in_0 += in_1
        tmp_0 = torch.nn.functional.relu(in_0, inplace=True)
        return (tmp_0,)
"""


def test_eager_in_place_is_judged(referee, tmp_path):
    task = load_task(write_subgraph(tmp_path / "in_place", [4, 64], model=IN_PLACE))
    result = referee.evaluate(task, "eager")
    assert result.status == "ok"
    check_times(result)


def test_eagers_described_time_is_without_the_host_too(referee, task, references):
    [described, *_] = referee.describe(task, 3600)
    assert described.eager_us > 0
    assert all(one.host_ns(one.dispatches) > 0 for one in references)


def test_a_time_of_several_calls_counts_as_their_mean_without_the_host():
    assert counted(2000, 20, 0) == 100
    assert counted(2000, 1, 1500) == 500
    assert counted(2000, 1, 1900) == counted(2000, 1, 9000) == 200  # a tenth stays
    assert Samples([[2000, 4000]], calls=20, overhead_ns=200).counted == [[90, 190]]
    assert Samples([[7, 8]]).counted == [[7, 8]]


def test_a_graph_of_several_calls_gives_the_same_speedup_and_a_shorter_time(monkeypatch):
    monkeypatch.setattr(Scripted, "times", lambda self, count: [self.per_call_ns] * count)
    one, *_ = scripted(per_call_ns=10_000)
    at = reference()
    at.repeats = 20
    many, *_ = scripted(at=at, per_call_ns=10_000)
    assert many.speedup == pytest.approx(one.speedup) == pytest.approx(2.0)
    assert sum(many.eager.counted[0]) == pytest.approx(sum(many.eager.blocks[0]) / 20)
    assert many.hidden is None and one.hidden is None  # clocks are compared in what they saw
    took, whole = (together([timing]) for timing in (many, one))
    assert took.eager_ns == pytest.approx(whole.eager_ns / 20)
    assert took.speedup == pytest.approx(whole.speedup)


def make_graph(device="cpu", call=torch.neg):
    """A graph of one input, and its rotation."""
    meta = TensorMeta("in_0", "x", (64,), "float32", "cuda:0", mean=0.0, std=1.0)
    rotation = Rotation.of(Subgraph("g", Path("g"), (meta,), "", "float32", ""))
    reservoir = torch.cat(rotation.reservoir(0, torch.randn(64), 7, 0)).to(device)
    live = [torch.zeros(64, device=device)]
    graph = Graph(
        call, None, device == "cuda", [0], live, [[reservoir], [reservoir]], Arena.create(4096), [], []
    )
    return graph, rotation


def with_slots(count):
    graph, rotation = make_graph()
    draw = Draw(rotation)
    graph.slots = [Slots(graph.live, count, draw)]
    return graph, draw


def test_every_call_of_a_graph_has_values_of_its_own():
    graph, draw = with_slots(20)
    before = None
    for chosen in (0, 1, 1):
        windows = draw.next()  # of one draw, so that none comes twice
        graph.refresher(chosen, [0])(windows)
        given = [tuple(values.tolist()) for (values,) in graph.slots[0].inputs]
        assert len({*given}) == 20
        assert before is None or not {*before} & {*given}
        before = given


def test_which_call_of_a_graph_is_judged_is_drawn_and_has_the_values_that_are_asked_for():
    graph, draw = with_slots(4)
    seen = set()
    for _ in range(100):
        windows = draw.next()
        graph.refresher(1, [0])(windows)
        captured, slot = graph.slot
        seen.add(slot)
        assert captured == 0 and graph.live is graph.slots[0].inputs[slot]
        assert torch.equal(graph.live[0], window_of(graph.sets[1][0], windows[0], 64))
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "uint8", "bool"])
def test_the_inputs_of_every_call_are_windows_bit_by_bit(device, dtype):
    metas = [TensorMeta(f"in_{i}", f"x{i}", shape, dtype, device) for i, shape in enumerate([(3, 7), (64,)])]
    metas = [replace(meta, mean=0.0, std=1.0) if "float" in dtype else meta for meta in metas]
    rotation = Rotation.of(Subgraph("g", Path("g"), tuple(metas), "", dtype, ""))
    kind = getattr(torch, dtype)
    bits = [torch.randint(0, 2 if dtype == "bool" else 127, meta.shape) for meta in metas]
    drawn = [rotation.reservoir(i, values.to(kind), 7, 0) for i, values in enumerate(bits)]
    reservoirs = [torch.cat(parts).to(device) for parts in drawn]
    if "float" in dtype:
        reservoirs[0][:5] = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 6e-8], dtype=kind)
    live = [torch.zeros(meta.shape, dtype=kind, device=device) for meta in metas]
    draw = Draw(rotation)
    slots, windows, several = Slots(live, 5, draw), [], draw.several
    draw.several = lambda calls: windows.append(several(calls)) or windows[-1]
    slots.refresher(reservoirs, [0, 1])()
    for number, inputs in enumerate(slots.inputs):
        for i, value in enumerate(inputs):
            want = window_of(reservoirs[i], int(windows[0][i, number]), value.numel()).view(value.shape)
            assert same_bytes(value, want)


def test_what_is_refreshed_once_a_block_is_the_same_in_all_calls_of_a_graph():
    graph, draw = with_slots(4)
    windows = draw.next()
    refresh_all(graph, 0, windows)
    want = window_of(graph.sets[0][0], windows[0], 64)
    assert all(torch.equal(values, want) for (values,) in graph.slots[0].inputs)


def test_without_a_graph_inputs_are_refreshed_as_before():
    graph, _ = make_graph()
    refresher(graph.live, graph.sets[0], [0])([0])
    want = graph.live[0].clone()
    graph.live[0].zero_()
    refresh_all(graph, 0, [0])
    assert torch.equal(graph.live[0], want)


@pytest.fixture(scope="module")
def on_gpu():
    with Referee(GPU) as one:
        yield one


@pytest.mark.gpu
def test_captured_calls_are_right_and_have_values_of_their_own():
    seen = []

    def call(x):
        seen.append(x)
        return (-x,)

    graph, rotation = make_graph("cuda", call)
    hostless.capture(graph, 5, 3, rotation)
    assert len(seen) == 18  # one of each capture to warm up
    held = [seen[1 + 6 * captured : 6 + 6 * captured] for captured in range(3)]
    draw, judged, places = Draw(rotation), set(), set()
    for _ in range(300):
        graph.refresher(1, [0])(draw.next())
        (out,) = graph.call(*graph.args)
        torch.cuda.synchronize()
        assert torch.equal(out, -graph.live[0])
        others = [values for values in held[graph.slot[0]] if values is not graph.live[0]]
        assert len({tuple(values.tolist()) for values in others}) == 4
        judged.add(graph.slot)
        places.add(out.data_ptr())
    assert len(judged) == len(places) == 15  # each call's outputs are its own
    assert len(seen) == 18  # replays call nothing


@pytest.mark.gpu
def test_after_a_capture_that_fails_the_process_goes_on():
    graph, rotation = make_graph("cuda", lambda x: x * x.sum().item())
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^a CUDA graph cannot hold it: .+\Z"):
            hostless.capture(graph, 20, 1, rotation)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.empty_cache()
    assert float(torch.rand(1000, device="cuda").sum()) > 0
    graph, rotation = make_graph("cuda")
    hostless.capture(graph, 20, 1, rotation)
    refresh_all(graph, 0, rotation.first())
    out = graph.call(*graph.args)
    torch.cuda.synchronize()
    assert torch.equal(out, -graph.live[0])


@pytest.mark.gpu
def test_inputs_on_the_cpu_cannot_be_captured():
    graph, rotation = make_graph("cpu")
    with pytest.raises(RuntimeError, match="an input stays on the CPU"):
        hostless.capture(graph, 20, 1, rotation)


@pytest.mark.gpu
def test_eager_on_a_gpu_is_captured(on_gpu, task, references):
    result = on_gpu.evaluate(task, "eager")
    assert (result.status, result.dispatch) == ("ok", "graph")
    assert "CUDA graph" in result.protocol["host"]
    check_times(result)
    assert {tuple(one.mutated) for one in references} == {()}  # with special values in 16 bits, too
    assert {one.repeats for one in references} == {hostless.REPEATS}
    assert all(one.eager_us > 0 for one in on_gpu.describe(task, 60))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["autotuned_configurations", "autotuned_with_a_zeroed_output"])
def test_autotuned_triton_on_a_gpu_is_captured(on_gpu, name, tmp_path):
    case = cases_of("honest")[name]
    result = on_gpu.evaluate(write_case(tmp_path / case.task, case.task), case.candidate)
    assert (result.status, result.dispatch) == ("ok", "graph"), result
    check_times(result)


@pytest.mark.gpu
def test_in_place_on_a_gpu_is_captured_one_call_at_a_time(on_gpu, tmp_path, references):
    case = cases_of("honest")["inplace_as_eager"]
    task = write_case(tmp_path / case.task, case.task)
    for subject in ("eager", case.candidate):
        result = on_gpu.evaluate(task, subject)
        assert result.status == "ok", result
        check_times(result)
    assert {bool(one.mutated) for one in references} == {True}
    assert {one.repeats for one in references} == {1}


@pytest.mark.gpu
def test_wrong_values_on_a_gpu_are_wrong(on_gpu, tmp_path):
    case = cases_of("honest")["autotuned_configurations"]
    files = {name: text.replace("x + y, 0.0", "x + y, 0.5") for name, text in case.candidate.files.items()}
    assert files != case.candidate.files
    wrong = type(case.candidate)(files)
    result = on_gpu.evaluate(write_case(tmp_path / case.task, case.task), wrong)
    assert {graph.status for graph in result.graphs} == {"wrong_result"}


SYNCHRONISES = """import torch
class GraphModule(torch.nn.Module):
    def forward(self, in_0, in_1):
        tmp_0 = torch.linalg.inv(in_0)
        tmp_1 = tmp_0 + in_1
        return (tmp_1,)
"""


@pytest.mark.gpu
def test_eager_that_cannot_be_captured_is_the_tasks_fault(on_gpu, task, tmp_path):
    waits = load_task(write_subgraph(tmp_path / "waits", [32, 32], model=SYNCHRONISES))
    with pytest.raises(TaskError, match="a CUDA graph cannot hold it") as told:
        on_gpu.evaluate(waits, "eager")
    assert "\n" not in str(told.value)
    assert on_gpu.evaluate(task, "eager").status == "ok"


@pytest.mark.gpu
@pytest.mark.long
def test_inductor_on_a_gpu_is_captured(on_gpu, task):
    result = on_gpu.evaluate(task, "inductor")
    assert (result.status, result.dispatch) == ("ok", "graph"), result
    check_times(result)
