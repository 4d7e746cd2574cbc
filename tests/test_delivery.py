"""`passagent best`: what is written can be reviewed, tested and merged."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import black
import pytest
from cases import write_task
from exported import TEN, as_a_model_writes, by_the_expert, candidate, delivered, is_clean, written

from passagent.evaluator.candidate import MANIFEST, Candidate
from passagent.evaluator.target import uses_triton
from passagent.packages.delivery.deliver import Delivery
from passagent.tasks import load_task
from passagent.tasks.reader import Task, examples


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
    assert "no plan comes of it" in result.files["README.md"]


QUICK = {("cpu", "masked_mean_pool"), ("cpu", "cpp_lambdas_and_templates"), ("cuda", "planned_kernel")}
"""Those that take under 3 s to write out."""


def exports() -> list[object]:
    """Device and name of each pass."""
    places = [(target, name) for target in TEN for name in TEN[target]]
    return [pytest.param(*place, marks=[] if place in QUICK else pytest.mark.long) for place in places]


@pytest.fixture(scope="module")
def export(recorder, tmp_path_factory):
    """Writes one of the passes; the same again is the same."""

    @functools.cache
    def exported(target: str, name: str) -> tuple[Path, Delivery, dict[str, str]]:
        root = tmp_path_factory.mktemp(name)
        task, files = candidate(name, target, root / "task")
        result = delivered(files, task, recorder, target)
        return written(result, root / "out"), result, files

    return exported


@pytest.mark.parametrize(("target", "name"), exports())
def test_a_pass_reads_as_a_reviewer_wants_it(target, name, export):
    out, result, files = export(target, name)
    assert result.notes == []
    is_clean(out)
    assert Candidate.from_dir(out).files.keys() == files.keys()
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
    if target == "cuda":
        assert uses_triton(Candidate.from_dir(out))
