"""Triton kernels as data: what their IR may hold, and that they compile without a GPU."""

import re

import handmade as h
import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

from passagent.kernels import build_cuda, elf
from passagent.kernels.source_errors import KernelBuildError, KernelRefused
from passagent.plan import compile as compiling
from passagent.plan import ir
from passagent.plan import model as m

GLOBALTIMER = """module {
  tt.func private @llvm.nvvm.read.ptx.sreg.globaltimer() -> i64
  tt.func public @k(%p: !tt.ptr<i64>) {
    %0 = tt.call @llvm.nvvm.read.ptx.sreg.globaltimer() : () -> i64
    tt.store %p, %0 : !tt.ptr<i64>
    tt.return
  }
}"""
EXTERN = (
    '%0 = tt.extern_elementwise %v {{libname = "", libpath = "{}", pure = true, symbol = "{}"}} '
    ": (i64) -> i64"
)
ASSEMBLY = '%0 = tt.elementwise_inline_asm "mov.u64 $0, %globaltimer;" '
BLOCKED = "#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>"
REFUSED = {
    ASSEMBLY + '{constraints = "=l", packed_element = 1 : i32, pure = false} -> i64': "holds inline assembly",
    'tt.print "x" {hex = false, isSigned = array<i32: 0>} : %v : i64': "prints",
    "%0 = tt.int_to_ptr %v : i64 -> !tt.ptr<f32>": "makes an address of a number",
    "%0 = tt.ptr_to_int %p : !tt.ptr<f32> -> i64": "makes a number of an address",
    EXTERN.format("", "vprintf"): "calls 'vprintf' of a foreign library",
    EXTERN.format("/lib/own.bc", "__nv_own"): "calls '__nv_own' of a foreign library",
    EXTERN.format("", "__nvvm_reflect"): "calls '__nvvm_reflect' of a foreign library",
    "%0 = builtin.unrealized_conversion_cast %v : i64 to !tt.ptr<f32>": "builtin.unrealized_conversion_cast",
    "%0 = llvm.intr.stacksave : !llvm.ptr": "uses the operation llvm.intr.stacksave",
    'cf.assert %b, "x"': "uses the operation cf.assert",
    "%0 = arith.addi %v, %v {ttg.maxnreg} : i64": "has the attribute ttg.maxnreg",
    "%0 = arith.addi %v, %v {end = {foo = 1 : i32}} : i64": "an attribute within an attribute",
    "%0 = arith.addi %v, %v {axis = [{passthrough}]} : i64": "an attribute within an attribute",
    f"%0 = arith.constant dense<1> : tensor<32xi32, {BLOCKED}>": "uses #ttg.blocked",
}


def kernel(body):
    """A kernel k of a pointer p, an i64 v and a boolean b, with a line."""
    ttir = (
        f"module {{\n tt.func public @k(%p: !tt.ptr<f32>, %v: i64, %b: i1) {{\n {body}\n tt.return\n }}\n}}"
    )
    return h.triton(ttir, "k", ("*fp32", "i64", "u1"))


def test_a_kernel_becomes_machine_code_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path))
    path = compiling.build_triton(h.triton(), "sm_90")
    cubin, entry, types = build_cuda.unpack(path.read_bytes())
    assert (entry, types) == ("add", ("void*", "void*", "void*", "int32_t"))
    assert any(symbol.name == "add" for symbol in elf.read(cubin).symbols)
    changed = path.stat().st_mtime_ns
    assert compiling.build_triton(h.triton(), "sm_90") == path
    assert path.stat().st_mtime_ns == changed


@pytest.mark.parametrize("body", REFUSED)
def test_what_reaches_out_of_a_kernel_is_refused(body, tmp_path):
    (tmp_path / "k.ttir").write_text(kernel(body).ttir)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    found = ir.problems(ir.parsed(str(tmp_path / "k.ttir"), backend), "k", addresses=False)
    assert any(re.search(REFUSED[body], problem) for problem in found), found


@pytest.mark.parametrize("body", list(REFUSED)[:2])
def test_what_is_refused_is_told(body):
    with pytest.raises(KernelRefused, match=REFUSED[body]):
        compiling.build_triton(kernel(body), "sm_90")


@pytest.mark.parametrize("name", ["llvm.nvvm.read.ptx.sreg.globaltimer", "vprintf"])
def test_a_function_that_is_only_declared_is_refused(name):
    text = GLOBALTIMER.replace("llvm.nvvm.read.ptx.sreg.globaltimer", name)
    with pytest.raises(KernelRefused, match=f"calls the function {name}, which it does not hold"):
        compiling.build_triton(h.triton(text, "k", ("*i64",)), "sm_90")


def test_an_assertion_is_compiled():
    built = compiling.build_triton(kernel('tt.assert %b, "index out of range" : i1'), "sm_90")
    assert b"__assertfail" in built.read_bytes()


def test_assumptions_and_barriers_are_compiled():
    assert compiling.build_triton(kernel("gpu.barrier\nllvm.intr.assume %b : i1"), "sm_90").exists()


def test_addresses_are_numbers_only_where_a_plan_hands_them_over():
    body = "%0 = tt.int_to_ptr %v : i64 -> !tt.ptr<f32>"
    assert compiling.build_triton(kernel(body), "sm_90", addresses=True).exists()
    with pytest.raises(KernelRefused, match="makes an address of a number"):
        compiling.build_triton(kernel(body), "sm_90")


def test_a_text_that_crashes_the_parser_costs_the_kernel_alone():
    deep = "!tt.ptr<" * 12_000 + "f32" + ">" * 20_000
    ttir = f"module {{ tt.func public @k(%p: {deep}) {{ tt.return }} }}"
    with pytest.raises(KernelBuildError, match="k does not compile"):
        compiling.build_triton(h.triton(ttir, "k", ("*fp32",)), "sm_90")


def test_all_errors_of_a_plan_are_told_at_once():
    wrong = [kernel("tt.store %p, %v : !tt.ptr<f32>"), kernel("%0 = llvm.intr.stacksave : !llvm.ptr")]
    broken = h.cpp("void add(float* x) { x[0] = y; }", "add", "float*")
    steps = [h.launch(k, h.value(0), h.number(1), h.a.BoolArg(value=True)) for k in wrong]
    steps.append(h.launch(broken, h.value(1)))
    values = [h.given(device="cuda"), h.given()]
    plan = h.plan([h.value(0), h.value(1)], values, steps, h.value(0), [*wrong, broken])
    with pytest.raises(compiling.PlanBuildError) as caught:
        compiling.compile_plan(plan, "sm_90")
    assert [kernel.entry for kernel, _ in caught.value.failures] == ["k", "k", "add"]
    assert "k does not compile: " in str(caught.value)
    assert "k, line 1: uses the operation llvm.intr.stacksave" in str(caught.value)
    assert "add.cpp:1:29: error" in str(caught.value)


def test_a_signature_that_is_not_the_kernels_is_refused():
    lying = h.triton(types=("*fp32", "*fp32", "*fp16", "i32"))
    with pytest.raises(KernelRefused, match=r"takes .*; its signature says"):
        compiling.build_triton(lying, "sm_90")
    with pytest.raises(KernelRefused, match="is not the kernel other"):
        compiling.build_triton(h.triton(entry="other"), "sm_90")


def test_a_kernel_is_for_the_gpu_that_it_was_recorded_for():
    with pytest.raises(KernelBuildError, match="was recorded for cuda:90"):
        compiling.build_triton(h.triton(), "sm_80")


def test_a_pointer_to_eight_bit_floats_is_one_in_the_signature():
    for dtype, word in (("f8E5M2", "*fp8e5"), ("f8E4M3FN", "*fp8e4nv")):
        ttir = f"module {{ tt.func public @k(%p: !tt.ptr<{dtype}>) {{ tt.return }} }}"
        assert compiling.build_triton(h.triton(ttir, "k", (word,)), "sm_90").exists()


def test_options_reach_the_compiler():
    kernel = h.triton(options=m.Options(num_warps=8, maxnreg=32))
    plan = h.on_gpu(kernel)
    built = compiling.compile_plan(plan, "sm_90")[kernel.digest()]
    assert built.threads == 256
    clusters = h.triton(options=m.Options(num_ctas=2))
    assert compiling.compile_plan(h.on_gpu(clusters), "sm_90")[clusters.digest()].ctas == 2
