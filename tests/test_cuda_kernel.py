"""cuda_kernel: how arguments meet parameters, what device code may not ask for, what it computes on a GPU.

Parsing and refusals by text need nothing; compiling needs NVRTC (`pip install passagent[cuda]`);
only the tests marked `gpu` need a device.
"""

import struct

import pytest
import torch

from passagent.errors import PassagentError
from passagent.kernels import build_cuda, cuda_kernel, lexer
from passagent.kernels.build import Signature
from passagent.kernels.cuda_source import instantiate
from passagent.kernels.source_errors import KernelBuildError, KernelRefused
from passagent.sandbox.cache import cache_dir

SCALE = """
// __global__ void scale(int wrong);
template <class T>
__global__ void __launch_bounds__(256)
scale(T* __restrict__ out, const T *x, int64_t n, float by, bool negate) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) store_f32(out + i, load_f32(x + i) * (negate ? -by : by));
}"""
ROWS = """
#include <cuda_fp16.h>
template <int BLOCK, typename T, typename U = float, bool FAST = true>
__global__ void rows(const T x[], unsigned int n, long long m = 4, double eps = 1e-5) {}
extern "C" __global__ void plain(float4* out, size_t n, unsigned long long int k, short s) {}
"""


CONSTANTS = """
constexpr int BLOCK = 4;
static const float half_of = 0.5f;
namespace sizes { constexpr int rows = 3; }
template <class T> struct Traits { static constexpr int width = 16 / sizeof(T); };
__device__ const int places[2] = {1, 0};
__global__ void f(float* x) {
  static constexpr float table[3] = {1, 2, 3};
  __shared__ float s[BLOCK];
  s[threadIdx.x & 3] = x[places[threadIdx.x & 1]] * half_of;
  __syncthreads();
  x[0] = s[sizes::rows] * table[threadIdx.x % 3] + Traits<float>::width;
}"""
LIBRARY = """
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
constexpr float lowest = -std::numeric_limits<float>::infinity();
static_assert(std::numeric_limits<int8_t>::max() == 127 && std::numeric_limits<int>::min() < -2147483647);
static_assert(std::numeric_limits<uint64_t>::max() == ~0ull && std::numeric_limits<float>::digits == 24);
static_assert(std::numeric_limits<int64_t>::lowest() == -9223372036854775807ll - 1);
static_assert(std::is_same_v<std::decay_t<const float&>, float> && !std::is_integral_v<float>);
template <class T, std::enable_if_t<std::is_floating_point<T>::value, int> = 0>
__device__ std::conditional_t<std::is_same_v<T, double>, T, float> twice(T x) { return x + x; }
template <class T> __device__ float handed(T&& x) { return std::forward<T>(x); }
__global__ void f(float* x) {
  std::size_t i = threadIdx.x;
  float a = std::max(x[i], lowest), b = std::exp(a) + std::abs(std::clamp(a, -1.f, 1.f));
  std::swap(a, b);
  std::array<float, 4> four{a, b};
  for (float& one : four) one += handed(std::move(b));
  a += four[3] * four.size();
  x[i] = std::isnan(a) ? float(std::numeric_limits<__half>::lowest()) : twice(b);
}"""


NAMED = """
using index_t = std::int64_t;
typedef unsigned int uint_t;
using real = float;
using scalar = real;
template <class T, int index = 3>
__global__ void named(T* x, index_t n, const uint_t m, scalar s, int k) { if (n > m) x[0] = s + k; }
"""
"""Names for the types of its parameters."""


def nvrtc() -> None:
    """Skip the test where NVRTC or its headers are not installed."""
    pytest.importorskip("cuda.bindings.nvrtc")


@pytest.mark.parametrize(
    ("source", "name", "given", "expression", "types"),
    [
        (
            SCALE,
            "scale",
            ("float*", "float*", "int64_t", "double", "bool"),
            "scale<float>",
            ["void*", "void*", "int64_t", "float", "bool"],
        ),
        (
            SCALE,
            "scale",
            ("bfloat16*", "bfloat16*", "bool", "int64_t", "int64_t"),
            "scale<bfloat16>",
            ["void*", "void*", "int64_t", "float", "bool"],
        ),
        (
            ROWS,
            "rows<128>",
            ("float16*", "int64_t", "int64_t", "double"),
            "rows<128, float16>",
            ["void*", "uint32_t", "int64_t", "double"],
        ),
        (
            ROWS,
            "plain",
            ("float*", "int64_t", "int64_t", "int64_t"),
            "plain",
            ["void*", "uint64_t", "uint64_t", "int16_t"],
        ),
        (
            NAMED,
            "named",
            ("float*", "int64_t", "int64_t", "double", "int64_t"),
            "named<float>",
            ["void*", "int64_t", "uint32_t", "float", "int32_t"],
        ),
    ],
)
def test_arguments_meet_the_declared_parameters(source, name, given, expression, types):
    instance = instantiate(lexer.read(source), name, given)
    assert (instance.expression, instance.types) == (expression, types)


@pytest.mark.parametrize(
    ("source", "name", "given", "message"),
    [
        (SCALE, "other", ("float*",), "no kernel `__global__ void other"),
        (SCALE, "scale", ("float*",), "1 arguments for the 5 parameters"),
        (SCALE, "scale(", ("float*",), "is not the name of a kernel"),
        (SCALE, "scale", ("float*", "float16*", "int64_t", "double", "bool"), "and T is float already"),
        (SCALE, "scale", ("float*", "float*", "double", "double", "bool"), "argument 2 is a float"),
        (SCALE, "scale", ("float*", "float*", "float*", "double", "bool"), "argument 2 is a float tensor"),
        (
            ROWS,
            "rows",
            ("float16*", "int64_t", "int64_t", "double"),
            "template parameter BLOCK does not follow",
        ),
        ("__global__ void f(float* x) {}", "f", ("double*",), "argument 0 is a double tensor"),
        ("__global__ void f(half x) {}", "f", ("double",), "neither a pointer nor a number"),
        ("struct S {};\n__global__ void f(S x) {}", "f", ("int64_t",), "neither a pointer nor a number"),
    ],
)
def test_arguments_that_do_not_fit_are_named(source, name, given, message):
    with pytest.raises(KernelBuildError, match=message.replace("(", r"\(")):
        instantiate(lexer.read(source), name, given)


@pytest.mark.parametrize(
    ("rule", "line", "source"),
    [
        ("cuda_include", 1, "#include <cooperative_groups.h>"),
        ("cuda_include", 2, '\n#include "/etc/passwd"'),
        ("cuda_include", 1, '#inc\\\nlude "/etc/passwd"'),
        ("cuda_include", 1, '#if __has_include("/etc/passwd")\n#endif'),
        ("cuda_asm", 2, '__global__ void f() {\n  asm("exit;"); }'),
        ("cuda_string", 3, '#define JOIN(a, b) a##b\n__global__ void f() {\n  JOIN(as, m)("exit;"); }'),
        ("cuda_string", 1, 'static const char* a = R"(/*)";\n#include <unistd.h>\n// R"(*/)"'),
        ("cuda_preprocessor", 1, "#pragma weak f = g"),
        ("cuda_string", 1, '__global__ void f() { const char* s = "%d"; }'.replace("%d", "\\\\n")),
    ],
)
def test_sources_that_ask_for_more_are_refused(rule, line, source):
    with pytest.raises(KernelRefused) as caught:
        build_cuda.check_source(source)
    assert (caught.value.rule, caught.value.line) == (rule, line)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("#include <torch/extension.h>", "take pointers and sizes"),
        ("#include <cooperative_groups.h>", "__shfl_xor_sync"),
        ("#include <cub/cub.cuh>", "warp_sum"),
        ("#include <cuda_pipeline.h>", "cuda_pipeline_primitives.h"),
        ('__device__ void copy() { asm volatile("cp.async.wait_all"); }', "__pipeline_memcpy_async"),
    ],
)
def test_a_refused_line_says_what_to_write_instead(text, instead):
    with pytest.raises(KernelRefused, match=instead):
        build_cuda.check_source(text)


def test_without_a_device_one_line_says_so():
    with pytest.raises(PassagentError, match="a kernel needs a CUDA device"):
        cuda_kernel(SCALE, "scale")[1, 32](torch.zeros(4), torch.zeros(4), 4, 1.0, False)


@pytest.mark.parametrize("shape", [3, (1, 2, 3, 4), ((1, 2, 3, 4), 1), (1, -1), (1.5, 2)])
def test_a_grid_or_block_of_another_form_is_refused(shape):
    with pytest.raises(TypeError, match="grid"):
        cuda_kernel(SCALE, "scale")[shape]


def test_what_a_built_kernel_is_told_with_comes_back():
    built = build_cuda.pack(b"\x7fELF\n{code}", "_Z1f", ["void*", "int32_t"])
    assert build_cuda.unpack(built) == (b"\x7fELF\n{code}", "_Z1f", ("void*", "int32_t"))


def test_a_kernel_is_compiled_once_for_each_signature_and_device():
    nvrtc()
    given = Signature(("float*", "float*", "int64_t", "double", "bool"))
    path = build_cuda.build(SCALE, "scale", given, "sm_90")
    made = path.stat().st_mtime_ns
    assert path.parent == cache_dir() / "cuda"
    assert build_cuda.build(SCALE, "scale", given, "sm_90").stat().st_mtime_ns == made
    assert build_cuda.build(SCALE, "scale", given, "sm_80") != path


def test_a_compile_error_names_the_source_line():
    nvrtc()
    source = "__global__ void broken(float* x) {\n  x[0] = undeclared;\n}"
    with pytest.raises(KernelBuildError, match=r"broken\.cu\(2\).*undeclared"):
        build_cuda.build(source, "broken", Signature(("float*",)), "sm_90")


@pytest.mark.parametrize(
    ("rule", "line", "source"),
    [
        ("cuda_state", 1, "__device__ int calls;\n__global__ void f(float* x) { x[0] = ++calls; }"),
        ("cuda_state", 2, "__global__ void f(float* x) {\n  static int calls; x[0] = ++calls; }"),
        (
            "cuda_state",
            1,
            "__constant__ int c[1] = {1};\n"
            "__device__ __noinline__ int up(int* p) { return atomicAdd(p, 1); }\n"
            "__global__ void f(float* x) { x[0] = up(const_cast<int*>(c)); }",
        ),
        (
            "cuda_state",
            1,
            "constexpr int c = 1;\n__global__ void f(float* x) { x[0] = ++const_cast<int&>(c); }",
        ),
        (
            "cuda_state",
            2,
            "__global__ void f(float* x) {\n  static const float kept[2] = {1, 2};\n"
            "  float* p = x[0] > 0 ? x : const_cast<float*>(kept); p[1] += 1; }",
        ),
        ("cuda_import", 2, "__global__ void f(float* x) {\n  *(float**)x = (float*)malloc(4); }"),
        ("cuda_import", 1, '__global__ void f(float* x) { printf("a"); x[0] = 1; }'),
        ("cuda_clock", 2, "__global__ void f(float* x) {\n  x[0] = clock64(); }"),
        (
            "cuda_pointer_call",
            1,
            "__global__ void f(float* x) { x[0] = reinterpret_cast<float (*)()>(*(uint64_t*)x)(); }",
        ),
    ],
)
def test_device_code_that_asks_for_more_is_refused(rule, line, source):
    nvrtc()
    with pytest.raises(KernelRefused) as caught:
        build_cuda.build(source, "f", Signature(("float*",)), "sm_90")
    assert (caught.value.rule, caught.value.line) == (rule, line)


@pytest.mark.parametrize(
    "source",
    [
        "__constant__ float t[2] = {1, 2};\n__global__ void f(float* x) { x[0] = t[threadIdx.x & 1]; }",
        "__global__ void f(float* x) {\n  extern __shared__ float s[]; s[0] = x[0]; x[0] = s[0]; }",
        "#include <mma.h>\n#include <math_constants.h>\n#include <cstdint>\n"
        "__global__ void f(float* x) { x[0] = CUDART_INF_F + FLT_MAX + INFINITY + M_PI; }",
        CONSTANTS,
        LIBRARY,
        "__global__ void f(float* x) {\n"
        "  auto twice = [=] __device__ (float a) { return 2 * a; }; x[0] = twice(x[1]); }",
        "__global__ void f(float* x) { const uint i = threadIdx.x; x[i] = sinpif(x[i]) + lgammaf(x[i]); }",
        "#include <cassert>\n#include <cstring>\n__global__ void f(float* x) { unsigned bits;\n"
        "  assert(x[0] > 0); memcpy(&bits, x, 4); x[1] = bits; }",
        "#define MAKE(T) __device__ T id_##T(T a) { return a; }\nMAKE(float)\n"
        "__global__ void f(float* x) { x[0] = id_float(x[1]); }",
        "#include <cuda_pipeline_primitives.h>\n__global__ void f(float* x) { __shared__ float s[4];\n"
        "  __pipeline_memcpy_async(s, x, 16); __pipeline_commit(); __pipeline_wait_prior(0); x[0] = s[3]; }",
    ],
)
def test_device_code_that_asks_for_nothing_is_compiled(source):
    nvrtc()
    assert build_cuda.build(source, "f", Signature(("float*",)), "sm_90").exists()


def empty_elf():
    one_empty_section = bytearray(b"\x7fELF\2\1".ljust(128, b"\0"))
    struct.pack_into("<Q", one_empty_section, 0x28, 64)
    struct.pack_into("<HHH", one_empty_section, 0x3A, 64, 1, 0)
    return bytes(one_empty_section)


def test_a_call_through_a_pointer_is_seen_in_the_ptx():
    direct = ".entry f()\n{\n{ // callseq 0, 0\n call.uni (retval0), \n g, \n (param0);\n}\n}\n"
    through = direct.replace(
        "call.uni", "prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _);\n call"
    )
    build_cuda.check_built(direct, empty_elf(), "")
    with pytest.raises(KernelRefused, match="pointer") as caught:
        build_cuda.check_built(through, empty_elf(), "")
    assert caught.value.rule == "cuda_pointer_call"


ASSERTED = (
    "\n.global .align 1 .b8 $str[2] = {107, 0};\n.entry f(.param .u64 p)\n{\nmov.u64 %rd1, $str;\n"
    "{ // callseq 0, 0\n.reg .b32 temp_param_reg;\n.param .b64 param0;\nst.param.b64 [param0+0], %rd1;\n"
    "call.uni \n__assertfail, \n(\nparam0\n);\n} // callseq 0\n}\n"
)


def test_the_text_of_an_assertion_is_no_state():
    build_cuda.check_built(ASSERTED, empty_elf(), "")
    for other in (
        ASSERTED.replace("call.uni", "st.global.u32 [%rd1], 1;\ncall.uni"),
        ASSERTED.replace("__assertfail", "g"),
    ):
        with pytest.raises(KernelRefused, match=r"`\$str` keeps its value"):
            build_cuda.check_built(other, empty_elf(), "")


def test_a_compiler_that_is_not_there_is_not_the_sources_fault(monkeypatch, tmp_path):
    (tmp_path / "cuda/bindings").mkdir(parents=True)
    (tmp_path / "cuda/bindings/nvrtc.py").write_text("raise ImportError('libnvrtc.so.13: no such file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(build_cuda, "_compiler_version", lambda: str(tmp_path))
    with pytest.raises(PassagentError, match=r"NVRTC does not start; .*: ImportError: libnvrtc") as caught:
        build_cuda.build("__global__ void f(float* x) {}", "f", Signature(("float*",)), "sm_90")
    assert not isinstance(caught.value, KernelBuildError)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("negate", [True, False])
def test_one_template_serves_all_dtypes(dtype, negate):
    kernel = cuda_kernel(SCALE, "scale")
    x = torch.randn(10_007, device="cuda").to(dtype)
    out = torch.empty_like(x)
    kernel[(x.numel() + 255) // 256, 256](out, x, x.numel(), 1.7, negate)
    want = (x.float() * (-1.7 if negate else 1.7)).to(dtype)
    torch.testing.assert_close(out, want, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
def test_integer_tensors_arrive_as_their_type(dtype):
    kernel = cuda_kernel("template <class T> __global__ void f(int64_t* out, const T* x) { *out = *x; }", "f")
    x = torch.tensor(1, device="cuda").to(dtype)
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    kernel[1, 1](out, x)
    assert out.item() == 1


@pytest.mark.gpu
def test_scalars_arrive_as_the_declared_type():
    kernel = cuda_kernel(
        "__global__ void f(double* out, int a, int64_t b, unsigned c, float d, double e, bool g, short h) {\n"
        "  out[0] = a; out[1] = double(b); out[2] = c; out[3] = d; out[4] = e; out[5] = g; out[6] = h; }",
        "f",
    )
    out = torch.zeros(7, dtype=torch.float64, device="cuda")
    kernel[1, 1](out, -3, 1 << 40, (1 << 32) - 1, 0.5, 2, True, -7)
    assert out.tolist() == [-3, 2**40, 2**32 - 1, 0.5, 2, 1, -7]
    with pytest.raises(OverflowError, match="argument 1"):
        kernel[1, 1](out, 1 << 31, 1, 1, 0.5, 2, True, -7)
    with pytest.raises(TypeError, match="argument 1 is a str"):
        kernel[1, 1](out, "1", 1, 1, 0.5, 2, True, -7)
    with pytest.raises(TypeError, match="a kernel takes tensors on the current CUDA device"):
        cuda_kernel("__global__ void f(double* out) {}", "f")[1, 1](out.cpu())


@pytest.mark.gpu
def test_grids_and_blocks_of_one_to_three_dimensions():
    kernel = cuda_kernel(
        "__global__ void f(int* out) {\n  atomicAdd(out, 1);\n"
        "  atomicMax(out + 1, int(gridDim.x + 10 * gridDim.y + 100 * gridDim.z));\n"
        "  atomicMax(out + 2, int(blockDim.x + 10 * blockDim.y + 100 * blockDim.z)); }",
        "f",
    )
    for grid, block, want in [
        (2, 3, [6, 112, 113]),
        ((2,), (3, 2), [12, 112, 123]),
        ((2, 3, 1), (1, 2, 3), [36, 132, 321]),
        (0, 32, [0, 0, 0]),
        ((4, 0), 32, [0, 0, 0]),
    ]:
        out = torch.zeros(3, dtype=torch.int32, device="cuda")
        kernel[grid, block](out)
        assert out.tolist() == want


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1024, 48 * 1024, 64 * 1024, 96 * 1024])
def test_dynamic_shared_memory_beyond_the_default(size):
    kernel = cuda_kernel(
        "__global__ void f(float* out, int n) { extern __shared__ float s[];\n"
        "  for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = i; __syncthreads(); out[0] = s[n - 1]; }",
        "f",
    )
    for _ in range(2):
        out = torch.zeros(1, device="cuda")
        kernel[1, 64, size](out, size // 4)
        assert out.item() == size // 4 - 1


@pytest.mark.gpu
def test_a_product_is_rounded_before_it_is_added():
    kernel = cuda_kernel(
        "__global__ void f(float* x) { x[3] = x[0] * x[1] + x[2]; x[4] = fmaf(x[0], x[1], x[2]); }", "f"
    )
    a = 1.0 + 2.0**-12
    x = torch.tensor([a, a, -(1.0 + 2.0**-11), 0.0, 0.0], device="cuda")
    kernel[1, 1](x)
    assert x[3].item() == (x[0] * x[1] + x[2]).item() == 0.0
    assert x[4].item() == 2.0**-24


@pytest.mark.gpu
def test_kernels_run_on_the_current_stream():
    kernel = cuda_kernel(
        "__global__ void f(float* x) { for (int i = 0; i < 1000; ++i) __nanosleep(1000); x[0] += 1; }", "f"
    )
    x = torch.zeros(1, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kernel[1, 1](x)
        x += 1
        x *= 10
    stream.synchronize()
    assert x.item() == 20


@pytest.mark.gpu
def test_a_launch_that_fails_raises_in_cudas_words():
    kernel = cuda_kernel("__global__ void f(float* x) { x[0] = 1; }", "f")
    with pytest.raises(
        RuntimeError, match=r"f\[\[1, 1, 1\], \[4096, 1, 1\]\]: CUDA error 1: invalid argument"
    ):
        kernel[1, 4096](torch.zeros(1, device="cuda"))


@pytest.mark.gpu
def test_round_to_and_vectors_agree_with_torch():
    kernel = cuda_kernel(
        "template <class T> __global__ void f(T* out, const T* x, float by) {\n"
        "  auto v = load_vec<8>(x + 8 * threadIdx.x);\n"
        "  for (int k = 0; k < 8; ++k) v[k] = T(round_to<T>(float(v[k]) * by) + 1.0f);\n"
        "  store_vec<8>(out + 8 * threadIdx.x, v); }",
        "f",
    )
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randn(256, device="cuda").to(dtype)
        out = torch.empty_like(x)
        kernel[1, 32](out, x, 0.3)
        want = ((x.float() * torch.tensor(0.3, device="cuda")).to(dtype).float() + 1.0).to(dtype)
        assert torch.equal(out, want)
