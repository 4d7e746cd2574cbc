"""The launcher: what a kernel is given for what a call gives, and when it is another kernel's turn.

Kernels are compiled for a GPU that need not be here; a stub takes the place of cuLaunchKernel.
"""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest
import torch
import triton
import triton.language as tl
from stub_driver import Seen, stub, triton_target

from passagent.kernels import build_cuda, cuda_kernel, launch, layout, triton_kernel

PLANNED: list[tuple] = []


def _plan(x, y, scale):
    PLANNED.append((x, y, scale))
    n = x.numel()
    block = 512
    return triton.cdiv(n, block), {"out": x, "wide": ((n, 2), torch.float64)}, {"n": n, "BLOCK": block}


@triton.jit
def _scaled_sum(x, y, scale, out, wide, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n) * scale
    tl.store(out + i, v.to(out.dtype.element_ty), mask=i < n)
    tl.store(wide + i * 2, v.to(tl.float64), mask=i < n)


@pytest.fixture
def seen(tmp_path):
    PLANNED.clear()
    with stub(tmp_path) as one, triton_target():
        yield one


@pytest.fixture
def scaled_sum(seen):
    """A kernel without variants yet."""
    return triton_kernel(_plan, num_warps=2, enable_fp_fusion=False)(_scaled_sum)


def pointers(seen: Seen, *positions: int) -> list[int]:
    return [seen.values[p] for p in positions]


def test_outputs_are_made_and_parameters_arrive_in_the_kernels_order(seen, scaled_sum):
    seen.count = 8
    x, y = torch.randn(3, 400), torch.randn(3, 400)
    out, wide = scaled_sum(x, y, 0.5)
    assert (out.shape, out.dtype, wide.shape, wide.dtype) == (x.shape, x.dtype, (1200, 2), torch.float64)
    assert (out.is_contiguous(), wide.is_contiguous(), seen.calls) == (True, True, 1)
    assert list(seen.sizes)[:6] == [3, 1, 1, 64, 1, 1]
    assert pointers(seen, 0, 1, 3, 4) == [t.data_ptr() for t in (x, y, out, wide)]
    assert (seen.value(2, ctypes.c_float), seen.value(5, ctypes.c_int32)) == (0.5, 1200)
    assert pointers(seen, 6, 7) == [0, 0]  # Triton's scratch memory


def test_a_plan_is_made_once_and_outputs_are_new_at_each_call(seen, scaled_sum):
    x, y = torch.randn(3, 400), torch.randn(3, 400)
    first, second = scaled_sum(x, y, 0.5)[0], scaled_sum(x, y, 0.5)[0]
    assert first.data_ptr() != second.data_ptr()
    assert (len(PLANNED), seen.calls) == (1, 2)
    assert PLANNED[0] == (layout.Like((3, 400), torch.float32), layout.Like((3, 400), torch.float32), 0.5)


@pytest.mark.parametrize(
    ("x", "y", "scale"),
    [
        (torch.randn(400, 3), torch.randn(400, 3), 0.5),
        (torch.randn(1200), torch.randn(1200), 0.5),
        (torch.randn(3, 400).double(), torch.randn(3, 400), 0.5),
        (torch.randn(1201)[1:].view(3, 400), torch.randn(3, 400), 0.5),
        (torch.randn(3, 400), torch.randn(1201)[1:].view(3, 400), 0.5),
        (torch.randn(3, 400), torch.randn(3, 400), 2),
        (torch.randn(3, 400), torch.randn(3, 400), True),
        (torch.randn(3, 400), torch.randn(3, 400), 0.25),
    ],
    ids=["shape", "dims", "dtype", "x unaligned", "y unaligned", "int", "bool", "number"],
)
def test_another_kind_of_argument_is_another_variant(seen, scaled_sum, x, y, scale):
    scaled_sum(torch.randn(3, 400), torch.randn(3, 400), 0.5)
    before = len(PLANNED)
    scaled_sum(x, y, scale)
    assert (before, len(PLANNED)) == (1, 2)
    scaled_sum(torch.randn(3, 400), torch.randn(3, 400), 0.5)
    scaled_sum(x, y, scale)
    assert (len(PLANNED), seen.calls) == (2, 4)


def test_alignment_and_special_ints_are_other_machine_code(seen, scaled_sum):
    """Triton may load 16 bytes at a time where a pointer is aligned: the wrong variant would crash."""
    seen.count = 6
    x = torch.randn(3, 400)
    scaled_sum(x, x, 0.5)
    aligned = seen.function
    scaled_sum(torch.randn(1201)[1:].view(3, 400), x, 0.5)
    assert seen.function != aligned
    scaled_sum(x, x, 0.5)
    assert seen.function == aligned
    one = torch.randn(1)
    scaled_sum(one, one, 0.5)  # n == 1 is a constant then and no parameter
    assert pointers(seen, 5) == [0]


def test_what_is_not_contiguous_is_copied_first(seen, scaled_sum):
    seen.count = 2
    x, y = torch.randn(400, 3).t(), torch.randn(3, 400)
    out, _ = scaled_sum(x, y, 0.5)
    assert out.is_contiguous()
    assert pointers(seen, 0)[0] != x.data_ptr()
    assert pointers(seen, 1) == [y.data_ptr()]
    assert seen.calls == 1


def _turned_plan(x, y, scale):
    PLANNED.append((x, y, scale))
    n = x.numel()
    return 1, {"out": x, "wide": ((4, 5, n), torch.float64, (2, 0, 1))}, {"n": n, "BLOCK": 512}


def test_what_lies_in_the_order_that_the_kernel_reads_is_given_as_it_is(seen):
    seen.count = 5
    kernel = triton_kernel(_turned_plan, order={"x": (0, 2, 1)})(_scaled_sum)
    x, y = torch.randn(2, 3, 4).transpose(1, 2), torch.randn(24)
    out, wide = kernel(x, y, 0.5)
    assert pointers(seen, 0, 1, 3, 4) == [t.data_ptr() for t in (x, y, out, wide)]
    assert (out.shape, out.stride(), wide.stride()) == ((2, 4, 3), (12, 1, 4), (5, 1, 20))
    assert [
        (layout.Like((2, 4, 3), torch.float32, (0, 2, 1)), layout.Like((24,), torch.float32), 0.5)
    ] == PLANNED
    kernel(torch.randn(2, 3, 4).transpose(1, 2), y, 0.5)
    assert (len(PLANNED), seen.calls) == (1, 2)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 4, 3),
        torch.randn(4, 2, 3).permute(1, 0, 2),
        torch.randn(2, 3, 8)[..., ::2].transpose(1, 2),
        torch.randn(2, 1, 3).expand(2, 4, 3),
    ],
    ids=["contiguous", "another order", "gaps", "expanded"],
)
def test_what_lies_otherwise_is_copied_into_the_order_and_outputs_are_contiguous(seen, x):
    seen.count = 2
    kernel = triton_kernel(_turned_plan, order={"x": (0, 2, 1)})(_scaled_sum)
    y = torch.randn(24)
    for _ in range(2):
        out, wide = kernel(x, y, 0.5)
        assert pointers(seen, 0) != [x.data_ptr()]
        assert (out.shape, out.is_contiguous(), wide.is_contiguous()) == ((2, 4, 3), True, True)
    assert (len(PLANNED), seen.calls) == (1, 2)


@pytest.mark.parametrize(
    ("order", "reason"),
    [({"z": (0,)}, "order names z"), ({"x": (0, 2)}, r"the order of x is \(0, 2\), no permutation")],
)
def test_an_order_that_is_none(order, reason):
    with pytest.raises(TypeError, match=reason):
        triton_kernel(_plan, order=order)(_scaled_sum)


def test_empty_grids_launch_nothing(seen, scaled_sum):
    out, wide = scaled_sum(torch.randn(0, 4), torch.randn(0, 4), 0.5)
    assert (out.shape, wide.shape, seen.calls) == ((0, 4), (0, 2), 0)


def test_a_failed_launch_speaks_in_cudas_words(seen, scaled_sum):
    seen.code = 1
    with pytest.raises(RuntimeError, match="_scaled_sum: CUDA error 1: invalid argument"):
        scaled_sum(torch.randn(4), torch.randn(4), 0.5)
    seen.code = 0


@pytest.mark.parametrize("wrong", ["text", torch, [1.0], torch.float32, 1 << 70])
def test_other_arguments_are_refused(seen, scaled_sum, wrong):
    with pytest.raises((TypeError, OverflowError)):
        scaled_sum(torch.randn(4), torch.randn(4), wrong)


def test_nothing_leaks(seen, scaled_sum):
    x, y = torch.randn(3, 400), torch.randn(3, 400)
    for _ in range(3):
        scaled_sum(x, y, 0.5)
    gc.collect()
    before = [sys.getrefcount(o) for o in (x, y, None, 0.5)]
    for _ in range(1000):
        scaled_sum(x, y, 0.5)
    after = [sys.getrefcount(o) for o in (x, y, None, 0.5)]
    assert all(b - a < 100 for a, b in zip(before, after, strict=True))


def test_a_plan_that_names_what_the_kernel_does_not_take(seen):
    for outputs, constants, name in [
        ({}, {"m": 1}, "m"),
        ({"x": ((1,), torch.int64)}, {}, "x"),
        ({}, {"ptx_options": ""}, "ptx_options"),
    ]:
        made = triton_kernel(lambda x, o=outputs, c=constants: (1, o, c))(_copy)
        with pytest.raises(TypeError, match=f"its plan names {name}; its parameters are x, out, n"):
            made(torch.zeros(1))


@triton.jit
def _copy(x, out, n):
    tl.store(out, tl.load(x) + n)


def test_only_a_jit_function_can_be_planned():
    with pytest.raises(TypeError, match=r"stands above @triton\.jit, not above a function"):
        triton_kernel(_plan)(lambda x: x)


def test_cuda_kernels_are_launched_the_same_way(seen, monkeypatch, tmp_path):
    built = tmp_path / "f.kernel"
    types = ["void*", "int32_t", "uint64_t", "float", "bool", "double", "int8_t"]
    built.write_bytes(build_cuda.pack(b"code", "_Z1f", types))
    monkeypatch.setattr(build_cuda, "build", lambda *_: built)
    kernel = cuda_kernel("", "f")
    seen.count = 7
    x = torch.randn(4)
    kernel[(3, 2), 128, 64](x, -5, 1 << 40, 0.5, 7, 3, -1)
    assert (seen.function, list(seen.sizes)) == (1000, [3, 2, 1, 128, 1, 1, 64])
    kinds = [ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_float, ctypes.c_bool, ctypes.c_double]
    assert [seen.value(i, kind) for i, kind in enumerate([*kinds, ctypes.c_int8])] == [
        x.data_ptr(), -5, 1 << 40, 0.5, True, 3.0, -1,
    ]  # fmt: skip
    again = kernel[(3, 2), 128, 64]
    again(x[1:], 1, 1, 1.5, False, 2.5, 1)
    assert (seen.value(0, ctypes.c_uint64), seen.value(5, ctypes.c_double)) == (x.data_ptr() + 4, 2.5)
    for position, wrong in ((1, 1 << 31), (2, -1), (6, 128)):
        args = [x, 1, 1, 1.5, False, 2.5, 1]
        args[position] = wrong
        with pytest.raises(OverflowError, match=f"argument {position} \\({wrong}\\) does not fit"):
            again(*args)
    with pytest.raises(TypeError, match="argument 1 is a str"):
        again(x, "1", 1, 1.5, False, 2.5, 1)
    assert seen.calls == 2


def test_launches_on_another_device_are_another_variant():
    """A key holds where a tensor lies: no kernel is given memory of another device."""
    made: list[tuple] = []
    one = launch.Launch("f", lambda *args: made.append(args), planned=False)
    one.function(torch.zeros(1))
    one.function(torch.zeros(1))
    assert len(made) == 2  # nothing was added: each call asks
