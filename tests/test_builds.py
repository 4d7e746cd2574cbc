"""Kernels of a shut-in worker are built by the referee: C++, and Triton's for a GPU that need not be here."""

import base64
import os
import re
import subprocess

import pytest
from test_sandbox import attempt

from passagent.errors import InfrastructureError
from passagent.evaluator.runner import build_requests, kernel_builds
from passagent.evaluator.runner.process import Zygote
from passagent.kernels import toolchain
from passagent.sandbox import privileges, sandbox


@pytest.fixture(scope="module")
def zygote():
    one = Zygote("cpu", 1)
    one.load_dynamo()  # which imports Triton: a zygote of a GPU has it
    yield one
    one.close()


def answer(request):
    return kernel_builds.answer(build_requests.build_request({"build": request}))


CPP = '''
import torch
from passagent.kernels import cpp_kernel
kernel = cpp_kernel("""
template <class T> void twice(T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] + x[i];
}
""", "twice")
x = torch.arange(4.0)
kernel(x, 4)
raise RuntimeError(x.tolist())
'''


def test_a_cpp_kernel_is_built_outside_and_runs_inside(zygote):
    assert "[0.0, 2.0, 4.0, 6.0]" in attempt(zygote, CPP)[0]


def test_a_compilers_message_has_the_sources_lines(zygote):
    message, _ = attempt(zygote, CPP.replace("x[i] + x[i]", "y[i]"))
    assert "twice.cpp:3" in message
    assert "‘y’ was not declared" in message


TRITON = """
import sys, types
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
{setup}
@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * {factor}, mask=i < n)

source = triton.compiler.ASTSource(double, {{"x": "*fp32", "out": "*fp32", "n": "i32"}}, {{"BLOCK": 64}})
built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={options})
raise RuntimeError(built.asm["cubin"][:20].hex())
"""
CUDA_ELF = "7f454c46"


def triton_kernel(factor, options="{}"):
    return TRITON.format(factor=factor, options=options, setup="")


def test_triton_kernels_are_assembled_outside_once_for_all(zygote, monkeypatch, tmp_path):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path))
    code = triton_kernel(2.0)
    message, log = attempt(zygote, code, 16.0)
    assert CUDA_ELF in message, message + log
    assert "be00" in message.partition(CUDA_ELF)[2]  # the machine: CUDA
    assert len(list((tmp_path / "ptx").glob("*.cubin"))) == 1
    monkeypatch.setattr(toolchain, "run", None)  # nothing is built any more
    assert attempt(zygote, code, 16.0)[0] == message


def test_an_option_that_is_no_kernels_business_is_a_compile_error(zygote):
    message, _ = attempt(
        zygote, triton_kernel(3.0, "{'ptx_options': '--generate-line-info --verbose'}"), 16.0
    )
    assert "PTXASError" in message
    assert "'--generate-line-info' is not among those that a kernel may set" in message


PTX = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n"
USUAL = ["-lineinfo", "-v", "--gpu-name=sm_80"]


def test_ptx_is_assembled_and_errors_are_ptxas_own():
    data = base64.b64decode(answer({"kind": "ptxas", "ptx": PTX, "options": USUAL})["object"])
    assert data[:4] == b"\x7fELF"
    failed = answer({"kind": "ptxas", "ptx": PTX + "nonsense", "options": USUAL})["failed"]
    assert "kernel.ptx, line 5" in failed


@pytest.mark.parametrize(
    "option",
    ["-o", "/etc/passwd", "--options-file=/etc/passwd", "-optf", "--opt-level", "3", "--keep", "-I/", ""],
)
def test_ptxas_gets_no_free_option(option):
    request = {"kind": "ptxas", "ptx": PTX, "options": [*USUAL, option]}
    assert "is not among those" in answer(request)["failed"]


@pytest.mark.parametrize(
    "request_",
    [
        {"kind": "sh", "source": "true"},
        {},
        {"kind": "cpp", "source": "void f() {}"},
        {"kind": "cuda_utils", "source": "int evil;"},
        {"kind": "ptxas", "ptx": PTX, "options": []},
        {"kind": "launcher", "signature": ['i32"); system("x'], "descriptors": []},
        {"kind": "launcher", "signature": [{"i32": 1}], "descriptors": []},
        {"kind": "launcher", "signature": 3, "descriptors": []},
    ],
)
def test_a_request_that_makes_no_sense_is_a_broken_protocol(request_):
    with pytest.raises(ValueError, match=r"validation error|no type of|without an architecture"):
        answer(request_)


def test_a_cuda_kernels_source_is_checked_first():
    request = {"kind": "cuda", "name": "f", "types": ["float*"], "arch": "sm_90"}
    reply = answer(request | {"source": "#include <unistd.h>\n__global__ void f(float* x) {}"})
    assert reply["refused"]["rule"] == "cuda_include"


def test_types_of_a_launcher_are_tritons_words():
    words = [
        "*fp32",
        "*kbf16",
        "i1",
        "u64",
        "constexpr",
        "nvTmaDesc",
        "tensordesc<fp16[64, 32]>",
        ["i32", ["fp64"]],
    ]
    assert kernel_builds._types(words) == (*words[:-1], ("i32", ("fp64",)))


@pytest.fixture
def libcuda(tmp_path, monkeypatch):
    """A libcuda to link against where there is no driver: only its name matters to the linker."""
    from triton.backends.nvidia import driver

    subprocess.run(
        [
            "gcc",
            "-shared",
            "-x",
            "c",
            "/dev/null",
            "-o",
            str(tmp_path / "libcuda.so.1"),
            "-Wl,-soname,libcuda.so.1",
        ],
        check=True,
    )
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(tmp_path))
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path / "cache"))
    for function in (driver.libcuda_dirs, driver.library_dirs):
        function.cache_clear()
    yield driver
    for function in (driver.libcuda_dirs, driver.library_dirs):
        function.cache_clear()


def test_tritons_driver_module_is_built_from_tritons_own_source(libcuda):
    data = base64.b64decode(answer({"kind": "cuda_utils"})["object"])
    assert b"PyInit_cuda_utils" in data


def test_a_launcher_is_generated_from_types_alone(libcuda):
    if not hasattr(libcuda, "make_launcher"):
        pytest.skip("this Triton has one launcher for all kernels")
    request = {"kind": "launcher", "signature": ["*fp32", "i32", "constexpr", "fp32"], "descriptors": []}
    assert b"PyInit___triton_launcher" in base64.b64decode(answer(request)["object"])
    assert "cannot be made" in answer(request | {"signature": ["i77"]})["failed"]


INSIDE = """
import torch, triton
from triton import knobs
from triton.backends.nvidia import driver
from triton.runtime.build import compile_module_from_src
{code}
"""


def test_other_c_code_is_not_built_for_triton(zygote):
    code = "compile_module_from_src(src='int evil;', name='evil')"
    message, _ = attempt(zygote, INSIDE.format(code=code))
    assert "evil: the evaluator does not build this module of Triton's" in message


MODULES = {
    "cuda_utils": "driver.CudaUtils()",
    "launcher": "source = driver.make_launcher({}, {0: '*fp32', 1: 'i32'}, None)\n"
    "compile_module_from_src(src=source, name='__triton_launcher')",
}


@pytest.mark.parametrize("name", MODULES)
def test_triton_asks_for_its_own_modules(name, zygote, libcuda):
    """As far as loading one, which needs a real driver."""
    if name == "launcher" and not hasattr(libcuda, "make_launcher"):
        pytest.skip("this Triton has one launcher for all kernels")
    code = f"os.environ.update(TRITON_LIBCUDA_PATH={str(libcuda.libcuda_dirs()[0])!r})\n{MODULES[name]}"
    message, _ = attempt(zygote, INSIDE.format(code=code))
    assert re.search(r"undefined symbol: cu|cannot open shared object file", message), message


def test_a_source_that_speaks_of_a_full_disk_does_not_compile():
    source = 'template <class T> void f(T* x) { static_assert(sizeof(T) == 3, "No space left on device"); }'
    said = answer({"kind": "cpp", "source": source, "name": "f", "types": ["float*"]})
    assert "No space left on device" in said["failed"]


def test_a_full_disk_is_not_the_candidates_fault(tmp_path):
    """On a real disk of 64 KB, in a mount namespace of a child's own."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            privileges.own_users()
            sandbox._own_mounts(tmp_path, sandbox.Limits(scratch=1 << 16))
            os.environ["PASSAGENT_CACHE"] = str(tmp_path)
            request = {"kind": "ptxas", "ptx": PTX + "// " + "x" * (1 << 17), "options": USUAL}
            try:
                answer(request)
            except InfrastructureError as error:
                os.write(write, str(error).encode())
        except OSError as error:
            os.write(write, f"no mount namespace: {error}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    said = os.read(read, 1 << 16).decode()
    os.close(read)
    if said.startswith("no mount namespace"):
        pytest.skip(said)
    assert "disk is full; free some space" in said


@pytest.mark.parametrize("kind", ["launch", pytest.param("cuda_utils", marks=pytest.mark.gpu)])
def test_what_the_first_kernel_on_a_gpu_asks_for_is_made_ahead(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_CACHE", str(tmp_path))
    kernel_builds.prepare()

    def run(*_):
        raise AssertionError("a compiler is run")

    monkeypatch.setattr(toolchain, "run", run)
    assert len(base64.b64decode(answer({"kind": kind})["object"])) > 1000


@pytest.mark.gpu
def test_a_triton_kernel_is_built_outside_and_runs_on_the_gpu():
    """Everything at once: ptxas, launcher and driver module are the referee's, the worker has no compiler."""
    one = Zygote("cuda", 1)
    code = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

x = torch.arange(100.0, device="cuda")
out = torch.empty_like(x)
double[(2,)](x, out, 100, BLOCK=64)
torch.cuda.synchronize()
raise RuntimeError(out.sum().item())
"""
    try:
        message, log = attempt(one, code, None)
        assert "9900.0" in message, message + log
    finally:
        one.close()
