"""The kernels that knowledge documents show are compiled: Triton's for sm_90 and gfx942, C++, CUDA C++."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from passagent.experience import knowledge
from passagent.kernels import build, build_cuda
from passagent.kernels.build import Signature

pytestmark = pytest.mark.long
SIZES = {"BLOCK": 256, "K": 16, "DIES": 8, "PARTS": 256, "PROGRAMS": 264, "COLS": 128, "ROWS": 8, "T": 32}
"""Of constants; others are 64."""
BY_KERNEL = {("tile", "BLOCK"): 64} | {(one, "K"): 3 for one in ("max_pool2d", "depthwise", "window_sum")}
TYPES = {"ids_ptr": "*i64", "target_ptr": "*i64", "part_ptr": "*fp32", "eps": "fp32", "scale": "fp32"}
"""Of arguments; other pointers are to bfloat16, other numbers are ints."""


def shown(language: str) -> list[tuple[str, str]]:
    """Path and text of every piece of a language in the documents about hardware."""
    return [
        (path, code)
        for path, text in sorted(knowledge.documents().items())
        if path.startswith("hardware/")
        for code in re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


TRITON = [one for one in shown("python") if "@triton.jit" in one[1]]
CPP = [(path, code) for path, code in shown("cpp") if path.startswith("hardware/cpu/")]
CUDA = [(path, code) for path, code in shown("cpp") if path.startswith("hardware/nvidia/")]


def test_each_language_is_shown() -> None:
    assert len(TRITON) > 25 and len(CPP) > 8 and CUDA


@pytest.mark.parametrize(("path", "code"), TRITON, ids=[path for path, _ in TRITON])
def test_triton(path: str, code: str, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    compiler = pytest.importorskip("triton.backends.compiler")
    file = tmp_path / "shown.py"
    file.write_text(f"import triton\nimport triton.language as tl\n\n{code}")
    spec = importlib.util.spec_from_file_location("shown", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernels: list[Any] = [one for one in vars(module).values() if isinstance(one, triton.JITFunction)]
    targets = {"nvidia": ("cuda", 90, 32), "amd": ("hip", "gfx942", 64)}
    target = compiler.GPUTarget(*targets[path.split("/")[1]])
    for kernel in kernels:
        constants = {
            one.name: BY_KERNEL.get((kernel.__name__, one.name), SIZES.get(one.name, 64))
            for one in kernel.params
            if one.is_constexpr
        }
        types = {
            one: TYPES.get(one, "*bf16" if one.endswith("_ptr") else "i32") for one in kernel.arg_names
        } | dict.fromkeys(constants, "constexpr")
        source = triton.compiler.ASTSource(kernel, types, constants)
        assert triton.compile(source, target=target).asm


def parameters(code: str) -> tuple[str, list[str]]:
    """Name and C types of the kernel of a text; T is float."""
    found = re.search(r"\b(\w+)\(([^)]*)\) \{", code)
    assert found is not None
    words = [
        re.sub(r"\bconst |\bT\b", lambda m: "float" if m[0] == "T" else "", p) for p in found[2].split(",")
    ]
    return found[1], [re.sub(r"\s*\w+$", "", word.strip()).replace(" ", "") for word in words]


@pytest.mark.parametrize(("path", "code"), CPP, ids=[path for path, _ in CPP])
def test_cpp(path: str, code: str) -> None:
    if not code.startswith(("void", "int ", "template")):
        code = f"{code}\nvoid used(const float* x, float* out, int64_t n) {{ *out = sum_of(x, n); }}"
        name, types = "used", ["float*", "float*", "int64_t"]
    else:
        name, types = parameters(code)
    assert build.build(code, name, Signature(tuple(types))).exists()


@pytest.mark.parametrize(("path", "code"), CUDA, ids=[path for path, _ in CUDA])
def test_cuda(path: str, code: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    name, types = parameters(code)
    given = ["int64_t" if one == "int" else one for one in types]
    assert build_cuda.build(code, name, Signature(tuple(given)), "sm_90").exists()
