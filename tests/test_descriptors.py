"""Triton's tensor descriptors made on the host, and clusters of blocks, from recording to the launch."""

from __future__ import annotations

import ctypes
import subprocess

import cases
import handmade as h
import pytest
import torch

from passagent.config import EvaluatorConfig
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.kernels import driver
from passagent.kernels.source_errors import KernelRefused
from passagent.plan import arguments as a
from passagent.plan import compile as compiling
from passagent.plan import extension, facts, kernel_arguments, table
from passagent.plan import model as m
from passagent.plan import record as recording
from passagent.plan.check import PlanError
from passagent.plan.compile import Built
from passagent.plan.constants import Constants
from passagent.plan.replay import Replay

ROWS, COLS = 48, 40
TASK = cases.TaskText(
    "y = in_0 * 2.0\nz = torch.nn.functional.relu(y)\nreturn (z,)", [[([ROWS, COLS], "float16")]]
)
PASS = '''"""Doubles by descriptors."""
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK = [32, 16]


@triton.jit
def double(x_desc, out_desc, M: tl.constexpr, N: tl.constexpr):
    row, col = tl.program_id(0) * M, tl.program_id(1) * N
    twice = x_desc.load([row, col]) * 2
    out_desc.store([row, col], tl.where(twice < 0, 0.0, twice).to(tl.float16))


@triton.jit
def copy(x_desc, out_desc):
    out_desc.store([0, 0], x_desc.load([0, 0]))


def run(x, out, **options):
    grid = (triton.cdiv(out.shape[0], 32), triton.cdiv(out.shape[1], 16))
    double[grid](x, out, 32, 16, **options)


def described(x, **options):
    return TensorDescriptor.from_tensor(x, BLOCK, **options)


def fused(x):
    out = torch.empty_like(x)
    {body}
    return out


def pattern(x):
    return torch.nn.functional.relu(x * 2.0)


def replacement_args(x):
    return (x,)


def replacement_func():
    return fused
'''
PLAIN = "run(described(x), described(out){options})"


@pytest.fixture(scope="module")
def subgraphs(tmp_path_factory):
    task = cases.write_task(tmp_path_factory.mktemp("tasks") / "double", TASK)
    return recording.subgraphs_of(task, "cuda")


@pytest.fixture(scope="module")
def record(recorder, subgraphs):
    def run(body, **changed):
        files = {"Double.py": PASS.replace("{body}", body), MANIFEST: '["Double"]'}
        known = {**facts.device_facts(), **changed}
        return recording.record(recorder, Candidate(files), subgraphs, "cuda", known)

    return run


@pytest.fixture(scope="module")
def planned(record):
    """The plan of a body, through JSON and the checks."""

    def plan(body=PLAIN.format(options=""), **changed):
        answer = record(body, **changed)
        assert answer.kind == "recorded" and not answer.failed, answer
        [one] = answer.recording.passes[0].plans
        return h.read(one.canonical())

    return plan


def launch_of(plan):
    [step] = [step for step in plan.steps if step.step == "launch"]
    return step


def test_a_descriptor_is_an_argument_of_the_plan(planned):
    x, out, *_ = launch_of(planned()).args
    assert x == a.DescriptorArg(value=0, shape=(48, 40), stride=(40, 1), block=(32, 16), padding="zero")
    assert out == x.model_copy(update={"value": 1})


def test_a_descriptor_may_be_of_a_view_and_pad_with_nan(planned):
    plan = planned("run(described(x[8:], padding='nan'), described(out[8:])); out[:8].zero_()")
    x, out, *_ = launch_of(plan).args
    assert (plan.values[x.value].offset, x.shape, x.padding) == (8 * COLS, (40, 40), "nan")
    assert (plan.values[out.value].offset, out.padding) == (8 * COLS, "zero")


REFUSED = {
    "described(x.t())": "whose last stride is 40; describe x.t() or x.contiguous()",
    "described(x.new_empty(8, 36))": "with a stride of 36 elements, no multiple of 16 bytes; pad its rows",
    "described(x[:, 1:])": "2 bytes behind a multiple of 16; describe the whole tensor and add the offset",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_tma_does_not_address_is_refused_with_what_to_write_instead(text, record):
    answer = record(text)
    assert answer.kind == "refused", answer
    assert REFUSED[text] in answer.message
    assert (answer.file, answer.line) == ("Double.py", 28)


def test_a_descriptor_that_changes_behind_its_check_is_refused(record):
    answer = record("one = described(x); one.strides = [36, 1]; run(one, described(out))")
    assert answer.kind == "refused" and "with a stride of 36 elements" in answer.message


FORGED = {
    "rows": ({"shape": (49, 40)}, "the descriptor goes beyond value 0"),
    "columns": ({"shape": (48, 41)}, "the descriptor goes beyond value 0"),
    "stride": ({"stride": (48, 1)}, "the descriptor goes beyond value 0"),
    "nothing": ({"shape": (0, 40)}, "the descriptor goes beyond value 0"),
    "inner stride": ({"shape": (8, 4), "stride": (40, 2)}, "a descriptor's last stride is 1"),
    "odd stride": ({"stride": (36, 1)}, "multiples of 16 bytes"),
    "dimensions": ({"shape": (48,)}, "has one to five dimensions"),
    "no dimensions": ({"shape": (), "stride": (), "block": ()}, "a descriptor for a parameter of type"),
    "block": ({"block": (64, 16)}, "a descriptor for a parameter of type 'tensordesc<fp16"),
    "rounding": ({"tf32": True}, "rounds float32"),
    "value": ({"value": 7}, "value 7 of 2"),
}


def forged(plan, **fields):
    step = launch_of(plan)
    one = step.args[0].model_copy(update=fields)
    steps = [s.model_copy(update={"args": (one, *step.args[1:])}) if s is step else s for s in plan.steps]
    return plan.model_copy(update={"steps": tuple(steps)})


def test_a_padding_that_there_is_not_is_refused(planned):
    with pytest.raises(PlanError, match="'zero' or 'nan'"):
        h.read(planned().canonical().replace(b'"padding":"zero"', b'"padding":"one"'))


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_descriptor_is_refused(name, planned):
    fields, reason = FORGED[name]
    with pytest.raises(PlanError, match=reason) as caught:
        h.read(forged(planned(), **fields).canonical())
    assert "\n" not in str(caught.value)


def test_a_descriptor_of_another_dtype_or_alignment_is_refused(planned):
    plan = planned()
    for changed in ({"dtype": "bfloat16"}, {"alignment": 8}):
        values = (plan.values[0].model_copy(update=changed), *plan.values[1:])
        with pytest.raises(PlanError, match="argument x_desc of double"):
            h.read(plan.model_copy(update={"values": values}).canonical())


def built_for(plan, arch):
    [built] = compiling.compile_plan(plan, arch).values()
    return built


@pytest.mark.parametrize("ctas", [1, 2])
def test_a_kernel_with_descriptors_takes_tensor_maps_shapes_and_strides(ctas, planned):
    plan = planned(PLAIN.format(options=f", num_ctas={ctas}"), **facts.H100)
    built = built_for(plan, "sm_90")
    assert built.types == ("CUtensorMap", *["int32_t"] * 2, *["int64_t"] * 2) * 2
    assert (built.ctas, built.threads, built.scratch) == (ctas, 128, 0)
    assert built.maps == ((6, 1, 32 // ctas, 16),) * 2
    passed = kernel_arguments.passed(
        launch_of(plan), plan.kernels[launch_of(plan).kernel].signature, built.types
    )
    assert len(passed) == len(built.types)
    assert [part.value for part in passed[1:5]] == [48, 40, 40, 1]


def test_without_tma_a_descriptor_is_a_pointer_with_shape_strides_and_padding(planned):
    body = "run(described(x, padding='nan'), described(out))"
    plan = planned(body, **{**facts.H100, "major": 8})
    built = built_for(plan, "sm_80")
    passed = kernel_arguments.passed(
        launch_of(plan), plan.kernels[launch_of(plan).kernel].signature, built.types
    )
    assert built.types[:6] == ("void*", *["int64_t"] * 4, "int8_t") and built.maps == ()
    assert len(passed) == len(built.types)
    assert [part.value for part in passed[:6]] == [0, 48, 40, 40, 1, True]


@pytest.mark.parametrize(("dtype", "number"), [("bfloat16", 9), ("float8_e5m2", 0), ("int32", 3)])
def test_a_kernel_may_take_descriptors_of_any_dtype(dtype, number, planned):
    body = f"copy[(1,)](*[described(tensor.view(torch.{dtype})) for tensor in (x, out)])"
    built = built_for(planned(body, **facts.H100), "sm_90")
    assert built.maps[0][0] == number  # the driver's


def test_a_descriptor_whose_elements_are_wider_than_the_plan_says_is_refused(planned):
    kernel = planned(**facts.H100).kernels[launch_of(planned(**facts.H100)).kernel]
    wider = kernel.signature[0].model_copy(update={"type": "tensordesc<fp32[32, 16]>"})
    lying = kernel.model_copy(update={"signature": (wider, *kernel.signature[1:])})
    with pytest.raises(KernelRefused, match=r"32x16xf16.*; its signature says .*32x16xf32"):
        compiling.build_triton(lying, "sm_90")


STUB = r"""
#include <stdint.h>
#include <string.h>
struct { int encoded, launched; uint64_t sizes[2], strides[1]; uint32_t box[2], launch[7], cluster;
         uint64_t maps[2][16]; } seen;
int encode(uint64_t* map, int kind, uint32_t rank, void* address, const uint64_t* sizes,
           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave, int swizzle,
           int promotion, int fill) {
  seen.encoded++;
  memcpy(seen.sizes, sizes, sizeof seen.sizes);
  memcpy(seen.strides, strides, sizeof seen.strides);
  memcpy(seen.box, box, sizeof seen.box);
  const uint64_t all[16] = {(uint64_t)address, ~0ull, rank, kind, steps[0] + steps[1], interleave, swizzle,
                            promotion, fill};
  memcpy(map, all, sizeof all);
  return (uint64_t)map % 64;
}
int launch_clusters(const uint32_t* config, void* function, void** parameters, void** extra) {
  seen.launched++;
  memcpy(seen.launch, config, sizeof seen.launch);
  seen.cluster = (*(uint32_t**)(config + 10))[2];
  memcpy(seen.maps[0], parameters[0], 128);
  memcpy(seen.maps[1], parameters[5], 128);
  return 0;
}
int stream_of(int32_t type, int32_t device, void** out) { *out = NULL; return 0; }
"""


class Seen(ctypes.Structure):
    _fields_ = (
        ("encoded", ctypes.c_int), ("launched", ctypes.c_int), ("sizes", ctypes.c_uint64 * 2),
        ("strides", ctypes.c_uint64 * 1), ("box", ctypes.c_uint32 * 2), ("launch", ctypes.c_uint32 * 7),
        ("cluster", ctypes.c_uint32), ("maps", ctypes.c_uint64 * 16 * 2),
    )  # fmt: skip


class OnGpu(table.Table):
    """A table for the CPU's memory that launches as if on a GPU."""

    cpu = property(lambda self: False, lambda self, _: None)


def test_a_map_is_made_anew_where_its_tensor_lies_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "stub.c").write_text(STUB)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "stub.so", "stub.c"], cwd=tmp_path, check=True)
    stub = ctypes.CDLL(str(tmp_path / "stub.so"))

    def tell(loaded):
        host = extension._Host.in_dll(loaded, "host")
        for name in ("encode", "launch_clusters"):
            setattr(host, name, ctypes.cast(getattr(stub, name), ctypes.c_void_p).value)
        exchange = (ctypes.c_void_p * 7).from_buffer_copy((ctypes.c_void_p * 7).from_address(host.torch))
        exchange[6] = ctypes.cast(stub.stream_of, ctypes.c_void_p).value
        monkeypatch.setattr(host, "torch", ctypes.addressof(exchange))
        kept.append(exchange)

    kept = []
    types = ("CUtensorMap", "int32_t", "int32_t", "int64_t", "int64_t") * 2
    monkeypatch.setattr(table, "_loaded", lambda *_: (1000, types))
    monkeypatch.setattr(extension, "tell_cuda", tell)
    monkeypatch.setattr(driver, "parameter_sizes", lambda _: [*[128, 4, 4, 8, 8] * 2, 8, 8])
    monkeypatch.setattr(driver, "version", lambda: 13000)
    signature = tuple(m.Parameter(name=n, type="tensordesc<fp16[16, 32]>") for n in ("x", "out"))
    kernel = m.TritonKernel(text="", entry="k", signature=signature, ttir="", target="cuda:90")
    one = a.DescriptorArg(value=2, shape=(3, 32), stride=(64, 1), block=(16, 32), padding="nan")
    tensor = {"dtype": "float16", "device": "cuda"}
    values = [h.given(shape=(4, 64), **tensor), h.made(shape=(4, 64), **tensor)]
    values.append(h.view(0, 64, shape=(3, 64), **tensor))
    other = one.model_copy(update={"value": 1, "padding": "zero"})
    steps = [m.Alloc(value=1), h.launch(kernel, one, other, grid=(3, 2, 1))]
    plan = h.plan([h.value(0)], values, steps, h.value(1), [kernel])
    built = Built(tmp_path, types, threads=128, shared=64, ctas=2, maps=((6, 2, 16, 32),) * 2)
    made = OnGpu(
        plan,
        {kernel.digest(): built},
        Constants(plan, torch.device("cpu")),
        torch.device("cpu"),
        table.Mode(),
    )
    call, seen = made.function(), Seen.in_dll(stub, "seen")
    tensors = [torch.zeros(4, 64, dtype=torch.float16) for _ in range(3)]
    outputs, encoded = [], []
    for x in [*tensors, tensors[2]]:
        outputs.append(call(x))
        encoded.append(seen.encoded)
        assert seen.maps[0][0] == x.data_ptr() + 128 and seen.maps[1][0] == outputs[-1].data_ptr()
    assert encoded == [2, 4, 6, 7]  # the last time the input lies where it lay
    assert [*seen.maps[0]][1:9] == [(1 << 64) - 1 - (1 << 21), 2, 6, 2, 0, 2, 2, 1]
    assert (seen.maps[1][8], [*seen.sizes], [*seen.strides], [*seen.box]) == (0, [32, 3], [128], [32, 16])
    assert ([*seen.launch], seen.cluster, seen.launched) == ([6, 2, 1, 128, 1, 1, 64], 2, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("options", ["", ", num_ctas=2"])
def test_on_a_gpu_a_descriptor_follows_its_tensor(options, planned):
    plan = planned(PLAIN.format(options=options))
    replay = Replay(plan, compiling.compile_plan(plan, driver.architecture()), "cuda")
    inputs = [torch.randn(ROWS, COLS, dtype=torch.float16, device="cuda") for _ in range(3)]
    outputs = [replay.call(x) for x in [*inputs, *inputs]]
    for x, out in zip([*inputs, *inputs], outputs, strict=True):
        assert torch.equal(out, torch.relu(x * 2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = replay.call(inputs[0])
    replay.call(inputs[1])  # the map of the graph's launch is its own
    for _ in range(3):
        inputs[0].copy_(torch.randn(ROWS, COLS, device="cuda"))
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, torch.relu(inputs[0] * 2))


@pytest.mark.gpu
def test_on_a_gpu_views_are_described_and_beyond_the_shape_lies_the_padding(planned):
    body = """wide = torch.empty((64, 48), dtype=x.dtype, device=x.device).fill_(7)
    part = TensorDescriptor(x[8:], [24, 24], [40, 1], BLOCK, {padding})
    run(part, TensorDescriptor(wide, [64, 48], [48, 1], BLOCK))
    out = wide[:48, :40]"""
    x = torch.randn(ROWS, COLS, dtype=torch.float16, device="cuda")
    for padding, beside in (("'zero'", 0.0), ("'nan'", float("nan"))):
        plan = planned(body.replace("{padding}", padding))
        out = Replay(plan, compiling.compile_plan(plan, driver.architecture()), "cuda").call(x)
        want = torch.full_like(x, beside)
        want[:24, :24] = torch.relu(x[8:32, :24] * 2)
        assert torch.equal(out.nan_to_num(5.0), want.nan_to_num(5.0))


@pytest.mark.gpu
@pytest.mark.parametrize("dispatch", ["direct", "graph"])
@pytest.mark.parametrize("name", ["persistent_product_by_descriptors", "clusters_of_two_blocks"])
def test_on_a_gpu_such_a_pass_is_accepted(name, dispatch, tmp_path):
    case = cases.cases_of("honest")[name]
    task = cases.write_task(tmp_path / "task", case.task)
    with Referee(EvaluatorConfig(device="cuda", dispatch=dispatch, budget_s=0.2)) as referee:
        result = referee.evaluate(task, case.candidate)
    assert result.status == "ok", (result.error, result.violations)
    assert all(graph.matches for graph in result.graphs)
