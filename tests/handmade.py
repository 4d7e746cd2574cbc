"""Plans written by hand, as a recorder would leave them."""

from __future__ import annotations

import base64
import hashlib

from pydantic import ValidationError

from passagent.plan import arguments as a
from passagent.plan import model as m
from passagent.plan import values as v
from passagent.plan.check import PlanError, check

ADD = """
void add(const float* x, const float* y, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + y[i];
}"""
GATHER = """
void gather(const int64_t* table, const float* weights, float* out, int64_t n) {
  const float* x = (const float*)table[0];
  const float* y = (const float*)table[1];
  for (int64_t i = 0; i < n; ++i) out[i] = weights[0] * x[i] + weights[1] * y[i];
}"""
TTIR = """module {
  tt.func public @add(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32},
                      %y: !tt.ptr<f32> {tt.divisibility = 16 : i32},
                      %out: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32)
      attributes {noinline = false} {
    %pid = tt.get_program_id x : i32
    %size = arith.constant 128 : i32
    %start = arith.muli %pid, %size : i32
    %range = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %from = tt.splat %start : i32 -> tensor<128xi32>
    %at = arith.addi %from, %range : tensor<128xi32>
    %end = tt.splat %n : i32 -> tensor<128xi32>
    %mask = arith.cmpi slt, %at, %end : tensor<128xi32>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %xp = tt.addptr %xs, %at : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %xv = tt.load %xp, %mask : tensor<128x!tt.ptr<f32>>
    %ys = tt.splat %y : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %yp = tt.addptr %ys, %at : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %yv = tt.load %yp, %mask : tensor<128x!tt.ptr<f32>>
    %sum = arith.addf %xv, %yv : tensor<128xf32>
    %os = tt.splat %out : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %op = tt.addptr %os, %at : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    tt.store %op, %sum, %mask : tensor<128x!tt.ptr<f32>>
    tt.return
  }
}"""


def value(number):
    return a.ValueArg(value=number)


def number(n):
    return a.IntArg(value=n)


def real(x):
    return a.FloatArg(value=float(x).hex())


def made(kind=v.MadeValue, shape=(4, 8), stride=None, dtype="float32", device="cpu", **more):
    """A value; its strides are row-major unless they are given."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.insert(0, step)
        step *= max(size, 1)
    return kind(
        shape=shape, stride=tuple(steps) if stride is None else stride, dtype=dtype, device=device, **more
    )


def given(**more):
    return made(v.InputValue, **more)


def view(of, offset=0, **more):
    return made(v.ViewValue, of=of, offset=offset, **more)


def cpp(text, entry, *types):
    return m.NativeKernel(
        kind="cpp", text=text, entry=entry, signature=tuple(m.Parameter(type=t) for t in types)
    )


def triton(ttir=TTIR, entry="add", types=("*fp32", "*fp32", "*fp32", "i32"), **more):
    names = ("x", "y", "out", "n", "m")
    signature = tuple(m.Parameter(name=n, type=t) for n, t in zip(names, types, strict=False))
    return m.TritonKernel(text="", entry=entry, signature=signature, ttir=ttir, target="cuda:90", **more)


def plan(inputs, values, steps, result, kernels=(), constants=()):
    """A plan; its kernels and constants by their digests."""
    return m.Plan(
        inputs=tuple(inputs),
        values=tuple(values),
        steps=tuple(steps),
        result=result,
        kernels={kernel.digest(): kernel for kernel in kernels},
        constants={hashlib.sha256(raw).hexdigest(): base64.b64encode(raw).decode() for raw in constants},
    )


def launch(kernel, *args, **more):
    return m.Launch(kernel=kernel.digest(), args=args, **more)


ADDING = cpp(ADD, "add", "float*", "float*", "float*", "int64_t")
GATHERING = cpp(GATHER, "gather", "int64_t*", "float*", "float*", "int64_t")


def everything():
    """A plan for the CPU with all that plans have.

    It takes x and y (4, 8) and 3 to (x + 2.5 + y, a part of x, 0.5 x + 2 y).
    """
    weights, table = bytes.fromhex("0000003f00000040"), bytes(16)
    digest = hashlib.sha256(table).hexdigest()
    addresses = (v.ConstantAddress(word=0, value=0, offset=0), v.ConstantAddress(word=1, value=1, offset=0))
    constant = {"kind": v.ConstantValue, "dtype": "float32", "shape": (2,)}
    values = [
        given(), given(), made(), made(), view(0, 8, shape=(2, 8)), made(),
        made(data=hashlib.sha256(weights).hexdigest(), **constant),
        made(v.ConstantValue, (2,), dtype="int64", data=digest, addresses=addresses),
        view(2, 4, shape=(2, 4), stride=(8, 2)), made(),
    ]  # fmt: skip
    steps = [
        m.Alloc(value=2),
        m.Fill(value=2, number=real(0.5)),
        m.Fill(value=8, number=real(9)),
        m.Fill(value=2, number=real(2.5)),
        m.Alloc(value=3),
        launch(ADDING, value(0), value(2), value(3), number(32)),
        launch(ADDING, value(3), value(1), value(3), number(32)),
        m.Alloc(value=9),
        launch(GATHERING, value(7), value(6), value(9), number(32)),
        m.Alloc(value=5),
        m.Copy(value=5, source=9),
    ]
    result = a.TupleArg(items=(value(3), value(4), value(5)))
    given_ = [value(0), value(1), number(3)]
    return plan(given_, values, steps, result, [ADDING, GATHERING], [weights, table])


def convolution():
    """A plan for the CPU of x, weight and y: the library's convolution of the first two, plus y."""
    image = (2, 4, 6, 6)
    values = [given(shape=s) for s in ((2, 3, 8, 8), (4, 3, 3, 3), image)] + [made(shape=image)] * 2
    ones, zeros = (a.TupleArg(items=(number(n), number(n))) for n in (1, 0))
    flags = (ones, zeros, ones, a.BoolArg(value=False), zeros, number(1))
    steps = [
        called("convolution", value(0), value(1), a.NoneArg(), *flags, values=(3,)),
        m.Alloc(value=4),
        launch(ADDING, value(3), value(2), value(4), number(288)),
    ]
    return plan([value(0), value(1), value(2)], values, steps, value(4), [ADDING])


def called(name, *arguments, values, **keywords):
    """A call of an operator of torch."""
    operator = f"aten::{name}" + ("" if "." in name else ".default")
    return m.OperatorCall(operator=operator, arguments=arguments, keywords=keywords, values=values)


def tuned():
    """A plan with a choice: x + 1 or x + 2."""
    values = [given(), made(), made()]
    alternatives = [m.Alternative(name=f"C: {n}", steps=(m.Fill(value=1, number=real(n)),)) for n in (1, 2)]
    steps = [
        m.Alloc(value=1),
        m.Choice(of=tuple(alternatives)),
        m.Alloc(value=2),
        launch(ADDING, value(0), value(1), value(2), number(32)),
    ]
    return plan([value(0)], values, steps, value(2), [ADDING])


def on_gpu(kernel=None):
    """A plan for a GPU: the sum of two tensors of 200 elements by a Triton kernel."""
    kernel = kernel or triton()
    tensor = {"shape": (200,), "device": "cuda"}
    steps = [m.Alloc(value=2), launch(kernel, value(0), value(1), value(2), number(200), grid=(2, 1, 1))]
    values = [given(**tensor), given(**tensor), made(**tensor)]
    return plan([value(0), value(1)], values, steps, value(2), [kernel])


def read(text):
    """The plan in a text of JSON, checked. Raises PlanError, whoever refuses it."""
    try:
        made = m.Plan.model_validate_json(text)
    except ValidationError as error:
        raise PlanError(f"no plan: {' '.join(str(error).split())}") from None
    check(made)
    return made
