"""The sum of a scaled branch and a residual, and its layer norm: one pass over each row, two outputs."""

import torch

from passagent.kernels import cpp_kernel

_KERNEL = cpp_kernel(
    r"""
// A row as float: the row itself if it is float, else a buffer.
template <class T> static inline float* row(T*, float* buffer) { return buffer; }
template <> inline float* row<float>(float* p, float*) { return p; }

template <class T> static inline const float* loaded(const T* p, float* buffer, int64_t n) {
  load_f32(buffer, p, n);
  return buffer;
}
template <> inline const float* loaded<float>(const float* p, float*, int64_t) { return p; }

// Store a row, and see it as eager sees it afterwards: rounded to T. Through memory: for float16 that is
// one instruction for 8 values.
template <class T> static inline void stored(T* p, float* v, int64_t n) {
  store_f32(p, v, n);
  load_f32(v, p, n);
}
template <> inline void stored<float>(float*, float*, int64_t) {}

// The sum of term(0..n-1) in 32 partial sums: a single chain of additions waits for each one to end.
template <class F> static inline float sum_of(int64_t n, F term) {
  float part[32] = {}, total = 0.0f;
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
#pragma omp simd
    for (int64_t k = 0; k < 32; ++k) part[k] += term(i + k);
  }
  for (; i < n; ++i) total += term(i);
  for (int64_t k = 0; k < 32; ++k) total += part[k];
  return total;
}

template <class T>
void add_layer_norm(const T* x, const T* scale, const T* residual, const T* weight, const T* bias, T* sum,
                    T* out, float* scratch, int64_t rows, int64_t n, double eps) {
  const float* s = loaded(scale, scratch, n);          // the parameters once, for all rows
  const float* w = loaded(weight, scratch + n, n);
  const float* b = loaded(bias, scratch + 2 * n, n);
#pragma omp parallel for schedule(static) if (rows * n > 32768)
  for (int64_t r = 0; r < rows; ++r) {
    float* buffer = scratch + (3 + 2 * omp_get_thread_num()) * n;
    const float* a = loaded(x + r * n, buffer, n);
    const float* h = loaded(residual + r * n, buffer + n, n);
    float* v = row(sum + r * n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) v[i] = a[i] * s[i];
    stored(sum + r * n, v, n);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) v[i] += h[i];
    stored(sum + r * n, v, n);
    const float mean = sum_of(n, [v](int64_t i) { return v[i]; }) / n;
    const float square = sum_of(n, [v, mean](int64_t i) { return (v[i] - mean) * (v[i] - mean); });
    const float rstd = 1.0f / std::sqrt(square / n + static_cast<float>(eps));
    float* o = row(out + r * n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) o[i] = (v[i] - mean) * rstd * w[i] + b[i];
    if (reinterpret_cast<T*>(o) != out + r * n) store_f32(out + r * n, o, n);
  }
}
""",
    "add_layer_norm",
)


def pattern(x, scale, residual, n, weight, bias, eps, p):
    branch = torch.nn.functional.dropout(x, p, False, False)
    summed = branch * scale + residual
    return summed, torch.nn.functional.layer_norm(summed, (n,), weight, bias, eps)


def replacement_args(x, scale, residual, n, weight, bias, eps, p):
    return (x, scale, residual, weight, bias, eps)


@torch.fx.wrap
def add_layer_norm(x, scale, residual, weight, bias, eps):
    n = x.shape[-1]
    x, residual = x.contiguous(), residual.contiguous()
    summed, out = torch.empty_like(x), torch.empty_like(x)
    scratch = torch.empty((3 + 2 * torch.get_num_threads()) * n, dtype=torch.float32)
    _KERNEL(x, scale, residual, weight, bias, summed, out, scratch, x.numel() // n, n, float(eps))
    return summed, out


def replacement_func():
    return add_layer_norm
