"""cpp_kernel: what arrives in C++, half types bit for bit, and what a source may not ask for.

Of each rule one attack goes through the evaluator (tests/adversarial/cpp_*), and so do sources that must
pass (tests/honest/cpp_*); here are the borders of the rules, and the lines that refusals name.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from passagent.errors import PassagentError
from passagent.kernels import build as cpp_build
from passagent.kernels import build_cuda, cpp_kernel, objects, toolchain
from passagent.kernels.build import Signature
from passagent.kernels.source_errors import KernelBuildError, KernelRefused
from passagent.sandbox.limits import MAX_SOURCE, ToolLimits

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
    want, eps = getattr(torch, name[:-1])(x.double()), torch.finfo(torch.float32).eps
    assert torch.equal(out.isinf(), want.isinf())
    finite = want.isfinite()
    torch.testing.assert_close(out[finite].double(), want[finite], rtol=8 * eps, atol=8 * eps)


def test_a_compile_error_names_the_source_line():
    kernel = cpp_kernel("void broken(float* x) {\n  x[0] = undeclared;\n}", "broken")
    with pytest.raises(KernelBuildError, match=r"broken\.cpp:2"):
        kernel(torch.zeros(1))


def test_arguments_of_another_kind_are_named():
    with pytest.raises(TypeError, match="argument 2 is a str"):
        SCALE(torch.zeros(1), torch.zeros(1), "4", 1.0, False)
    with pytest.raises(TypeError, match="an int beyond 64 bits"):
        SCALE(torch.zeros(1), torch.zeros(1), 1 << 70, 1.0, False)


BODY = "void f(float* x) { x[0] = 1; }"


@pytest.mark.parametrize(
    ("rule", "line", "source"),
    [
        ("cpp_include", 1, f"#include <unistd.h>\n{BODY}"),
        ("cpp_include", 3, f"/* one */\n# /* two */ include /*\n*/ <unistd.h>\n{BODY}"),
        ("cpp_include", 1, f"#include_next <unistd.h>\n{BODY}"),
        ("cpp_asm", 2, 'void f(float* x) {\n  __asm__ volatile("syscall"); }'),
        ("cpp_asm", 3, '#define G(a, b) a##b\nvoid f(float* x) {\n  G(as, m)("syscall"); }'),
        ("cpp_state", 1, "thread_local float kept;\nvoid f(float* x) { x[0] = kept; }"),
        ("cpp_state", 3, "void f(float* x) {\n\n  static int calls; x[0] = ++calls; }"),
        ("cpp_import", 2, 'extern "C" int system(const char*);\nvoid f(float* x) { x[0] = system("true"); }'),
        ("cpp_import", 1, "void f(float* x) { std::_Exit(1); }"),
        ("cpp_instruction", 2, "void f(float* x) {\n  x[0] = __builtin_ia32_rdtsc(); }"),
        ("cpp_name", 2, 'void f(float* x) {\n  __attribute__((section(".x"))) static int n; x[0] = ++n; }'),
        ("cpp_name", 3, 'extern "C" void run(void*);\n\n#pragma redefine_extname run GOMP_barrier\n' + BODY),
    ],
)
def test_sources_that_ask_for_more_are_refused(rule, line, source):
    with pytest.raises(KernelRefused) as caught:
        cpp_kernel(source, "f")(torch.zeros(1))
    assert (caught.value.rule, caught.value.line) == (rule, line)


ATTACKS = re.findall(
    r"^//// (\w+): (\w+)\n(.+?)(?=^////|\Z)",
    Path(__file__).with_name("refused_kernels.cpp").read_text(),
    re.MULTILINE | re.DOTALL,
)


@pytest.mark.parametrize(("name", "rule", "source"), ATTACKS, ids=[name for name, *_ in ATTACKS])
def test_an_attack_in_cpp_is_refused(name, rule, source):
    with pytest.raises(KernelRefused) as caught:
        cpp_build.build(source, "add_relu", Signature(("bfloat16*",) * 3 + ("int64_t",)))
    assert caught.value.rule == rule
    assert re.search(r"[;:,] \w+", str(caught.value)), "it says what to do instead"


ELSEWHERE = {
    "beside malloc": "auto* g = (void (*)())((char*)&malloc + 64); g();",
    "a virtual function of a forged table": "void* t[] = {x, x}; ((Step*)&t)->apply();",
    "a computed goto": "void* t[] = {&&a, &&b}; goto *(void*)((char*)t[*x > 0] + 1); a: *x = 1; b: return;",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="pointers are looked at on x86-64 only")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_pointer_that_leads_elsewhere_ends_the_process(name):
    source = "struct Step { virtual void apply() = 0; };\n__attribute__((noinline)) void helper() {}\n"
    source += f"void f(float* x) {{ {ELSEWHERE[name]} }}"
    path = cpp_build.build(source, "f", Signature(("float*",)))
    code = "import ctypes, sys; room = ctypes.c_void_p(ctypes.addressof(ctypes.create_string_buffer(4096)))\n"
    code += "given = (ctypes.c_void_p * 1)(ctypes.addressof(room))\n"
    code += "ctypes.CDLL(sys.argv[1]).passagent_entry(given)"
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False, stderr=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGILL


HONEST = {
    "message of a static_assert": 'static_assert(sizeof(int) == 4, "an int\'s size; /* 4 */ \\n"); x[0] = 7;',
    "list": "std::list<float> l = {9, 7}; l.sort(); x[0] = l.front();",
    "bessel function": "x[0] = 7 + 0 * (j0(1.0) + j0f(1.0f));",
    "sort with a named function": "std::sort(x, x + n, larger); x[0] = 7;",
    "function as a callback": "x[0] = 7 + each(x, n, [=](float v) { return v * n; });",
    "table of functions": "x[0] = 7 + 0 * TABLE[n & 1](x[0], 1);",
    "virtual method": "Twice twice; Same same; x[0] = 7 + 0 * (n & 1 ? (const Step&)twice : same).apply(n);",
    "sections": "\n#pragma omp parallel sections\n{\n#pragma omp section\nx[0] = 7;\n}\n",
    "string of a macro": "x[0] = 7 + 0 * NAMES[n & 1][0];",
    "raw string": 'static const char* const t = R"x(asm "( )x"; x[0] = 7 + 0 * t[n & 1];',
    "attribute with a message": "x[0] = 7 + 0 * old();",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="pointers are looked at on x86-64 only")
def test_honest_designs_are_accepted():
    """By what the compiler made of it, whatever its text looks like."""
    designs = "".join(
        f"x[0] = 0; {{ {text} }} seen[{place}] = x[0];\n" for place, text in enumerate(HONEST.values())
    )
    source = (
        """
#include <list>
#include <functional>
#if 0
This isn't code: don't compile "it
#elif !defined(__GNUC__)
#error this isn't GCC's
#endif
#define NAME(x) #x
[[deprecated("don't; use // another")]] static int old() { return 1; }
static const char* const NAMES[] = {NAME(a b), NAME(c)};
static bool larger(float a, float b) { return a > b; }
static bool smaller(float a, float b) { return a < b; }
static bool (*const TABLE[])(float, float) = {larger, smaller};
static float each(float* x, int64_t n, const std::function<float(float)>& g) {
  for (int64_t i = 0; i < n; ++i) x[i] = g(x[i]);
  return 0;
}
struct Step { virtual float apply(float v) const = 0; };
struct Twice : Step { float apply(float v) const override { return 2 * v; } };
struct Same : Step { float apply(float v) const override { return v; } };
"""
        + f"void f(float* x, float* seen, int64_t n) {{ {designs} }}"
    )
    x = torch.zeros(64)
    seen = torch.zeros(len(HONEST))
    cpp_kernel(source, "f")(x, seen, 64)
    assert dict(zip(HONEST, seen.tolist(), strict=True)) == dict.fromkeys(HONEST, 7.0)


def test_a_call_that_no_function_fits_tells_its_types():
    kernel = cpp_kernel("void f(const float* x, int64_t n) {}", "f")
    with pytest.raises(KernelBuildError, match=r"called as f\(bfloat16\*, int64_t\); a template"):
        kernel(torch.zeros(1, dtype=torch.bfloat16), 1)


def test_a_kernel_that_catches_is_told_what_to_do():
    source = "void f(float* x) {\n  try { x[0] = 1; }\n  catch (int) { x[0] = 2; }\n}"
    with pytest.raises(KernelBuildError, match=r"f\.cpp:3.*check its arguments in Python"):
        cpp_kernel(source, "f")(torch.zeros(1))


def test_habitual_headers_are_empty():
    source = "#include <iostream>\nvoid f(float* x) {\n  std::cout << x[0];\n}"
    with pytest.raises(KernelBuildError, match=r"cout(.|\n)*<iostream>: empty for a kernel"):
        cpp_kernel(source, "f")(torch.zeros(1))


def test_headers_of_torch_are_told_apart():
    with pytest.raises(KernelRefused, match="take pointers and sizes"):
        cpp_kernel(f"#include <ATen/ATen.h>\n{BODY}", "f")(torch.zeros(1))


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ('x[0] = __builtin_cpu_supports("avx2");', "#if defined"),
        ("omp_set_num_threads(2); x[0] = 1;", "num_threads(...)"),
        ('x[0] = std::printf("one");', "prints nothing"),
    ],
)
def test_a_refused_call_says_what_to_write_instead(text, instead):
    with pytest.raises(KernelRefused, match=re.escape(instead)):
        cpp_kernel(f"void f(float* x) {{ {text} }}", "f")(torch.zeros(1))


LOOKS_LIKE_IT = [
    "#define TWICE(x) \\\n  ((x) + (x))\nvoid f(float* x) { x[0] = TWICE(3.5f); }",
    '// asm("nop") and #include <unistd.h>\n/* "\n#line 3 */ void f(float* x) { x[0] = 7; }',
    "void f(float* x) { const char c = '\"', d = '\\\\'; x[0] = 7 + 0 * (c + d) + 1'000 * 0; }",
    "#define MAKE(T) void make_##T(T* x) { *x = 7; }\nMAKE(float)\nvoid f(float* x) { make_float(x); }",
    '#define EACH _Pragma("omp simd")\nvoid f(float* x) { EACH for (int i = 0; i < 1; ++i) x[i] = 7; }',
    "static const float t[] = {3, 4};\nvoid f(float* x) { x[0] = t[0] + t[1 + int(x[0])]; }",
    'static const char* const t[] = {"a", "b"};\nvoid f(float* x) { x[0] = t[int(x[0])][0] - 90; }',
    "void f(float* x) {\n#pragma omp critical(one)\n  x[0] += 7; }",
    "void f(float* x) { assert(x[0] > 1); x[0] = 7; }",
    "void f(float* x) { const int n = x[0] + 3; float row[n]; for (int i = 0; i < n; ++i) row[i] = i + 5; "
    "x[0] = row[n - 1]; }",
]


def test_sources_that_only_look_like_it_are_accepted():
    """Each in a namespace of its own, of one kernel."""
    spaces = [f"namespace n{place} {{\n{source}\n}}\n" for place, source in enumerate(LOOKS_LIKE_IT)]
    calls = "".join(f"n{place}::f(x + {place}); " for place in range(len(LOOKS_LIKE_IT)))
    x = torch.zeros(len(LOOKS_LIKE_IT))
    cpp_kernel(f"#include <cassert>\n{''.join(spaces)}void f(float* x) {{ {calls} }}", "f")(x)
    assert x.tolist() == [7] * len(LOOKS_LIKE_IT)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="attributes of GCC for x86-64")
@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (
            "cpp_pointer_call",
            '__attribute__((indirect_branch("thunk-inline"))) void k(void (*f)()) { f(); f(); }',
        ),
        ("cpp_pointer_call", "void k(void** to) { __builtin_longjmp(to, 1); }"),
        ("cpp_pointer_call", "void k(long by, void* to) { __builtin_eh_return(by, to); }"),
        ("cpp_name", '__attribute__((indirect_branch("thunk"))) void k(void (*f)()) { f(); f(); }'),
        ("cpp_state", '__attribute__((section(".text.t"), used)) static const char table[] = {15, 49};'),
        ("cpp_state", '__attribute__((section(".data.rel.rows"), used)) static int calls;'),
        ("cpp_state", '__attribute__((section("extra"), used)) static const char table[] = {15, 49};'),
    ],
)
def test_what_the_compiler_makes_of_an_attribute_is_seen_in_the_object(rule, source, tmp_path):
    """Also where no text rule and no refused word stood in the way."""
    (tmp_path / "k.cpp").write_text(source)
    command = [toolchain.compiler(), *toolchain.FLAGS, "-c", "k.cpp", "-o", "k.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with pytest.raises(KernelRefused) as refused:
        objects.check_object(tmp_path / "k.o", source, "k.cpp")
    assert refused.value.rule == rule


def test_a_name_that_doubles_is_not_written_out():
    """A type of pairs, each of two like the one before, made a message of 142 MB."""
    pairs = "".join(f"using T{n + 1} = P<T{n}, T{n}>;\n" for n in range(15))
    source = f"template <class A, class B> struct P {{}};\nusing T0 = int;\n{pairs}void keep(T15*);\n"
    source += "void f(float* x, int64_t n) { keep(nullptr); }"
    with pytest.raises(KernelRefused) as refused:
        cpp_build.build(source, "f", Signature(("float*", "int64_t")))
    assert (refused.value.rule, len(str(refused.value)) < 1000) == ("cpp_import", True)
    (name,) = objects.demangled(["_ZNSt6vectorIfSaIfEE9push_backERKf"])
    assert name == "std::vector<float, std::allocator<float> >::push_back(float const&)"


def build_cpp(source):
    return cpp_build.build(source, "f", Signature(("float*",)))


@pytest.mark.parametrize("check", [build_cpp, build_cuda.check_source])
def test_a_source_has_an_end(check):
    with pytest.raises(KernelRefused) as refused:
        check("/" * (MAX_SOURCE + 1))
    assert refused.value.rule == "too_large"


def test_equal_sources_are_compiled_once():
    source = f"template <class T> void fill(T* x, int64_t n) {{ x[n] = {time.time_ns() % 100_000}; }}"
    signature = Signature(("float*", "int64_t"))
    first = cpp_build.build(source, "fill", signature)
    made = first.stat().st_mtime_ns
    assert cpp_build.build(source, "fill", signature) == first
    assert first.stat().st_mtime_ns == made
    assert cpp_build.build(source, "fill", Signature(("double*", "int64_t"))) != first


def test_a_compiler_that_takes_too_long_is_killed_with_its_children(tmp_path):
    started = time.monotonic()
    with pytest.raises(KernelBuildError, match="took more than 1 s"):
        toolchain.run(["sh", "-c", "sleep 600 & wait"], "slow", tmp_path, ToolLimits(wall_s=1.0))
    assert time.monotonic() - started < 300


def test_a_machine_without_gcc_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    toolchain.compiler.cache_clear()
    try:
        with pytest.raises(PassagentError, match="install g\\+\\+"):
            toolchain.compiler()
    finally:
        toolchain.compiler.cache_clear()


@pytest.mark.parametrize(
    ("name", "high", "least"),
    [("exp_f32", 88.72, 2.0**-149), ("exp_below_f32", 0.0, 2.0**-149), ("exp_added_f32", 88.72, 2.0**-125)],
)
def test_exponentials_are_exact_to_a_unit_in_the_last_place(name, high, least):
    kernel = cpp_kernel(
        f"""void power(float* x, int64_t n) {{
           #pragma omp simd
             for (int64_t i = 0; i < n; ++i) x[i] = {name}(x[i]);
           }}""",
        "power",
    )
    edges = torch.tensor([-0.0, -104.1, -132.4, -176.0, -1e30, -torch.inf, torch.nan])
    more = torch.tensor([88.7228, 88.73, 1e30, torch.inf])
    given = torch.cat([torch.linspace(-200, high, 200_000), edges, more[: 4 * (high > 0)]])
    x, exact = given.clone(), given.double().exp()
    kernel(x, x.numel())
    unit = torch.frexp(exact.float()).exponent.sub(24).clamp(min=-149).double().exp2()
    seen = (exact <= torch.finfo(torch.float32).max) & (exact >= least)
    assert ((x.double() - exact).abs() / unit)[seen].max() < 0.9
    assert (x[exact < least] <= least).all() and (x[exact < 2.0**-151] == 0).all()
    assert x[exact > torch.finfo(torch.float32).max].isposinf().all() and x[given.isnan()].isnan().all()


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
