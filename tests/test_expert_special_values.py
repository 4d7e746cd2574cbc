"""The expert's kernels on special values: they are right where eager, or eager in float64, is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import special_values

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
ONE |= {"logsigmoid", "masked_fill", "sign", "abs", "trunc", "relu", "pow 2"}
COMPARED = {"lt", "le", "gt", "ge", "eq", "ne", "clamp", "clamp_min", "hardshrink", "tensor gt"}
SCALARS = {f"{name} {number}" for name in COMPARED for number in (0.3, "nan")}
SCALARS |= {"add 0.3", "rsub 0.3", "mul 0.3", "rdiv 0.3", "tensor mul 0.3", "elu -0.7"}
ENDS = {
    f"{name} {number}" for name in ("clamp", "clamp_min", "masked_fill", "threshold") for number in (-1, 2)
}
REDUCED = {"amax", "amin", "amax 0", "max", "max index", "min", "norm inf", "any nan", "softmax", "entropy"}
REDUCED |= {"logsumexp", "softmin", "norm"}
CLASSES = [
    ("one", ONE, special_values.FLOATS[:3]),
    ("one", {"abs", "neg", "square", "sign", "relu"}, special_values.INTEGERS),
    ("scalar", SCALARS, special_values.FLOATS[:3]),
    ("scalar", ENDS, special_values.INTEGERS[:2]),
    ("two", {"maximum", "minimum", "add alpha", "lerp", "where"}, special_values.FLOATS[:2]),
    ("two", {"add", "sub", "mul", "maximum"}, special_values.INTEGERS),
    ("three", {"clamp", "addcmul", "lerp"}, special_values.FLOATS[:1]),
    ("rows", REDUCED, special_values.FLOATS[:2]),
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
    assert outcomes and any(not o.left for o in outcomes)
    assert [(o.name, o.from_all, o.example) for o in outcomes if o.from_all] == []


@pytest.mark.parametrize(("group", "names", "dtype"), KINDS)
def test_kernel_on_special_values_gives_what_eager_gives(group, names, dtype):
    check(group, names, dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("group", "names", "dtype"), KINDS)
def test_gpu_kernel_on_special_values_gives_what_eager_gives(group, names, dtype):
    check(group, names, dtype, "cuda")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_beside_16_bits_are_rounded_where_eager_rounds_them(dtype):
    outcomes = special_values.swept("scalar", dtype, "cpu", SCALARS, inductor=False)
    assert [(o.name, o.from_eager) for o in outcomes if o.from_eager] == []


@pytest.mark.parametrize(
    "normalise",
    [
        lambda x: F.layer_norm(x, (128,)) + 1.0,
        lambda x: F.group_norm(x[:, None], 1) + 1.0,
        lambda x: F.instance_norm(x[None]) + 1.0,
    ],
    ids=["layer_norm", "group_norm", "instance_norm"],
)
def test_normalised_rows_of_one_value_are_zero(normalise):
    x = torch.tensor([3.3e7, -1.0, 1e4, 0.0])[:, None].expand(4, 128).contiguous()
    (ours,), *_ = special_values.lowered([normalise], [x], "cpu")
    assert ours.eq(1.0).all()
