"""Replays on a GPU: compiled Triton and CUDA C++ kernels, by themselves and captured in a CUDA graph."""

import functools

import cases
import handmade as h
import plans
import pytest
import torch

from passagent.kernels import driver
from passagent.plan import arguments as a
from passagent.plan import model as m
from passagent.plan import record
from passagent.plan import values as v
from passagent.plan.compile import compile_plan
from passagent.plan.recorder_process import recording_process
from passagent.plan.replay import Replay
from passagent.plan.table import Mode
from passagent.tasks import graphio
from passagent.tasks.inputs import make_inputs

pytestmark = pytest.mark.gpu
CUDA_ADD = """
template <class T> __global__ void add(const T* x, const T* y, T* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}"""
GATHER = """
__global__ void gather(const int64_t* table, const float* weights, float* out, int n) {
  const float* x = reinterpret_cast<const float*>(table[0]);
  const float* y = reinterpret_cast<const float*>(table[1]);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = weights[0] * x[i] + weights[1] * y[i];
}"""


def cuda(text, entry, *types):
    signature = tuple(m.Parameter(type=t) for t in types)
    return m.NativeKernel(kind="cuda", text=text, entry=entry, signature=signature)


def poisoned(size, stride, dtype):
    """A fresh tensor of which every byte is 0xFF."""
    made = torch.empty_strided(size, stride, dtype=dtype, device="cuda")
    torch.empty(0, dtype=torch.uint8, device="cuda").set_(made.untyped_storage()).fill_(0xFF)
    return made


def replayed(plan, empty=None):
    plan = h.read(plan.canonical())
    return Replay(plan, compile_plan(plan, driver.architecture()), "cuda", Mode(empty=empty))


@functools.cache
def of_this_gpu():
    major, minor = torch.cuda.get_device_capability()
    return f"cuda:{major}{minor}"


def summing():
    """x + 2.5 + y of 200 elements: by Triton, then by CUDA C++."""
    tensor = {"shape": (200,), "device": "cuda"}
    first = h.triton().model_copy(update={"target": of_this_gpu()})
    second = cuda(CUDA_ADD, "add", "float*", "float*", "float*", "int64_t")
    values = [h.given(**tensor), h.given(**tensor), h.made(**tensor), h.made(**tensor), h.made(**tensor)]
    steps = [
        m.Alloc(value=2), m.Fill(value=2, number=h.real(2.5)), m.Alloc(value=3), m.Alloc(value=4),
        h.launch(first, h.value(0), h.value(2), h.value(3), h.number(200), grid=(2, 1, 1)),
        h.launch(second, h.value(3), h.value(1), h.value(4), h.number(200), grid=(4, 1, 1), block=(64, 1, 1)),
    ]  # fmt: skip
    return h.plan([h.value(0), h.value(1)], values, steps, h.value(4), [first, second])


def gathering():
    """0.5 x + 2 y of 32 elements, by a table of addresses; and that, transposed and copied."""
    raw, table = bytes.fromhex("0000003f00000040"), bytes(16)
    weights, addresses = (h.hashlib.sha256(one).hexdigest() for one in (raw, table))
    pointers = tuple(v.ConstantAddress(word=n, value=n, offset=0) for n in (0, 1))
    kernel = cuda(GATHER, "gather", "int64_t*", "float*", "float*", "int64_t")
    tensor = {"device": "cuda"}
    values = [
        h.given(**tensor), h.given(**tensor),
        h.made(v.ConstantValue, (2,), data=weights, **tensor),
        h.made(v.ConstantValue, (2,), dtype="int64", data=addresses, addresses=pointers, **tensor),
        h.made(**tensor), h.view(4, shape=(8, 4), stride=(1, 8), **tensor), h.made(shape=(8, 4), **tensor),
    ]  # fmt: skip
    steps = [
        m.Alloc(value=4), m.Alloc(value=6),
        h.launch(kernel, h.value(3), h.value(2), h.value(4), h.number(32), block=(32, 1, 1)),
        m.Copy(value=6, source=5),
    ]  # fmt: skip
    result = a.TupleArg(items=(h.value(4), h.value(6)))
    return h.plan([h.value(0), h.value(1)], values, steps, result, [kernel], [raw, table])


def draw(*shape):
    return torch.randn(shape, device="cuda")


@pytest.mark.parametrize("empty", [None, poisoned])
def test_kernels_run(empty):
    replay = replayed(summing(), empty)
    for _ in range(3):
        replay.arena.fill_(0xFF)
        x, y = draw(200), draw(200)
        assert torch.equal(replay.call(x, y), x + 2.5 + y)


def test_tables_of_addresses_and_copies():
    replay = replayed(gathering(), poisoned)
    for _ in range(3):
        replay.arena.fill_(0xFF)
        x, y = draw(4, 8), draw(4, 8)
        total, turned = replay.call(x, y)
        assert torch.equal(total, 0.5 * x + 2 * y)
        assert torch.equal(turned, total.t())
        assert turned.is_contiguous()
    assert replay.is_intact()


def test_outputs_of_two_calls_never_share_memory():
    replay = replayed(summing())
    x, y = draw(200), draw(200)
    kept = [replay.call(x, y) for _ in range(20)]
    assert len({tensor.data_ptr() for tensor in kept}) == 20


def test_it_runs_on_the_current_stream():
    replay = replayed(summing())
    x, y, stream = draw(200), draw(200), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.zero_()
        out = replay.call(x, y)
    stream.synchronize()
    assert torch.equal(out, y + 2.5)


@pytest.mark.parametrize("make", [summing, gathering])
def test_captured_in_a_graph_it_is_right(make):
    replay = replayed(make())
    shape = replay.plan.values[0].shape
    x, y = draw(*shape), draw(*shape)
    replay.call(x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = replay.call(x, y)
    for _ in range(3):
        x.copy_(draw(*shape))
        y.copy_(draw(*shape))
        replay.arena.fill_(0xFF)
        graph.replay()
        others = draw(*shape), draw(*shape)
        kept = [tensor.clone() for tensor in plans.tensors(captured)]
        replay.call(*others)
        want = plans.tensors(replay.call(x, y))
        torch.cuda.synchronize()
        assert all(map(torch.equal, kept, want))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("float32", h.real(1.5)), ("float64", h.real(-2)), ("int64", h.number(-3)), ("int64", h.number(0)),
        ("bool", a.BoolArg(value=True)), ("bfloat16", h.real(3.14159)), ("int8", h.number(-7)),
        ("complex64", h.real(2)), ("int16", h.number(258)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stride", [None, (1, 3), (7, 2)])
def test_fills(dtype, number, stride):
    tensor = {"shape": (3, 3), "dtype": dtype, "device": "cuda"}
    steps = [m.Alloc(value=0), m.Fill(value=0, number=number)]
    out = replayed(h.plan([], [h.made(**tensor, stride=stride)], steps, h.value(0)), poisoned).call()
    value = float.fromhex(number.value) if number.kind == "float" else number.value
    assert torch.equal(out, torch.full((3, 3), value, dtype=getattr(torch, dtype), device="cuda"))


def test_inputs_elsewhere_are_refused():
    with pytest.raises(TypeError, match="argument 1 is on cpu, not cuda:0"):
        replayed(summing()).call(draw(200), torch.zeros(200))


HONEST = cases.cases_of("honest")
ON_GPU = [case.name for case in HONEST.values() if case.gpu or plans.uses_triton(case.candidate)]
OTHERWISE = {
    "chain_in_place_by_two_kernels", "count_in_place_read_only",
    "last_of_a_chain_in_place_elsewhere",
}  # fmt: skip


@pytest.fixture(scope="module")
def process():
    with recording_process() as started:
        yield started


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*ON_GPU} - OTHERWISE))
def test_honest_plans_equal_eager(name, process, tmp_path):
    case = HONEST[name]
    task = cases.write_task(tmp_path / case.task, case.task)
    answer, _ = plans.recorded(process, case, task)
    assert answer.kind == "recorded", answer
    seen = record.subgraphs_of(task, "cuda")
    for subgraph, meta, sub in zip(answer.recording.subgraphs, task.subgraphs, seen, strict=True):
        eager = graphio.load_graph(sub.nodes)
        graph = graphio.load_graph(sub.nodes)
        planned = plans.rewritten(
            graph, answer.recording, subgraph.calls, lambda p: replayed(p, poisoned).call
        )
        for seed, variant in plans.DRAWS:
            draws = [make_inputs(meta, "cuda", seed, variant) for _ in "abc"]
            outputs, _ = plans.compared(eager, planned, sub.order, draws)
            assert outputs is None
