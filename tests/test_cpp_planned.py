"""`cpp_kernel` with a plan: it allocates outputs, computes sizes once for each shape, copies if it must."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_as_exact_as_eager

from passagent.kernels import cpp_kernel
from passagent.kernels.source_errors import KernelBuildError

AXPY = """
template <class T>
void axpy(const T* x, const T* y, double a, T* out, T* top, int64_t n) {
  T largest = x[0];
  for (int64_t i = 0; i < n; ++i) {
    out[i] = T(float(x[i]) * float(a) + float(y[i]));
    if (float(out[i]) > float(largest) || i == 0) largest = out[i];
  }
  top[0] = largest;
}
"""
WHERE = """
void where(const float* x, const float* y, double a, float* out, int64_t* at, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * float(a) + y[i];
  at[0] = (int64_t)x;
  at[1] = (int64_t)y;
}
"""
COUNT = """
void count(int64_t start, int64_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = start + i;
}
"""


@pytest.fixture
def axpy():
    """The kernel, and the calls of its plan."""
    plans = []

    def plan(x, y, a):
        plans.append((x.shape, x.dtype, a))
        if x.shape != y.shape:
            raise RuntimeError(f"axpy does not take shapes {x.shape}, {y.shape}")
        return {"out": x, "top": ((), x.dtype)}, {"n": x.numel()}

    return cpp_kernel(AXPY, "axpy", plan), plans


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_are_allocated_and_the_plan_is_asked_once_for_each_shape(axpy, dtype):
    kernel, plans = axpy
    for shape in [(3, 4), (5,), (3, 4)]:
        x, y = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        out, top = kernel(x, y, 2.0)
        assert_as_exact_as_eager(out, lambda x, y: (x.float() * 2.0 + y.float()).to(dtype), [x, y])
        assert (top.item(), top.shape) == (out.max().item(), ())
        assert out.is_contiguous() and out.dtype == dtype
    assert plans == [((3, 4), dtype, 2.0), ((5,), dtype, 2.0)]


def test_results_of_two_calls_do_not_share_memory(axpy):
    kernel, _ = axpy
    x = torch.ones(4)
    first, _ = kernel(x, x, 1.0)
    second, _ = kernel(x, x, 5.0)
    assert (first.tolist(), second.tolist()) == ([2.0] * 4, [6.0] * 4)


def test_what_is_not_contiguous_is_copied(axpy):
    kernel, _ = axpy
    x, y = torch.randn(4, 6).t(), torch.randn(12, 8)[::2, ::2]
    out, _ = kernel(x, y, 3.0)
    assert_as_exact_as_eager(out, lambda x, y: x * 3.0 + y, [x, y])


@pytest.mark.parametrize("lies", [True, False])
def test_a_kernel_reads_and_writes_the_order_that_it_names(lies):
    def plan(x, y, a):
        return {"out": x, "at": ((2,), torch.int64)}, {"n": x.numel()}

    kernel = cpp_kernel(WHERE, "where", plan, order={"x": (1, 0), "y": (1, 0)})
    x, y = torch.randn(4, 6).t(), torch.randn(4, 6).t() if lies else torch.randn(6, 4)
    for _ in range(2):
        out, at = kernel(x, y, 3.0)
        assert_as_exact_as_eager(out, lambda x, y: x * 3.0 + y, [x, y])
        assert out.stride() == ((1, 6) if lies else (4, 1))
        assert (at.tolist() == [x.data_ptr(), y.data_ptr()]) == lies


def test_without_tensors():
    kernel = cpp_kernel(COUNT, "count", lambda start: ({"out": ((3,), torch.int64)}, {"n": 3}))
    assert kernel(5).tolist() == [5, 6, 7]


def test_mistakes_are_told(axpy):
    kernel, _ = axpy
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match=r"axpy does not take shapes \(3,\), \(2,\)"):
        kernel(x, torch.ones(2), 1.0)
    with pytest.raises(KernelBuildError):
        kernel(x, x.double(), 1.0)
    wrong = cpp_kernel(COUNT, "count", lambda start: ({"out": ((3,), torch.int64)}, {"n": "3"}))
    with pytest.raises(TypeError, match="count: argument 2 is a str"):
        wrong(1)
    odd = cpp_kernel(COUNT, "count", lambda start: ({"out": ((3,), torch.complex64)}, {"n": 3}))
    with pytest.raises(TypeError, match=r"count: argument 1 is a torch\.complex64 tensor"):
        odd(1)
