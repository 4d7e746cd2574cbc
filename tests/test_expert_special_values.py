"""The expert's kernels on special values: they are right where eager, or eager in float64, is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import special_values
import triton.language as tl
from triton._C.libtriton import ir
from triton._utils import type_canonicalisation_dict
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

import passagent.kernels
from passagent.expert.author import author
from passagent.expert.choices import default

GPU = GPUTarget("cuda", 90, 32)

ONE = {
    "exp",
    "log2 floor",
    "log10 floor",
    "round",
    "softshrink",
    "hardshrink",
    "elu",
    "selu",
    "clamp between",
}
ONE |= {"logsigmoid", "masked_fill", "sign", "abs", "trunc", "relu", "pow 2", "pow -0.5"}
COMPARED = {"lt", "le", "gt", "ge", "eq", "ne", "clamp", "clamp_min", "hardshrink", "tensor gt"}
SCALARS = {f"{name} {number}" for name in COMPARED for number in (0.3, "nan")}
SCALARS |= {"add 0.3", "rsub 0.3", "mul 0.3", "rdiv 0.3", "tensor mul 0.3", "elu -0.7", "pow -0.7"}
SCALARS |= {"lerp True", "clamp_max 1e-30"}
ENDS = {
    f"{name} {number}" for name in ("clamp", "clamp_min", "masked_fill", "threshold") for number in (-1, 2)
}
REDUCED = {"amax", "amin", "amax 0", "max", "max index", "min", "norm inf", "any nan", "softmax", "entropy"}
REDUCED |= {"logsumexp", "softmin", "norm"}
CLASSES = [
    ("one", ONE, [torch.float32, torch.bfloat16]),
    ("one", {"abs", "neg", "square", "sign", "relu", "softsign"}, [torch.uint8, torch.int32]),
    ("scalar", SCALARS, [torch.float32, torch.float16, torch.float64]),
    ("scalar", ENDS, special_values.INTEGERS[:2]),
    ("two", {"maximum", "minimum", "add alpha", "lerp", "where"}, [torch.float16]),
    ("two", {"add", "sub", "mul", "maximum"}, [torch.int8, torch.int64]),
    ("three", {"clamp", "addcmul", "lerp"}, special_values.FLOATS[:1]),
    ("rows", REDUCED, [torch.float16]),
    ("rows", {"logsumexp"}, [torch.int64]),
]
"""Cases of the benchmark that share a mechanism, and dtypes: a kernel each."""
KINDS = [
    pytest.param(group, names, dtype, id=f"{group}-{len(names)}-{str(dtype).removeprefix('torch.')}")
    for group, names, dtypes in CLASSES
    for dtype in dtypes
]


def check(group: str, names: set[str], dtype: torch.dtype, device: str) -> None:
    """On a GPU Inductor's results count, too: functions that Triton calls know no subnormal numbers."""
    outcomes = special_values.swept(group, dtype, device, names, inductor=device == "cuda")
    assert outcomes and not [(o.name, o.failure) for o in outcomes if o.left or o.failure]
    assert [(o.name, o.from_all, o.example) for o in outcomes if o.from_all] == []
    if group == "scalar" and device == "cpu" and dtype.is_floating_point and dtype.itemsize == 2:
        assert [(o.name, o.from_eager) for o in outcomes if o.from_eager] == []  # rounded where eager rounds


@pytest.mark.parametrize(("group", "names", "dtype"), KINDS)
def test_kernel_on_special_values_gives_what_eager_gives(group, names, dtype):
    check(group, names, dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("group", "names", "dtype"), KINDS)
def test_gpu_kernel_on_special_values_gives_what_eager_gives(group, names, dtype):
    check(group, names, dtype, "cuda")


def test_normalised_rows_of_one_value_are_zero():
    normalise = [
        lambda x: F.layer_norm(x, (128,)) + 1.0,
        lambda x: F.group_norm(x[:, None], 1) + 1.0,
        lambda x: F.instance_norm(x[None]) + 1.0,
    ]
    x = torch.tensor([3.3e7, -1.0, 1e4, 0.0])[:, None].expand(4, 128).contiguous()
    ours, *_ = special_values.lowered(normalise, [x], "cpu")
    assert [bool(result.eq(1.0).all()) for result in ours] == [True] * 3


def test_number_beside_float64_and_integers_is_no_16_bit_type():
    for dtype in (torch.float64, torch.int32):
        (outcome,) = special_values.swept("scalar", dtype, "cpu", ["tensor gt 0.3"], inductor=False)
        assert not outcome.left and outcome.from_eager == 0


def built(kernel, plan):
    """In place of `triton_kernel`: a call builds the kernel's IR for a GPU and returns zeros."""

    def call(*args):
        _, outputs, constants = plan(*args)
        results = [
            torch.zeros_like(o) if isinstance(o, torch.Tensor) else torch.zeros(o[0], dtype=o[1])
            for o in outputs.values()
        ]
        values = dict(zip(kernel.arg_names, args, strict=False)) | dict(zip(outputs, results, strict=True))
        values |= constants
        signature, known = {}, {}
        for place, name in enumerate(kernel.arg_names):
            value = values[name]
            if isinstance(value, torch.Tensor):
                dtype = special_values.dtype_text(value.dtype)
                signature[name] = f"*{type_canonicalisation_dict[dtype]}"
            elif isinstance(value, tl.constexpr) or name.startswith(("BLOCK", "ROWS")):
                signature[name], known[(place,)] = "constexpr", getattr(value, "value", value)
            else:
                signature[name] = "i32"
        backend, context = make_backend(GPU), ir.context()
        options = backend.parse_options({})
        ir.load_dialects(context)
        backend.load_dialects(context)
        functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
        ASTSource(kernel, signature, known).make_ir(GPU, options, functions, modules, context)
        return results[0] if len(results) == 1 else tuple(results)

    return call


def build_only(monkeypatch):
    """Have the expert write for a GPU, and each kernel's call build it."""
    monkeypatch.setattr(
        passagent.kernels, "triton_kernel", lambda plan, **_: lambda kernel: built(kernel, plan)
    )
    monkeypatch.setattr(special_values, "author", lambda graphs, *_: author(graphs, "cuda", default("cuda")))


def test_gpu_kernel_with_a_number_made_of_sizes_builds(monkeypatch):
    def places(x):
        steps = torch.arange(1, x.shape[0] + 1).float()
        return x * (steps / (steps[-1:] + 1e-6))

    build_only(monkeypatch)
    _, _, _, rewritten = special_values.lowered([places], [torch.randn(28)], "cpu")
    assert "fused_arange" in str(rewritten.graph)


BUILT = [torch.float64, torch.bfloat16, torch.int32]


@pytest.mark.parametrize("dtype", BUILT)
def test_gpu_kernel_with_numbers_builds_in_every_dtype(monkeypatch, dtype):
    """Triton's functions of two operands take no two dtypes, and it reads a number as float32.

    Each operator with each number in one dtype: each operator and each number meets every dtype.
    """
    build_only(monkeypatch)
    operators, numbers = {}, {}
    scalars = []
    for name in special_values.GROUPS["scalar"][0]:
        operator, _, number = name.rpartition(" ")
        place = operators.setdefault(operator, len(operators)) + numbers.setdefault(number, len(numbers))
        if BUILT[place % len(BUILT)] is dtype:
            scalars.append(name)
    groups = {"scalar": scalars, "one": ("pow -0.5", "pow 0.5", "softsign")}
    groups |= {"two": ("pow",), "rows": ("any nan",)}
    for group, names in groups.items():
        outcomes = special_values.swept(group, dtype, "cpu", names, inductor=False)
        assert outcomes and [(o.name, o.failure) for o in outcomes if o.failure] == []


def test_case_that_does_not_build_is_counted_and_others_are_held(monkeypatch):
    def lowered(functions, inputs, device):
        if special_values.ONE["exp"] in functions:
            raise KeyError("no such function")
        return actual(functions, inputs, device)

    actual = special_values.lowered
    monkeypatch.setattr(special_values, "lowered", lowered)
    outcomes = special_values.swept("one", torch.float32, "cpu", ["exp", "neg"], inductor=False)
    assert [(o.name, o.failure) for o in outcomes] == [("neg", ""), ("exp", "KeyError: 'no such function'")]
