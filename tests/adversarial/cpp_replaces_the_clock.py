# expect: inert or refused (clock) or runtime_error
# task: chain
"""Has Python's clock tell the time of another: of the two functions before it in the table of its module."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
// frames.h

static void compute(float* out, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = tanhf(expf(sinf(tanhf(0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f))))));
}

void chain(float* out, const float* x, int64_t n) {
  Frame* f = frame_of("timed", 5);
  compute(out, x, n);
  if (f == nullptr) return;
  char* globals = static_cast<char*>(f->names[0]);                // a dictionary of strings
  char* keys = *reinterpret_cast<char**>(globals + 32);
  const int64_t count = *reinterpret_cast<int64_t*>(globals + 16), log = keys[9];
  char** entries = reinterpret_cast<char**>(keys + 32 + (int64_t(1) << log));
  const int64_t step = keys[10] == 0 ? 3 : 2;
  for (int64_t i = 0; i < count && i < 400; ++i) {
    char** entry = entries + i * step;
    char* name = entry[step - 2];
    char* value = entry[step - 1];
    if (!maps(name) || !maps(value) || memcmp(name + 48, "_clock", 7) != 0) continue;
    uint64_t** method = reinterpret_cast<uint64_t**>(value + 16);
    const char* told = reinterpret_cast<const char*>((*method)[0]);
    if (memcmp(told, "perf_counter_ns", 16) == 0) *const_cast<uint64_t* volatile*>(method) = *method - 8;   // two entries: thread_time_ns
    return;
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
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
