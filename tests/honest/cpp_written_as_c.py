# expect: ok
"""Written as C, with the headers of C, and scratch of the intrinsics' allocator."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <errno.h>
#include <math.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <mm_malloc.h>
#else
#define _mm_malloc(size, alignment) malloc(size)
#define _mm_free free
#endif
enum { TILE = 64 };
static bool is_whole(size_t n) { return n % TILE == 0; }
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  float* sums = (float*)_mm_malloc(TILE * sizeof(float), 64);
  int64_t start, i;
  memset(sums, 0, TILE * sizeof(float));
  for (start = 0; start < n; start += TILE) {
    const int64_t count = is_whole(n) || n - start >= TILE ? TILE : n - start;
    for (i = 0; i < count; i++) sums[i] = (float)x[start + i] + (float)y[start + i];
    for (i = 0; i < count; i++) if (sums[i] < 0.0f) sums[i] = 0.0f;
    for (i = 0; i < count; i++) out[start + i] = (T)sums[i];
  }
  _mm_free(sums);
}""",
    "add_relu",
)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
