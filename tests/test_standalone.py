"""`passagent best --standalone`: what is written runs where there is no passagent."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from exported import as_a_model_writes, delivered, is_clean, written

from passagent.errors import UsageError
from passagent.evaluator.candidate import HELPER, MANIFEST, Candidate
from passagent.kernels import cpp_kernel, plain
from passagent.packages.delivery.standalone import helper, standalone

WITHOUT_US = """
import sys

sys.modules["passagent"] = None
import importlib
import torch

for dtype in (torch.bfloat16,):
    written = importlib.import_module(sys.argv[1])
    x, y = torch.randn(2, 3, 70).to(dtype).unbind()
    got = written.replacement_func()(*written.replacement_args(x, y))
    torch.testing.assert_close(got, written.pattern(x, y))
print("equal")
"""


def ran_without_passagent(path) -> subprocess.CompletedProcess[str]:
    """The pass against its pattern, in a process in which `import passagent` fails."""
    [written] = json.loads((path / MANIFEST).read_text())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_US, written],
        cwd=path,
        env=environment | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def cpp_by_a_model(tmp_path):
    return as_a_model_writes("cpp_names_that_look_alike", tmp_path / "task")


def triton_with_a_plan(tmp_path):
    return as_a_model_writes("planned_kernel", tmp_path / "task")


@pytest.mark.parametrize(
    "made",
    [cpp_by_a_model, pytest.param(triton_with_a_plan, marks=pytest.mark.long)],
)
def test_it_runs_without_passagent_and_is_the_same_program(made, recorder, tmp_path):
    task, files = made(tmp_path)
    usual = delivered(files, task, recorder)
    result = delivered(files, task, recorder, stands_alone=True)
    assert result.notes == []
    digests = [
        [plan.digest() for one in each.recording.passes for plan in one.plans] for each in (usual, result)
    ]
    assert digests[0] == digests[1]
    assert result.files.keys() == usual.files.keys() | {HELPER}
    out = written(result, tmp_path / "out")
    is_clean(out)
    done = ran_without_passagent(out)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stdout + done.stderr
    readme = result.files["README.md"]
    assert f"`{HELPER}`" in readme and "passagent.kernels" not in readme
    assert HELPER in Candidate.from_dir(out).files


def test_the_helper_has_what_is_used_and_no_more(tmp_path):
    files = standalone({"a.py": "from passagent.kernels import triton_kernel\n", MANIFEST: '["a"]'})
    assert files["a.py"] == "from passagent_kernels import triton_kernel\n"
    assert files[HELPER].startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert "Apache License 2.0" in files[HELPER] and "def triton_kernel" in files[HELPER]
    assert "cpp_kernel" not in files[HELPER] and "passagent." not in files[HELPER].split('"""')[2]
    assert standalone(files) == files
    both = standalone(files | {"b.py": "def f():\n    from passagent.kernels import cpp_kernel as c\n"})
    assert "    from passagent_kernels import cpp_kernel as c\n" in both["b.py"]
    assert "def triton_kernel" in both[HELPER] and "def cpp_kernel" in both[HELPER]
    nothing = {"a.py": "import torch\n", MANIFEST: '["a"]'}
    assert standalone(nothing) == nothing


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from passagent.kernels import cuda_kernel", "takes cuda_kernel of passagent.kernels"),
        ("import passagent.kernels as k", "has `import passagent.kernels as k`"),
        ("from passagent.kernels.layout import laid", "has `from passagent.kernels.layout import laid`"),
    ],
)
def test_what_cannot_be_done_without_is_said(line, said):
    with pytest.raises(UsageError, match=r"^--standalone: a.py .*; write it without --standalone$") as error:
        standalone({"a.py": f"{line}\n"})
    assert said in str(error.value)


SCALED = """
#include <vector>
#include <iostream>
template <class T> int scaled(const T* x, T* out, int64_t n, double factor, bool negated) {
  std::vector<float> row(n);
  load_f32(row.data(), x, n);
  for (int64_t i = 0; i < n; ++i) out[i] = row[i] * factor * (negated ? -1 : 1);
  return n > 24;
}
"""


def test_a_plain_kernel_computes_and_lays_out_as_the_other():
    def plan(x):
        return {"out": x}, {"n": x.numel(), "factor": 0.5, "negated": True}

    def taken(make):
        return make(SCALED, "scaled", plan, {"x": (0, 2, 1)})

    x = torch.randn(2, 3, 4).bfloat16()
    ours, theirs = taken(plain.cpp_kernel), taken(cpp_kernel)
    for given in (x, x.transpose(1, 2), x[:, ::2]):
        have, want = ours(given), theirs(given)
        assert torch.equal(have, want) and have.stride() == want.stride()
        torch.testing.assert_close(have.float(), -0.5 * given.float(), atol=1e-2, rtol=1e-2)
    for kernel in (ours, theirs):
        with pytest.raises(IndexError, match=r"index out of range in self \(kernel scaled\)"):
            kernel(torch.zeros(2, 3, 5).bfloat16())


@pytest.mark.long
def test_a_template_takes_other_dtypes():
    source = "template <class T> void same(const T* x, T* out, int64_t n) { std::copy(x, x + n, out); }"
    for dtype in (torch.float16, torch.int16, torch.bool):
        x = torch.arange(8).to(dtype)
        out = torch.empty_like(x)
        plain.cpp_kernel(source, "same")(x, out, 8)
        assert torch.equal(x, out)


def test_a_plain_kernel_says_what_is_wrong():
    kernel = plain.cpp_kernel("void f(float* x) { x[0] = missing; }", "f")
    with pytest.raises(RuntimeError, match=r"(?s)f does not compile:.*f.cpp:1:\d+: error: .missing. was not"):
        kernel(torch.zeros(1))
    with pytest.raises(TypeError, match="f: argument 0 is a str"):
        kernel("text")
    with pytest.raises(TypeError, match=r"f: argument 0 is a torch.complex64 tensor"):
        kernel(torch.zeros(1, dtype=torch.complex64))


def test_without_a_compiler_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="f: no no-such-compiler found; install g\\+\\+ or set CXX to it"):
        plain.cpp_kernel("void f(float* x) {}", "f")(torch.zeros(1))


def test_an_evaluation_takes_our_kernels_in_place_of_the_file(recorder, tmp_path):
    """Of ours only: a file of that name that is an author's own is his."""
    task, files = as_a_model_writes("planned_kernel", tmp_path)
    alone = standalone(files)
    assert helper({"triton_kernel"}) == alone[HELPER]
    result = delivered(alone, task, recorder)
    assert result.notes == [] and result.files[HELPER] == alone[HELPER]
    own = alone | {HELPER: "def triton_kernel(*given, **named):\n    raise ValueError('mine')\n"}
    result = delivered(own, task, recorder)
    assert "ValueError: mine" in result.notes[0]
