"""Replays: what a plan says happens, in memory that holds anything, and nothing else does."""

import faulthandler
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import cases
import handmade as h
import plans
import pytest
import torch

from passagent.plan import arguments as a
from passagent.plan import model as m
from passagent.plan import values as v
from passagent.plan.check import PlanError
from passagent.plan.compile import compile_plan
from passagent.plan.replay import Replay, choices_of
from passagent.plan.table import Mode

HERE = Path(__file__).parent
OTHERWISE = {
    "chain_in_place_by_two_kernels": "differs: inputs: values",  # it leaves an input otherwise than eager
    "count_in_place_read_only": "differs: inputs: values",
    "last_of_a_chain_in_place_elsewhere": "differs: inputs: values",
}
"""Honest cases that do not equal eager in every tensor, and why; besides those in CUDA C++."""


def replayed(plan, **more):
    return plans.replay_of(plan, **more)


def draw(*shape):
    return torch.randn(shape)


def test_a_plan_of_everything():
    call = replayed(h.everything())
    for _ in range(3):
        x, y = draw(4, 8), draw(4, 8)
        total, part, mixed = call(x, y, 3)
        assert torch.equal(total, x + 2.5 + y)
        assert part.data_ptr() == x[1].data_ptr()
        assert torch.equal(part, x[1:3])
        assert torch.equal(mixed, 0.5 * x + 2 * y)


def test_the_library_computes_first():
    call = replayed(h.convolution())
    for _ in range(3):
        x, weight, more = draw(2, 3, 8, 8), draw(4, 3, 3, 3), draw(2, 4, 6, 6)
        assert torch.equal(call(x, weight, more), torch.conv2d(x, weight) + more)
    for others in ((x[:1], weight, more), (x, weight[:, :2], more), (x, weight, more[:1]), (x, weight)):
        with pytest.raises(TypeError, match=r"argument . is of shape|the plan is for"):
            call(*others)


def test_what_the_library_computes_lies_where_memory_is_told_to():
    """Between guard zones, in an audited call."""
    places = []

    def empty(size, stride, dtype):
        places.append(torch.empty_strided(size, stride, dtype=dtype))
        return places[-1]

    x, weight, more = draw(2, 3, 8, 8), draw(4, 3, 3, 3), draw(2, 4, 6, 6)
    plan = h.convolution()
    out = Replay(plan, compile_plan(plan), mode=Mode(fresh=True, empty=empty)).call(x, weight, more)
    assert torch.equal(out, torch.conv2d(x, weight) + more)
    assert any(torch.equal(place, torch.conv2d(x, weight)) for place in places)


def test_outputs_of_two_calls_never_share_memory():
    call = replayed(h.everything())
    x, y = draw(4, 8), draw(4, 8)
    kept = [call(x, y, 3) for _ in range(20)]
    places = [tensor.data_ptr() for total, _, mixed in kept for tensor in (total, mixed)]
    assert len(set(places)) == 40
    for total, _, mixed in kept:
        assert torch.equal(total, x + 2.5 + y)
        assert torch.equal(mixed, 0.5 * x + 2 * y)


BAD = {
    "dtype": (lambda x, y: (x.double(), y, 3), "argument 0 is of torch.float64, not torch.float32"),
    "shape": (lambda x, y: (x, y[:3], 3), "argument 1 is of shape \\(3, 8\\), not \\(4, 8\\)"),
    "rank": (lambda x, y: (x, y.view(32), 3), "argument 1 is of shape"),
    "strides": (lambda x, y: (x, y.view(8, 4).t(), 3), "argument 1 has the strides \\(1, 4\\)"),
    "alignment": (lambda x, y: (torch.empty(40)[1:33].view(4, 8), y, 3), "multiple of 16 bytes"),
    "constant": (lambda x, y: (x, y, 4), "argument 2 is 4, not 3"),
    "constant of another type": (lambda x, y: (x, y, 3.0), "argument 2 is 3.0, not 3"),
    "no tensor": (lambda x, y: (x, None, 3), "argument 1 is a NoneType, not a tensor"),
    "device": (lambda x, y: (x, y.to("meta"), 3), "argument 1 is on meta"),
    "too few": (lambda x, y: (x, y), "3 arguments, not 2"),
    "too many": (lambda x, y: (x, y, 3, 3), "3 arguments, not 4"),
}


@pytest.mark.parametrize("name", BAD)
def test_other_inputs_are_refused(name):
    change, reason = BAD[name]
    call = replayed(h.everything())
    with pytest.raises(TypeError, match=reason):
        call(*change(draw(4, 8), draw(4, 8)))
    with pytest.raises(TypeError, match="by position"):
        call.replay.call(draw(4, 8), draw(4, 8), n=3)


def test_one_tensor_given_twice_must_be_one_again():
    plan = h.plan([h.value(0), h.value(0)], [h.given()], [], h.value(0))
    call = replayed(plan)
    x = draw(4, 8)
    assert call(x, x) is x
    with pytest.raises(TypeError, match="one tensor"):
        call(x, x.clone())


def test_constants_are_compared_by_type_and_bits():
    constants = [
        h.real(float("nan")),
        h.real(-0.0),
        a.NoneArg(),
        a.StrArg(value="gelu"),
        a.BoolArg(value=True),
    ]
    constants += [a.TorchArg(type="dtype", name="bfloat16"), a.ComplexArg(real="0x1.0p+0", imag="inf")]
    plan = h.plan(constants, [], [], a.TupleArg(items=tuple(constants)))
    call = replayed(plan)
    given = (float("nan"), -0.0, None, "gelu", True, torch.bfloat16, complex(1, float("inf")))
    assert str(call(*given)) == str(given)
    for position, other in enumerate((1.0, 0.0, 0, "relu", 1, torch.float16, 1j)):
        with pytest.raises(TypeError, match=f"argument {position} is"):
            call(*given[:position], other, *given[position + 1 :])


def test_tuples_and_names_are_as_recorded():
    inputs = [a.TupleArg(items=(h.value(0), a.TupleArg(items=(h.number(1),)))), h.value(1)]
    result = a.TupleArg(items=(h.value(1), a.TupleArg(items=(h.value(0), h.number(7)), fields=("low", "at"))))
    call = replayed(h.plan(inputs, [h.given(), h.given()], [], result))
    x, y = draw(4, 8), draw(4, 8)
    first, second = call((x, [1]), y)
    assert first is y
    assert second.low is x
    assert second.at == 7
    assert replayed(h.plan([h.value(0)], [h.given()], [], a.NoneArg()))(x) is None
    assert replayed(h.plan([h.value(0)], [h.given()], [], a.TupleArg(items=())))(x) == ()
    assert replayed(h.plan([h.value(0)], [h.given()], [], a.TupleArg(items=(h.value(0),))))(x) == (x,)


FILLS = [
    ("float32", h.real(1.5)), ("float64", h.real(-2)), ("int64", h.number(-3)), ("uint8", h.number(0)),
    ("bfloat16", h.real(3.14159)), ("float16", h.real(0.1)), ("int8", h.number(-7)),
    ("int16", h.number(258)), ("bool", a.BoolArg(value=True)), ("complex64", h.real(2)),
    ("complex128", a.ComplexArg(real="0x1.0p+0", imag="inf")),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "number"), FILLS)
@pytest.mark.parametrize("stride", [None, (1, 3), (7, 2)])
def test_fills_and_copies(dtype, number, stride):
    tensor = {"shape": (3, 3), "dtype": dtype}
    values = [
        h.made(**tensor, stride=stride),
        h.made(**tensor),
        h.given(**tensor),
        h.made(**tensor, stride=stride),
    ]
    steps = [m.Alloc(value=0), m.Fill(value=0, number=number), m.Alloc(value=1), m.Copy(value=1, source=0)]
    steps += [m.Alloc(value=3), m.Copy(value=3, source=2)]
    plan = h.plan([h.value(2)], values, steps, a.TupleArg(items=(h.value(0), h.value(1), h.value(3))))
    x = torch.randn(3, 3).to(getattr(torch, dtype))
    filled, copied, taken = replayed(plan)(x)
    value = number.value if number.kind != "complex" else complex(1, float("inf"))
    value = float.fromhex(value) if number.kind == "float" else value
    want = torch.full((3, 3), value, dtype=getattr(torch, dtype))
    assert torch.equal(filled, want)
    assert torch.equal(copied, want)
    assert torch.equal(taken, x)
    assert filled.stride() == values[0].stride
    assert copied.is_contiguous()


def test_views_of_another_dtype_are_returned():
    values = [
        h.given(),
        h.view(0, 4, shape=(4,), stride=(2,), dtype="int32"),
        h.made(),
        h.view(2, 8, shape=(8,)),
    ]
    steps = [m.Alloc(value=2), m.Fill(value=2, number=h.real(4)), m.Copy(value=2, source=0)]
    call = replayed(h.plan([h.value(0)], values, steps, a.TupleArg(items=(h.value(1), h.value(3)))))
    x = draw(4, 8)
    bits, row = call(x)
    assert torch.equal(bits, x.view(-1).view(torch.int32)[4:12:2])
    assert torch.equal(row, x[1])
    row.zero_()
    assert x[1].any()


def test_a_choice_takes_an_index():
    plan, x = h.tuned(), draw(4, 8)
    assert choices_of(plan) == [2]
    assert torch.equal(replayed(plan)(x), x + 1)
    assert torch.equal(replayed(plan, choices=[1])(x), x + 2)
    with pytest.raises(PlanError, match="alternative 2 of a choice among 2"):
        replayed(plan, choices=[2])


def test_an_address_is_that_of_this_call():
    text = "void at(float* out, int64_t address) { out[0] = ((const float*)address)[0]; }"
    kernel = h.cpp(text, "at", "float*", "int64_t")
    values = [h.given(), h.made(shape=(1,)), h.view(0, 8, shape=(8,))]
    steps = [m.Alloc(value=1), h.launch(kernel, h.value(1), a.AddressArg(value=2, offset=4))]
    call = replayed(h.plan([h.value(0)], values, steps, h.value(1), [kernel]))
    for _ in range(3):
        x = draw(4, 8)
        assert call(x).item() == x[1, 1].item()


def test_inputs_may_be_written():
    steps = [h.launch(h.ADDING, h.value(0), h.value(1), h.value(0), h.number(32))]
    call = replayed(h.plan([h.value(0), h.value(1)], [h.given(), h.given()], steps, h.value(0), [h.ADDING]))
    x, y = draw(4, 8), draw(4, 8)
    want = x + y
    assert call(x, y) is x
    assert torch.equal(x, want)


def test_scratch_memory_and_outputs_hold_anything_before():
    nothing = h.cpp("void nothing(float* x) {}", "nothing", "float*")
    copied = m.Copy(value=1, source=0)
    steps = [m.Alloc(value=0), m.Alloc(value=1), m.Alloc(value=2), h.launch(nothing, h.value(2)), copied]
    result = a.TupleArg(items=(h.value(1), h.value(2)))
    plan = h.plan([], [h.made(), h.made(), h.made()], steps, result, [nothing])
    scratch, output = replayed(plan)()
    assert scratch.isnan().all()
    assert output.isnan().all()


def test_a_constant_is_read_only():
    kernel = h.cpp("void put(float* x) { x[0] = 5.0f; }", "put", "float*")
    raw = bytes(8)
    values = [h.made(v.ConstantValue, (2,), data=hashlib.sha256(raw).hexdigest())]
    plan = h.plan([], values, [h.launch(kernel, h.value(0))], a.NoneArg(), [kernel], [raw])
    replay = replayed(plan).replay
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        replay.call()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    assert replay.is_intact()


def test_a_changed_constant_is_seen():
    replay = replayed(h.everything()).replay
    assert replay.is_intact()
    replay._constants.tensors[6] = torch.tensor([0.5, 3.0])
    assert not replay.is_intact()


def test_a_replay_does_not_run_within_itself():
    values = [h.made(shape=(4, 4)), h.made(shape=(4, 4), stride=(1, 4))]
    steps = [m.Alloc(value=0), m.Fill(value=0, number=h.real(1)), m.Alloc(value=1), m.Copy(value=1, source=0)]
    plan, seen = h.plan([], values, steps, h.value(1)), []

    def empty(*made):
        if not seen:
            seen.append(True)
            with pytest.raises(RuntimeError, match="runs once at a time"):
                replay.call()
        return torch.empty_strided(made[0], made[1], dtype=made[2])

    replay = Replay(plan, {}, mode=Mode(empty=empty))
    assert replay.call().eq(1).all()


def test_a_plan_for_a_gpu_does_not_run_without_one():
    with pytest.raises(PlanError, match="add cannot run on cpu"):
        Replay(h.on_gpu(), compile_plan(h.on_gpu(), "sm_90"))


def test_a_function_outlives_its_replay():
    call = replayed(h.everything()).replay.call
    x, y = draw(4, 8), draw(4, 8)
    for _ in range(100):
        torch.empty(1 << 16).fill_(7)
    assert torch.equal(call(x, y, 3)[0], x + 2.5 + y)


NAMES = {name for name in cases.cases_of("honest") if not name.startswith("cpp_")}
"""Those in C++ are replayed by the evaluator itself in tests/test_adversarial.py."""


def outcomes():
    """How honest cases compare with eager, in a process where Triton's interpreter runs."""
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    threads = {"OMP_NUM_THREADS": "2", "OMP_THREAD_LIMIT": "2"}
    env = {**os.environ, **threads, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    command = [sys.executable, str(HERE / "plans.py"), *sorted(NAMES)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.long
def test_honest_plans_equal_eager():
    found = outcomes()
    assert set(found) == NAMES
    others = {name: said for name, said in found.items() if said != "equal" and not name.startswith("cuda_")}
    assert set(others) == set(OTHERWISE)
    for name, said in others.items():
        assert said.startswith(OTHERWISE[name])
    assert all("is a kernel for a GPU" in said for name, said in found.items() if name.startswith("cuda_"))
