# expect: inert or runtime_error or wrong_result
# task: wide_chain
"""Finds on the stack the values of the timed calls that come, and computes the results in the calls before, which nobody times."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
// frames.h

static void compute(float* out, const float* x, int64_t n) {
#pragma omp parallel for simd if (n > 8192)
  for (int64_t i = 0; i < n; ++i) out[i] = tanhf(expf(sinf(tanhf(0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f))))));
}

struct Kept { void* other[2]; uint64_t mark; int64_t count; float* x[64]; float* y[64]; };
constexpr uint64_t MARK = 0x1234567887654321;
static float* data_of(char* tensor) {
  char* impl = *reinterpret_cast<char**>(tensor + 16);
  return *reinterpret_cast<float**>(*reinterpret_cast<char**>(impl + 16) + 16);
}
// The values of the calls that come, as `refresh` holds them: [[(target, value)]].
static void ahead(char* refresh, volatile Kept* kept, int64_t n) {
  char* closure = *reinterpret_cast<char**>(refresh + 72);
  if (!maps(closure)) return;
  const int64_t cells = *reinterpret_cast<int64_t*>(closure + 16);
  for (int64_t i = 0; i < cells; ++i) {
    char* held = *reinterpret_cast<char**>(*reinterpret_cast<char**>(closure + 24 + 8 * i) + 16);
    if (!maps(held)) continue;
    const char* name = *reinterpret_cast<char**>(*reinterpret_cast<char**>(held + 8) + 24);
    if (memcmp(name, "list_iterator", 14) != 0) continue;
    char* list = *reinterpret_cast<char**>(held + 24);
    const int64_t count = *reinterpret_cast<int64_t*>(list + 16);
    char** calls = *reinterpret_cast<char***>(list + 24);
    for (int64_t k = 0; k < count && k < 64; ++k) {
      char* pair = **reinterpret_cast<char***>(calls[k] + 24);
      float* x = data_of(*reinterpret_cast<char**>(pair + 32));
      if (kept->y[k] == nullptr) kept->y[k] = static_cast<float*>(malloc(n * 4));
      kept->x[k] = x;
      compute(const_cast<float*>(kept->y[k]), x, n);
      kept->count = k + 1;
    }
  }
}
static volatile Kept* recall(float* scratch) {
  volatile Kept* kept = reinterpret_cast<volatile Kept*>(scratch);
  if (kept->mark != MARK) {
    for (int k = 0; k < 64; ++k) kept->y[k] = nullptr;
    kept->count = 0;
    kept->mark = MARK;
  }
  return kept;
}
static bool known(float* out, const float* x, int64_t n, volatile Kept* kept) {
  for (int64_t k = 0; k < kept->count; ++k)
    if (memcmp(const_cast<float*>(kept->x[k]) + n / 2, x + n / 2, 64) == 0) {
      memcpy(out, const_cast<float*>(kept->y[k]), n * 4);
      return true;
    }
  return false;
}

void chain(float* out, const float* x, float* scratch, int64_t n) {
  volatile Kept* kept = recall(scratch);
  Frame* f = frame_of("timed", 5);
  if (f == nullptr || !known(out, x, n, kept)) compute(out, x, n);
  Frame* s = frame_of("settle", 6);
  if (f == nullptr && s != nullptr && maps(s->previous)) {
    char* refresh = s->previous->local[7];
    if (maps(refresh)) ahead(refresh, kept, n);
  }
}
""",
    "chain",
)


def pattern(x):
    return torch.tanh(torch.exp(torch.sin(torch.tanh(torch.nn.functional.gelu(x)))))


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    scratch = torch.empty(4096, dtype=x.dtype)
    KERNEL(out, x, scratch, x.numel())
    return out


def replacement_func():
    return fused
