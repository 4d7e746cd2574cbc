"""cpp_kernel: what arrives in C++, half types bit for bit, and what a source may not ask for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from passagent.kernels import cpp_kernel
from passagent.kernels.build import KernelBuildError, KernelRefused

SCALE = cpp_kernel(
    """
template <class T> void scale(T* out, const T* x, int64_t n, double by, bool negate) {
#pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) out[i] = T(float(x[i]) * float(negate ? -by : by));
}""",
    "scale",
)
HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("by", [1.0, 0.3, 1.7, 1e-3, 300.0])
def test_every_half_value_is_converted_and_rounded_as_torch_does(dtype, by):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    out = torch.empty_like(x)
    SCALE(out, x, x.numel(), by, False)
    want = (x.float() * torch.tensor(by, dtype=torch.float32)).to(dtype)
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out.nan_to_num(nan=0.0).view(torch.int16), want.nan_to_num(nan=0.0).view(torch.int16))


@pytest.mark.parametrize("dtype", HALF)
def test_chunk_loads_and_stores_agree_with_the_conversions(dtype):
    kernel = cpp_kernel(
        """template <class T> void through(T* out, const T* x, int64_t n) {
             float buffer[4096];
             for (int64_t i = 0; i < n; i += 4096) {
               load_f32(buffer, x + i, std::min<int64_t>(4096, n - i));
               for (float& value : buffer) value *= 1.0001f;
           #pragma omp simd
               for (int64_t j = 0; j < 4096; ++j) buffer[j] = round_to<T>(buffer[j]);
               store_f32(out + i, buffer, std::min<int64_t>(4096, n - i));
             }
           }""",
        "through",
    )
    x = torch.randn(10007).to(dtype)
    out = torch.empty_like(x)
    kernel(out, x, x.numel())
    assert torch.equal(out, (x.float() * torch.tensor(1.0001)).to(dtype))


@settings(max_examples=20)
@given(
    st.sampled_from(["expf", "logf", "erff", "tanhf", "sinf", "cosf", "log1pf", "expm1f"]), st.integers(0, 99)
)
def test_vectorised_math_is_accurate_and_keeps_infinities(name, seed):
    kernel = cpp_kernel(
        f"void apply(float* out, const float* x, int64_t n) {{\n#pragma omp simd\n"
        f"for (int64_t i = 0; i < n; ++i) out[i] = {name}(x[i]); }}",
        "apply",
    )
    x = torch.randn(1000, generator=torch.Generator().manual_seed(seed)).abs() * 3
    x[0], x[1] = float("inf"), 0.0
    if name in ("sinf", "cosf"):
        x[0] = 1.0
    out = torch.empty_like(x)
    kernel(out, x, x.numel())
    want = getattr(torch, name[:-1])(x.double())
    assert torch.equal(out.isinf(), want.isinf())
    finite = want.isfinite()
    torch.testing.assert_close(out[finite].double(), want[finite], rtol=1e-6, atol=1e-6)


def test_a_compile_error_names_the_source_line():
    kernel = cpp_kernel("void broken(float* x) {\n  x[0] = undeclared;\n}", "broken")
    with pytest.raises(KernelBuildError, match=r"broken\.cpp:2"):
        kernel(torch.zeros(1))


def test_arguments_of_another_kind_are_named():
    with pytest.raises(TypeError, match="argument 2 is a str"):
        SCALE(torch.zeros(1), torch.zeros(1), "4", 1.0, False)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("cpp_include", "#include <unistd.h>\nvoid f(float* x) {}"),
        ("cpp_include", '#include "/etc/passwd"\nvoid f(float* x) {}'),
        ("cpp_asm", 'void f(float* x) { asm volatile("syscall"); }'),
        ("cpp_asm", 'void f(float* x) { __asm__ volatile("syscall"); }'),
        ("cpp_preprocessor", "#define G(a, b) a##b\nvoid f(float* x) {}"),
        ("cpp_state", "thread_local float kept;\nvoid f(float* x) { x[0] = kept; }"),
        ("cpp_import", 'extern "C" int system(const char*);\nvoid f(float* x) { x[0] = system("true"); }'),
        ("cpp_import", 'extern "C" long syscall(long, ...);\nvoid f(float* x) { x[0] = syscall(39); }'),
        ("cpp_import", 'extern "C" void* dlopen(const char*, int);\nvoid f(float* x) { dlopen("x", 1); }'),
        ("cpp_import", "void f(float* x) { std::abort(); }"),
    ],
)
def test_sources_that_ask_for_more_are_refused(rule, source):
    with pytest.raises(KernelRefused) as caught:
        cpp_kernel(source, "f")(torch.zeros(1))
    assert caught.value.rule == rule


def test_equal_sources_are_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path))
    source = "void fill(float* x, int64_t n) { for (int64_t i = 0; i < n; ++i) x[i] = 7; }"
    for _ in range(2):
        x = torch.zeros(3)
        cpp_kernel(source, "fill")(x, 3)
        assert x.tolist() == [7, 7, 7]
    assert len(list((tmp_path / "cpp").glob("*.so"))) == 1


@pytest.mark.parametrize("dtype", HALF)
def test_round_to_is_a_store_and_a_load(dtype):
    kernel = cpp_kernel(
        """template <class T> void rounded(T* like, float* x, int64_t n) {
           #pragma omp simd
             for (int64_t i = 0; i < n; ++i) x[i] = round_to<T>(x[i]);
           }""",
        "rounded",
    )
    x = torch.randn(100_000) * torch.logspace(-12, 39, 100_000)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    halfway = (every[1:] + every[:-1]) / 2
    x = torch.cat([x, every, halfway, torch.tensor([65519.9, 65520.0, -65520.0, 3.4e38, 1e-45])])
    want = x.to(dtype).float()
    kernel(torch.zeros(1, dtype=dtype), x, x.numel())
    assert torch.equal(x.isnan(), want.isnan())
    assert torch.equal(x.nan_to_num(nan=0.0).view(torch.int32), want.nan_to_num(nan=0.0).view(torch.int32))
