"""Recording: what host code decides comes out as a plan, or it is refused, at its line, with what to do."""

from __future__ import annotations

import json
from dataclasses import replace

import cases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tasks_capture import write

from passagent.data.bench.measure import first_pass
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.evaluator.target import uses_triton
from passagent.plan import record as recording
from passagent.plan.facts import H100
from passagent.plan.messages import Recorded, Request
from passagent.plan.model import Copy, Fill, Launch, flat
from passagent.tasks import load_task

HERE = "  # <- here"
PASS = '''import torch
from passagent.kernels import cpp_kernel

SOURCE = """
#include <cstdint>
void add_relu(const float* x, const float* y, float* out, int64_t n) {}
"""
kernel = cpp_kernel(SOURCE.replace("float", "bfloat16"), "add_relu")
STATE = {}


def launch(x, y, out, n):
    kernel(x, y, out, n)
    return out


@BODY@


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
'''


def candidate(body: str) -> Candidate:
    return Candidate({"p.py": PASS.replace("@BODY@", body), MANIFEST: '["p"]'})


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """What is recorded of each task of tests/cases.py, by name and device."""
    known: dict = {}

    def of(task: str, device: str) -> list:
        if (task, device) not in known:
            path = tmp_path_factory.mktemp("task") / task
            known[task, device] = recording.subgraphs_of(cases.write_task(path, task), device)
        return known[task, device]

    return of


@pytest.fixture(scope="module")
def record(recorder, graphs):
    """`record(candidate)`: the answer for the task `add_relu`."""

    def run(one: Candidate, task="add_relu", device="cpu"):
        return recording.record(recorder, one, graphs(task, device), device, dict(H100), "none")

    return run


IN_CUDA = [case for case in cases.cases_of("honest").values() if case.gpu and not uses_triton(case.candidate)]
"""The other honest passes are recorded, and more, in test_adversarial.py."""


@pytest.mark.long
@pytest.mark.parametrize("case", IN_CUDA, ids=lambda case: case.name)
def test_an_honest_pass_is_recorded(case, record):
    answer = record(case.candidate, case.task, "cuda")
    assert isinstance(answer, Recorded) and not answer.failed, answer
    assert all(subgraph.calls for subgraph in answer.recording.subgraphs)
    assert Recorded.model_validate_json(answer.canonical()) == answer


def test_sizes_that_depend_on_data_belong_to_eager(recorder, tmp_path):
    write(
        tmp_path / "kept",
        "i = torch.nonzero(x > 0)\nz = x[x > 0] * 2\ny = torch.relu(x)\nreturn (i, z, y)",
        "x float32 [8,16]",
    )
    task = load_task(tmp_path / "kept")
    answer = recording.record(
        recorder, first_pass(task, "cpu"), recording.subgraphs_of(task, "cpu"), "cpu", dict(H100)
    )
    assert isinstance(answer, Recorded) and not answer.failed, answer
    assert [len(subgraph.calls) for subgraph in answer.recording.subgraphs] == [1]


def honest(name: str) -> cases.Case:
    return cases.cases_of("honest")[name]


def test_a_triton_pass_is_recorded_where_there_is_no_gpu(record):
    answer = record(honest("autotuned_configurations").candidate, device="cuda")
    assert isinstance(answer, Recorded), answer.message
    [first, _] = answer.recording.passes[0].plans
    [choice] = [step for step in first.steps if step.step == "choice"]
    assert len(choice.of) == 6 and choice.of[0].name.startswith("BLOCK: 64, num_warps: 2")
    launch = next(flat(choice.of[0].steps))
    kernel = first.kernels[launch.kernel]
    assert launch.grid == (4, 1, 1) and [p.type for p in kernel.signature][:4] == ["*fp32"] * 3 + ["i32"]
    assert "tt.func public @add_relu" in kernel.ttir and kernel.target == "cuda:90"
    assert "@triton.jit" in kernel.text and first.facts["device.capability"] == "90"


def test_every_triton_kernel_that_does_not_compile_is_listed_without_a_gpu(record):
    body = """
import triton
import triton.language as tl

@triton.jit
def first(x):
    tl.no_such_thing(x)

@triton.autotune(configs=[triton.Config({}, num_warps=4)], key=[])
@triton.jit
def second(x):
    tl.store(x, missing)

def fused(x, y):
    out = torch.empty_like(x)
    first[(1,)](out)
    second[(1,)](out)
    return out
"""
    answer = record(candidate(body), device="cuda")
    assert [failure.why.status for failure in answer.failed] == ["compile_error"] * 2
    first, second = answer.failed[0].why.message.splitlines()
    assert "no_such_thing" in first and "missing" in second and "(p.py:" in first


BODY = """def fused(x, y):
    out = torch.empty_like(x)
    return launch(x, y, out, x.numel())
"""


def test_what_a_plan_holds(record):
    answer = record(candidate(BODY))
    assert isinstance(answer, Recorded), answer.message
    [one] = answer.recording.passes
    assert [plan.values[0].shape for plan in one.plans] == [(4, 64), (2, 3, 25)]
    assert [[call.plan for call in subgraph.calls] for subgraph in answer.recording.subgraphs] == [[0], [1]]
    alloc, launch = one.plans[0].steps
    assert (alloc.step, alloc.value) == ("alloc", 2)
    assert [arg.value for arg in launch.args] == [0, 1, 2, 256]
    kernel = one.plans[0].kernels[launch.kernel]
    assert [p.type for p in kernel.signature] == ["float*"] * 3 + ["int64_t"] and kernel.entry == "add_relu"
    assert one.plans[0].result.value == 2


def test_fills_copies_views_constants_and_addresses_are_data(record):
    body = """
TABLE = torch.tensor([1.0, 2.0])
LATER = []

def fused(x, y):
    zero = torch.zeros(8)
    same = y.transpose(0, 1).contiguous()
    if not LATER:
        LATER.append(torch.tensor([3, 4]))
    row = x[1:]
    kernel(zero, TABLE, LATER[0], row.data_ptr())
    return launch(same, row, torch.full_like(x, 2.5), 1)
"""
    answer = record(candidate(body))
    assert isinstance(answer, Recorded), f"{answer.line}: {answer.message}"
    plan = answer.recording.passes[0].plans[0]
    fills = [step for step in plan.steps if isinstance(step, Fill)]
    assert [(f.number.kind, f.number.value) for f in fills] == [("int", 0), ("float", (2.5).hex())]
    [copy] = [step for step in plan.steps if isinstance(step, Copy)]
    source = plan.values[copy.source]
    assert (source.kind, source.of, source.shape, source.stride) == ("view", 1, (64, 4), (1, 64))
    first, second = [step for step in plan.steps if isinstance(step, Launch)]
    _, table, later, address = first.args
    assert plan.constant(plan.values[table.value].data).hex() == "0000803f00000040"
    assert plan.constant(plan.values[later.value].data) == bytes([3, *[0] * 7, 4, *[0] * 7])
    assert (address.kind, address.value, address.offset) == ("address", 0, 64 * 4)
    assert plan.values[second.args[1].value].offset == 64


REFUSED = {
    "item": ("n = int(x.sum().item())", "aten.sum computes in host code; compute it in a kernel"),
    "a value": ("n = int(x[0, 0].item())" , "reads a value of a tensor"),
    "a condition": ("if x.sum() > 0: pass", "aten.sum computes in host code"),
    "a tensor as condition": ("if x.reshape(-1)[0]: pass", "reads a value of a tensor"),
    "an operator": ("return torch.relu(x + y)", "aten.add computes in host code"),
    "a cast": ("return x.double().float()", "a cast from torch."),
    "an operator that writes": ("torch.zeros(4, 64, out=out)", "aten.zeros (into a tensor) computes"),
    "an operator in place": ("out.mul_(2)", "aten.mul_ computes in host code"),
    "a caught refusal": (
        "try:\n        x.sum()" + HERE + "\n    except BaseException: pass",
        "aten.sum computes in host code",
    ),
    "a library": ("x.numpy()", ".numpy()"),
    "an object": ("kernel(x, y, out, object())", "argument 3 is a object"),
    "a large constant": ("launch(torch.TABLE, y, out, 1)", "has no attribute 'TABLE'"),
    "an error": ("raise ValueError('of its own')", "ValueError: of its own"),
}  # fmt: skip


def refusal(answer):
    """Why there are no plans: of the candidate, or of its first subgraph."""
    return answer.failed[0].why if isinstance(answer, Recorded) else answer


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_plan_can_hold_is_refused_at_its_line(name, record):
    text, reason = REFUSED[name]
    text = text if HERE in text else text + HERE
    body = f"def fused(x, y):\n    out = torch.empty_like(x)\n    {text}\n    return launch(x, y, out, 1)"
    one = candidate(body)
    answer = refusal(record(one))
    assert reason in answer.message
    lines = one.files["p.py"].split("\n")
    assert (answer.file, lines[answer.line - 1].endswith(HERE)) == ("p.py", True), answer


def convolved(text: str) -> Candidate:
    """An honest candidate for `conv_relu`, but for what it has the library compute."""
    files = honest("convolution_by_the_library").candidate.files
    call = "y = torch.conv2d(x, weight, None, (1, 1), (1, 1))"
    return Candidate({name: source.replace(call, f"y = {text}{HERE}") for name, source in files.items()})


def test_the_library_computes_a_convolution(record):
    answer = record(convolved("torch.conv2d(x, weight, None, 1, 1)"), "conv_relu")
    assert isinstance(answer, Recorded), answer.message
    [plan] = answer.recording.passes[0].plans
    call = plan.steps[0]
    x, weight, bias, stride, *_ = call.arguments
    assert (call.operator, call.values) == ("aten::convolution.default", (3,))
    assert (x.value, weight.value, bias.kind) == (0, 1, "none")
    assert [item.value for item in stride.items] == [1, 1]
    assert (plan.values[3].kind, plan.values[3].shape) == ("made", (2, 4, 8, 8))
    assert [leaf.value for leaf in plan.inputs] == [0, 1, 2]


COMPUTES = {
    "abs(x)": "abs",
    "x @ y.transpose(-1, -2)": "mm",
    "x[[0, 1]]": "index",
    "out[1:] = x[1:]": "copy_ (into a part of a tensor, or with a cast)",
    "x.double()": "_to_copy (a cast from torch.float32 to torch.float64)",
    "torch.tensor(x, dtype=torch.int64)": "_to_copy (a cast from torch.float32 to torch.int64)",
    "y in x": "eq",
    "sorted(x)": "lt",
    "list(map(torch.neg, x))": "neg",
    "functools.reduce(lambda a, b: a + b, [x, y])": "add",
    "operator.add(x, y)": "add",
    "functools.partial(torch.sub, x)(y)": "sub",
    "getattr(x, 'ad' + 'd')(y)": "add",
    "eval('x + y')": "add",
    "torch._C._nn.gelu(x)": "gelu",
    "torch.ops.aten.relu.default(x)": "relu",
    "torch.compiler.disable(torch.relu)(x)": "relu",
}
"""Ways from Python to an operator that computes, and the operator."""


@pytest.mark.parametrize("text", COMPUTES)
def test_an_operator_is_seen_however_it_is_reached(text, record):
    out = "out = torch.empty_like(x)"
    one = candidate(
        f"import functools, operator\ndef fused(x, y):\n    {out}\n    {text}{HERE}\n    return out"
    )
    answer = refusal(record(one))
    assert answer.message == f"aten.{COMPUTES[text]} computes in host code; compute it in a kernel"
    assert one.files["p.py"].split("\n")[answer.line - 1].endswith(HERE)


@pytest.mark.parametrize(
    "text",
    [
        "int(x[0, 0])",
        "any(x.reshape(-1))",
        "range(3)[torch.zeros(1, dtype=torch.int64)]",
        "x.tolist()",
        "torch.equal(x, y)",
    ],
)
def test_a_value_is_not_read_whatever_asks(text, record):
    answer = refusal(record(candidate(f"def fused(x, y):\n    {text}\n    return launch(x, y, x, 1)")))
    assert "reads a value of a tensor; a plan follows from shapes" in answer.message


@pytest.mark.parametrize("text", ["Stream()", "Event()", "CUDAGraph()", "graph(torch.cuda.CUDAGraph())"])
def test_a_stream_an_event_and_a_graph_of_its_own_are_refused(text, record):
    one = candidate(f"def fused(x, y):\n    torch.cuda.{text}{HERE}\n    return launch(x, y, x, 1)")
    answer = refusal(record(one, device="cuda"))
    assert "a CUDA stream, event or graph of its own; launch kernels one after the other" in answer.message
    assert one.files["p.py"].split("\n")[answer.line - 1].endswith(HERE)


STATEFUL = {
    "counts calls": (
        "def fused(x, y):\n    STATE['n'] = n = STATE.get('n', 0) + 1\n    out = torch.empty_like(x)\n"
        "    return launch(x, y, out, n)",
        "records another plan the second time for the same arguments; keep nothing that counts calls",
    ),
    "a clock": (
        "import time\ndef fused(x, y):\n    return launch(x, y, torch.empty_like(x), time.perf_counter_ns())",
        "records another plan the second time",
    ),
    "chance": (
        "import random\ndef fused(x, y):\n    return launch(x, y, x, random.getrandbits(60))",
        "records another plan the second time",
    ),
    "keeps a tensor": (
        "def fused(x, y):\n    out = STATE.setdefault(x.shape, torch.empty_like(x))\n"
        "    return launch(x, y, out, 1)",
        "uses a tensor that was made before this call; allocate in every call",
    ),
    "keeps results": (
        "def fused(x, y):\n    if x.shape not in STATE:\n"
        "        STATE[x.shape] = torch.tensor(launch(x, y, torch.empty_like(x), 1))\n"
        "    return launch(STATE[x.shape], y, torch.empty_like(x), 1)",
        "uses a tensor that was made before this call; allocate in every call",
    ),
    "keeps an input": (
        "def fused(x, y):\n    first = STATE.setdefault('x', x)\n"
        "    return launch(first, y, torch.empty_like(x), 1)",
        "uses a tensor that was made before this call",
    ),
    "keeps an address": (
        "def fused(x, y):\n    at = STATE.setdefault('at', x.data_ptr())\n"
        "    return launch(x, y, torch.empty_like(x), at)",
        "uses an address that was read before this call",
    ),
    "launches early": (
        "kernel(torch.zeros(2), 1)\ndef fused(x, y):\n    return x",
        "launches a kernel outside of a call of the replacement",
    ),
    "a large constant": (
        "TABLE = torch.zeros(1 << 19)\ndef fused(x, y):\n    return launch(TABLE, y, torch.empty_like(x), 1)",
        "uses a constant tensor of 2097152 bytes; at most 1 MiB",
    ),
    "returns a constant": (
        "TABLE = torch.zeros(4, 64)\ndef fused(x, y):\n    return TABLE",
        "returns a constant tensor",
    ),
    "does not parse": ("def fused(x, y:\n    pass", "SyntaxError"),
    "exits": (
        "import os\ndef fused(x, y):\n    os._exit(3)",
        "ended without an answer: it ended by itself with code 3",
    ),
    "exits politely": ("def fused(x, y):\n    raise SystemExit(0)", "SystemExit: 0"),
    "crashes": (
        "import os\ndef fused(x, y):\n    os.abort()",
        "ended without an answer: it ended by SIGABRT",
    ),
    "a huge answer": (
        "LARGE = [cpp_kernel(SOURCE + '//' + str(n) * 900_000, 'add_relu') for n in range(3)]\n"
        "def fused(x, y):\n    out = torch.empty_like(x)\n    for one in LARGE:\n        one(x, y, out, 1)\n"
        "    return out",
        "its plans are larger than 4 MiB",
    ),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_what_is_no_single_plan_is_refused(name, record):
    body, reason = STATEFUL[name]
    answer = record(candidate(body))
    assert not isinstance(answer, Recorded)
    assert reason in answer.message


def test_host_code_without_end_is_ended(record, monkeypatch):
    monkeypatch.setattr(recording, "LIMITS", replace(recording.LIMITS, cpu_s=1))
    answer = record(candidate("def fused(x, y):\n    while True:\n        pass"))
    assert not isinstance(answer, Recorded)
    assert "ended without an answer: it used its 1 s of processor time" in answer.message


def test_host_code_that_takes_all_memory_is_refused(record):
    body = "def fused(x, y):\n    STATE['room'] = bytearray(1 << 40)\n    return launch(x, y, x, 1)"
    assert "MemoryError" in refusal(record(candidate(body))).message


def test_the_recording_process_outlives_what_it_records(record):
    record(candidate(STATEFUL["crashes"][0]))
    assert isinstance(record(candidate(BODY)), Recorded)


def test_host_code_reaches_neither_files_nor_network_nor_programs(record, tmp_path):
    body = f"""
import os, socket, subprocess

def tried(action):
    try:
        action()
    except OSError:
        return 0
    return 1

def fused(x, y):
    out = torch.empty_like(x)
    done = tried(lambda: open({str(tmp_path / "made")!r}, "w")) + tried(lambda: os.listdir({str(tmp_path)!r}))
    done += tried(lambda: socket.socket()) + tried(lambda: subprocess.run(["true"])) + tried(os.fork)
    kept = [name for name in os.environ if "KEY" in name or "TOKEN" in name]
    return launch(x, y, out, done + len(kept))
"""
    answer = record(candidate(body))
    assert isinstance(answer, Recorded), answer.message
    assert answer.recording.passes[0].plans[0].steps[1].args[3].value == 0
    assert not (tmp_path / "made").exists()


def request(graphs) -> Request:
    one = candidate(BODY)
    return Request(
        library="none",
        files=one.files,
        device="cpu",
        facts={},
        subgraphs=graphs("add_relu", "cpu"),
    )


def set_in(data, path, value):
    *path, last = path
    for step in path:
        data = data[step]
    data[last] = value


CODE = "open('@/run','w')"
RECORDING = ("answer", "recording")
PLAN = (*RECORDING, "passes", 0, "plans", 0)
PATTERN = (*RECORDING, "passes", 0, "pattern")
CALL = (*RECORDING, "subgraphs", 0, "calls", 0)
FORGED = {
    "a node's name is code": ((*PATTERN, 0, "name"), CODE, "match pattern"),
    "a node's name is a keyword": ((*PATTERN, 0, "name"), "lambda", "of that name cannot be"),
    "a node's target is code": ((*PATTERN, 0, "target"), CODE, "match pattern"),
    "a parameter that is no name": ((*PATTERN, 0, "target"), "os.system", "holds placeholder os.system"),
    "a function of another library": ((*PATTERN, 2, "target"), "os:system", "is no operator of"),
    "a function that is no operator": ((*PATTERN, 2, "target"), "torch:load.__code__", "is no operator"),
    "an argument that is code": ((*PATTERN, 2, "args"), {"eval": CODE}, "holds a eval"),
    "a dtype that is none": ((*PATTERN, 2, "args"), {"tuple": [{"dtype": "load"}]}, "holds a dtype: load"),
    "a node that is not there": ((*PATTERN, 2, "args"), {"tuple": [{"node": "z"}]}, "malformed: KeyError"),
    "a terminal's commands": ((*RECORDING, "passes", 0, "name"), "\x1b[2J", "match pattern"),
    "an unknown field": ((*RECORDING, "run"), CODE, "Extra inputs are not permitted"),
    "another version": ((*RECORDING, "version"), 2, "Input should be 1"),
    "another subgraph": ((*RECORDING, "subgraphs", 0, "name"), "other", "it is of other subgraphs"),
    "another device": ((*RECORDING, "device"), "cuda", "it is for cuda"),
    "another file": ((*RECORDING, "passes", 0, "file"), "/etc/passwd", "the candidate does not have"),
    "a float beyond 64 bits": (
        (*PLAN, "inputs", 0), {"kind": "float", "value": "0x1.0p+9999"}, "match pattern",
    ),
    "another plan": ((*CALL, "plan"), 7, "does not hold"),
    "a place that is not there": ((*CALL, "nodes", 0), "tmp", "of p, is not where it says: it covers tmp,"),
    "a place of another structure": ((*CALL, "nodes"), ["tmp_1", "tmp_0"], "is not `add = operator."),
    "a part of a place": ((*CALL, "nodes"), ["tmp_0"], "it covers 1 nodes, its pattern 2"),
    "a pattern that returns a number": ((*PATTERN, 4, "args"), {"tuple": [3]}, "does not return nodes"),
    "a parameter that no operator uses": ((*PATTERN, 2, "args"), {"tuple": [{"node": "x"}]}, "uses y in no"),
    "another parameter": ((*CALL, "arguments", 0, "name"), "z", "which its pattern does not have"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_answer_is_refused_and_not_run(name, record, graphs, tmp_path):
    path, value, reason = FORGED[name]
    text = json.dumps({"answer": json.loads(record(candidate(BODY)).canonical())})
    data = json.loads(text)
    assert isinstance(recording.read_answer(text.encode(), request(graphs)), Recorded)
    value = json.loads(json.dumps(value).replace("@", str(tmp_path)))
    set_in(data, path, value)
    answer = recording.read_answer(json.dumps(data).encode(), request(graphs))
    assert not isinstance(answer, Recorded) and reason in answer.message, answer
    assert not list(tmp_path.iterdir())


def test_two_calls_in_one_place_are_refused(record, graphs):
    data = json.loads(record(candidate(BODY)).canonical())
    data["recording"]["subgraphs"][0]["calls"] *= 2
    answer = recording.read_answer(json.dumps({"answer": data}).encode(), request(graphs))
    assert (
        "call 1, of p, is not where it says: it covers tmp_0, which the graph does not have or an earlier"
        in (answer.message)
    )


@given(raw=st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
).map(lambda data: json.dumps({"answer": data}).encode()))  # fmt: skip
def test_any_other_answer_is_refused(raw):
    asked = Request(files={}, device="cpu", facts={}, library="all", subgraphs=[])
    assert not isinstance(recording.read_answer(raw, asked), Recorded)


def test_a_candidate_that_answers_in_the_recorders_place_gains_nothing(record):
    forged = {"kind": "refused", "message": "nothing", "file": "/etc/passwd", "line": 1}
    body = f"""
import os

def fused(x, y):
    for fd in range(3, 64):
        try:
            os.write(fd, {json.dumps({"answer": forged}).encode()!r})
        except OSError:
            pass
    os._exit(0)
"""
    answer = record(candidate(body))
    assert not isinstance(answer, Recorded)
    assert (answer.file, answer.line) == ("", 0) and answer.message == "nothing"
