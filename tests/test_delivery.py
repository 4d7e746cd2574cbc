"""`passagent best`: what is written can be reviewed, tested and merged."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import black
import pytest
import torch
from cases import write_task
from exported import TEN, as_a_model_writes, by_the_expert, candidate, delivered, is_clean, ran, written

from passagent.evaluator.candidate import MANIFEST, TESTS, Candidate
from passagent.evaluator.target import uses_triton
from passagent.packages.delivery.deliver import Delivery
from passagent.packages.delivery.oracle import describe
from passagent.tasks import load_task
from passagent.tasks.reader import Task, examples


def pytest_in(path: Path) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=path)


@pytest.mark.long
def test_the_test_of_a_pass_finds_a_wrong_kernel(recorder, tmp_path):
    """A bias left out, which is all zeros in the task; and on another GPU-less machine nothing is skipped."""
    task = load_task(examples()["add_layer_norm"])
    out = written(delivered(by_the_expert(task, "cpu"), task, recorder), tmp_path)
    [path] = out.glob("Fuse*.py")
    text = path.read_text()
    assert "bias_table[start + j])" in text
    path.write_text(text.replace("bias_table[start + j])", "0.0f)"))
    done = pytest_in(out)
    assert done.returncode == 1 and "Mismatched elements" in done.stdout and "3 failed" in done.stdout


def test_readme_says_what_is_known(recorder):
    task = load_task(examples()["add_layer_norm"])
    result = delivered(by_the_expert(task, "cpu"), task, recorder)
    readme = result.files["README.md"]
    assert (
        "- `FuseMulAddLayerNorm.py` fuses mul, add and layer_norm: C++. "
        "It serves 3 of the 3 subgraphs.\n\nMeasured on a CPU, 2 threads.\n"
    ) in readme
    assert "AS 1.500 [1.490, 1.510]" in readme and "assume inference" in readme
    assert "| float32 | 1.500 [1.490, 1.510] | 1.0000 | 0.5000 | -5 |" in readme
    assert "`some/model`, node 7 of passagent run abc" in readme and "Apache License 2.0" in readme
    assert re.match(r"plan \w+  FuseMulAddLayerNorm.py", result.files["plan.txt"])
    assert json.loads(result.files["plans.pass/plan.json"])["passes"][0]["name"] == "FuseMulAddLayerNorm"


TWO = """
import torch
from passagent.kernels import cpp_kernel
from both_kernels import fused


def pattern(x):
    return {pattern}


def replacement_args(x):
    return ("{name}", x)


def replacement_func():
    return fused
"""
KERNELS = '''
import torch
from passagent.kernels import cpp_kernel

SOURCE = """
void NAME(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = BODY;
}
"""
twice = cpp_kernel(SOURCE.replace("NAME", "twice").replace("BODY", "2 * x[i]"), "twice")
squash = cpp_kernel(SOURCE.replace("NAME", "squash").replace("BODY", "tanhf(x[i])"), "squash")


@torch.fx.wrap
def fused(route, x):
    out = torch.empty_like(x)
    (twice if route == "Twice" else squash)(out, x, x.numel())
    return out
'''


def two_passes() -> dict[str, str]:
    """One that doubles, one that takes tanh, one that matches nothing, a helper of both and one of nobody."""
    patterns = {"Twice": "x * 2.0", "Squash": "torch.tanh(x)", "Absent": "torch.sin(torch.cos(x))"}
    files = {f"{name}.py": TWO.format(pattern=text, name=name) for name, text in patterns.items()}
    return files | {
        "both_kernels.py": KERNELS,
        "forgotten.py": "",
        MANIFEST: json.dumps(["Twice", "Absent", "Squash"]),
    }


@pytest.fixture
def regions(tmp_path) -> Task:
    return write_task(tmp_path / "regions", "two_regions")


def test_files_are_formatted_and_otherwise_as_the_author_wrote_them(regions, recorder):
    files = two_passes()
    result = delivered(files, regions, recorder)
    for name in ("Twice.py", "both_kernels.py", "forgotten.py"):
        assert result.files[name] == black.format_str(files[name], mode=black.Mode())
    assert result.files[MANIFEST] == files[MANIFEST]
    assert "- `Absent.py` matches nothing in the task." in result.files["README.md"]
    assert result.notes == []


@pytest.mark.parametrize("rounds", [{}, {"rounds": 3}])
def test_readme_gives_the_figure_that_the_run_confirmed(rounds, recorder, tmp_path):
    task, files = as_a_model_writes("planned_kernel", tmp_path)
    result = delivered(files, task, recorder, "cuda", protocol=rounds)
    assert "**AS 1.500 [1.490, 1.510]**" in result.files["README.md"]
    assert ("geometric mean over 3 rounds" in result.files["README.md"]) == bool(rounds)


def test_what_cannot_be_recorded_is_written_as_it_is(recorder, tmp_path):
    task, files = as_a_model_writes("cpp_lambdas_and_templates", tmp_path)
    name = "cpp_lambdas_and_templates.py"
    broken = files | {name: files[name] + "\nraise ValueError('no')\n"}
    result = delivered(broken, task, recorder)
    assert {key: result.files[key] for key in broken} == broken
    assert "no plan comes of it" in result.files["README.md"] and TESTS not in result.files


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.ones(3), "Input((3,), torch.float32, 1.0, 0.2, 0.5, 1.5)"),
        (torch.tensor([0.0, -1e9]), "Input((2,), torch.float32, either=(-1000000000.0, 0.0,))"),
        (torch.arange(12).view(3, 4).t(), "Input((4, 3), torch.int64, least=0, most=11, stride=(1, 4))"),
        (torch.tensor([1.23456, 2.0, 4.0]), "Input((3,), torch.float32, 2.41, 1.17, 1.23, 4.0)"),
        (torch.tensor([True, False]), "Input((2,), torch.bool)"),
        (torch.empty(0, 2), "Input((0, 2), torch.float32)"),
        (torch.tensor([float("-inf")]), 'Input((1,), torch.float32, either=(float("-inf"),))'),
    ],
)
def test_a_tensor_is_described_by_what_its_values_are_like(tensor, text):
    assert describe(tensor) == text


QUICK = {("cpu", "masked_mean_pool"), ("cpu", "cpp_lambdas_and_templates"), ("cuda", "planned_kernel")}
"""Those that take under 3 s to write out."""


def exports() -> list[object]:
    """Device and name of each pass."""
    places = {(target, name): None for target in TEN for name in (*TEN[target], *examples())}
    return [pytest.param(*place, marks=[] if place in QUICK else pytest.mark.long) for place in places]


@pytest.fixture(scope="module")
def export(recorder, tmp_path_factory):
    """Writes one of the passes; the same again is the same."""

    @functools.cache
    def exported(target: str, name: str, stands_alone: bool = False) -> tuple[Path, Delivery, dict[str, str]]:
        root = tmp_path_factory.mktemp(name)
        task, files = candidate(name, target, root / "task")
        result = delivered(files, task, recorder, target, stands_alone)
        return written(result, root / "out"), result, files

    return exported


@pytest.mark.parametrize(("target", "name"), exports())
def test_a_pass_reads_as_a_reviewer_wants_it(target, name, export):
    out, result, files = export(target, name)
    assert result.notes == []
    is_clean(out)
    assert Candidate.from_dir(out).files.keys() == files.keys()  # the test is no part of the candidate
    for file in Candidate.from_dir(out).files:
        if not file.endswith(".py"):
            continue
        if name in examples():
            operators = re.findall(r"[A-Z][a-z0-9]+", file.removesuffix(".py").removeprefix("Fuse"))
            assert f"fused_{'_'.join(operators).lower()}(" in (out / file).read_text()
    readme = (out / "README.md").read_text()
    assert re.search(r"fuses [\w, ]+: ", readme) and re.search(r"serves \d of the \d ", readme)
    for said in ("| subgraph | dtype | speedup [95%] |", "`plan.txt`", "Apache License 2.0", "`some/model`"):
        assert said in readme
    assert (out / "plan.txt").read_text().startswith("plan ")
    assert f'DEVICE = "{target}"' in (out / TESTS).read_text()
    if target == "cuda":
        assert uses_triton(Candidate.from_dir(out))


OWN_TESTS = [
    *(pytest.param("cpu", name, False, marks=pytest.mark.long) for name in TEN["cpu"]),
    *(pytest.param("cuda", name, alone, marks=pytest.mark.gpu) for name in TEN["cuda"] for alone in (0, 1)),
]


@pytest.mark.parametrize(("target", "name", "stands_alone"), OWN_TESTS)
def test_a_pass_passes_its_own_test(target, name, stands_alone, export):
    done = pytest_in(export(target, name, bool(stands_alone))[0])
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout
    assert re.search(r"[1-9]\d* passed", done.stdout)
