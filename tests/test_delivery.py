"""`passagent best`: what is written can be reviewed, tested and merged."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import HERE, write_task
from exported import RUFF, Judge, as_a_model_writes, by_the_expert, delivered, ran, written

from passagent.commands.delivering import Measuring
from passagent.config import EvaluatorConfig
from passagent.delivery.choice import only, passes_of
from passagent.delivery.deliver import Delivered, Found, deliver
from passagent.delivery.editing import edited
from passagent.delivery.seen_values import Like, like
from passagent.delivery.telling import Origin
from passagent.evaluator.candidate import MANIFEST, TESTS, Candidate
from passagent.evaluator.result import Evaluation
from passagent.store import Store
from passagent.tasks import load_task
from passagent.tasks.examples import examples
from passagent.tasks.reader import Task


def pytest_in(path: Path) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=path)


@pytest.mark.long
def test_the_test_of_a_pass_finds_a_wrong_kernel(recorder, tmp_path):
    """A bias left out, which is all zeros in the task; and on another GPU-less machine nothing is skipped."""
    task = load_task(examples()["add_layer_norm"])
    out = written(delivered(by_the_expert(task, "cpu"), Judge(task), recorder), tmp_path)
    [path] = out.glob("Fuse*.py")
    text = path.read_text()
    assert "bias_table[start + j])" in text
    path.write_text(text.replace("bias_table[start + j])", "0.0f)"))
    done = pytest_in(out)
    assert done.returncode == 1 and "Mismatched elements" in done.stdout and "3 failed" in done.stdout


def test_docstring_and_readme_say_what_is_known(recorder, tmp_path):
    task = load_task(examples()["add_layer_norm"])
    result = delivered(by_the_expert(task, "cpu"), Judge(task), recorder)
    text = result.files["FuseMulAddLayerNorm.py"]
    assert text.startswith(
        '"""Fuse mul, add and layer_norm: a C++ kernel (fused_mul_add_layer_norm).\n\n'
        "Serves 3 of the 3 subgraphs of add_layer_norm.\n"
    )
    assert "AS 1.500 [1.490, 1.510]" in text and "Assumes inference" in text and "plan:" not in text
    readme = result.files["README.md"]
    assert "| float32 | 1.500 [1.490, 1.510] | 1.0000 | 0.5000 | -5 |" in readme
    assert "`some/model`, node 7 of passagent run abc" in readme and "Apache License 2.0" in readme
    [first] = re.findall(r"first digits\): (\w+)", readme)
    assert result.files["plan.txt"].startswith(f"plan {first}  FuseMulAddLayerNorm.py")
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


def test_what_matches_nothing_is_left_out_with_what_only_it_needs(regions, recorder):
    result = delivered(two_passes(), Judge(regions), recorder, measures=False)
    assert passes_of(result.files) == ["Twice", "Squash"]
    assert {"Absent.py", "forgotten.py"}.isdisjoint(result.files)
    assert result.story.dropped == {"Absent": "it matches nothing in the task"}
    assert "- `Absent`: it matches nothing in the task" in result.files["README.md"]


def test_a_pass_without_which_as_is_no_lower_is_left_out(regions, recorder, tmp_path):
    judge = Judge(regions, worth={"Squash": -0.1})
    result = delivered(two_passes(), judge, recorder)
    assert passes_of(result.files) == ["Twice"]
    assert result.story.dropped["Squash"] == "AS 1.500 [1.490, 1.510] without it, 1.400 with it"
    assert result.story.evaluation.as_score == 1.5
    assert [passes_of(one.files) for one in judge.seen[:3]] == [["Twice", "Squash"], ["Squash"], ["Twice"]]


def test_a_pass_without_which_as_is_lower_stays(regions, recorder):
    result = delivered(two_passes(), Judge(regions), recorder)
    assert passes_of(result.files) == ["Twice", "Squash"]


def confirmed(task: Task, files: dict[str, str], recorder) -> Found:
    """A candidate as a run confirmed it over three rounds: AS 1.7."""
    whole = delivered(files, Judge(task), recorder, measures=False).files
    plans = {name.removeprefix("plans.pass/"): text for name, text in whole.items() if "plans.pass/" in name}
    figures = {"as_score": 1.7, "as_low": 1.6, "as_high": 1.8, "protocol": {"rounds": 3}}
    return Found(files, plans, Judge(task).of(files).model_copy(update=figures))


@pytest.mark.parametrize("least", ["none", "Squash"])
def test_best_gives_the_confirmed_figure_or_says_how_its_own_differs(least, regions, recorder):
    found, judge = confirmed(regions, two_passes(), recorder), Judge(regions, worth={least: -0.1})
    origin = Origin("abc", 7, "some/model", regions.name, "2026-01-02")
    result = asyncio.run(deliver(found, regions, origin, recorder, "cpu", judge.measure))
    readme, confirmed_figure = result.files["README.md"], "AS 1.700 [1.600, 1.800]"
    told = f"The run's figure for the text as its author wrote it is {confirmed_figure}"
    assert judge.seen and confirmed_figure in readme
    if least == "none":  # nothing is left out: what was confirmed is written
        assert result.story.evaluation == found.evaluation and told not in readme
    else:
        assert "**AS 1.500" in readme and told in readme and told in "".join(result.story.notes)


@pytest.mark.long
def test_the_run_s_own_evaluator_measures(regions, recorder, tmp_path):
    """With and without each pass; an equal candidate is answered from the store."""
    config = EvaluatorConfig(warmups=2, trials=10, max_trials=20, budget_s=0.05, timeout_s=120, memory_gb=6)
    judge = Judge(regions)

    async def both() -> tuple[Delivered, Evaluation]:
        with Store.open(tmp_path / "runs") as store:
            measuring = Measuring(store, regions, config)
            origin = Origin("abc", 7, "some/model", regions.name, "2026-01-02")
            found = Found(two_passes(), {}, judge.of(two_passes()))
            try:
                result = await deliver(found, regions, origin, recorder, "cpu", measuring.measure)
                text = {name: result.files[name] for name in result.files if name.endswith((".py", ".json"))}
                text = {name: body for name, body in text.items() if "/" not in name and name != TESTS}
                return result, await measuring.measure(Candidate(text))
            finally:
                await measuring.close()

    result, again = asyncio.run(both())
    assert result.story.evaluation.status == "ok" and result.story.evaluation.timing == "wall"
    assert passes_of(result.files) and "Absent" in result.story.dropped
    assert again.as_score is not None and again.plans
    assert f"AS {result.story.evaluation.as_score:.3f}" in result.files["README.md"]


def test_what_is_the_same_program_is_not_measured_again(recorder):
    task = load_task(examples()["add_layer_norm"])
    files = by_the_expert(task, "cpu")
    first = delivered(files, Judge(task), recorder)
    plans = {
        name.removeprefix("plans.pass/"): text
        for name, text in first.files.items()
        if name.startswith("plans.pass/")
    }
    judge = Judge(task)
    origin = Origin("abc", 7, "some/model", task.name, "2026-01-02")
    again = asyncio.run(
        deliver(Found(files, plans, judge.of(files)), task, origin, recorder, "cpu", judge.measure)
    )
    assert judge.seen == [] and again.story.is_own and again.files == first.files


def test_without_measuring_the_readme_says_whose_the_figures_are(recorder, tmp_path):
    task, files = as_a_model_writes("planned_kernel", tmp_path)
    judge = Judge(task, "cuda")
    result = delivered(files, judge, recorder, measures=False)
    assert judge.seen == [] and not result.story.is_own
    assert "It was measured before it was laid out as it is here, and not again." in result.files["README.md"]
    assert "Measured (as its author laid it out)" in result.files["planned_kernel.py"]


@pytest.mark.parametrize(
    ("status", "worth", "told"),
    [("wrong_result", 0.5, "laid out anew it is wrong_result"), ("ok", 0.2, "laid out anew it is slower")],
)
def test_a_text_that_got_worse_is_not_written(status, worth, told, recorder, tmp_path):
    task, files = as_a_model_writes("planned_kernel", tmp_path)
    before = Judge(task, "cuda").of(files)
    judge = Judge(task, "cuda", worth={"planned_kernel": worth}, status=status)
    result = delivered(files, judge, recorder, before=before)
    assert result.files["planned_kernel.py"] == files["planned_kernel.py"]
    assert told in result.story.notes[0] and result.story.notes[0] in result.files["README.md"]
    assert result.story.evaluation == before


def test_a_text_whose_plan_depends_on_its_docstring_is_not_written(recorder, tmp_path):
    task, files = as_a_model_writes("cpp_lambdas_and_templates", tmp_path)
    name = "cpp_lambdas_and_templates.py"
    changed = files[name].replace("import torch\n", "import torch\n\nSIZE = len(__doc__)\n", 1)
    assert "    out = torch.empty_like(" in changed
    changed = changed.replace(
        "    out = torch.empty_like(", "    torch.empty(SIZE)\n    out = torch.empty_like("
    )
    judge = Judge(task, worth={"cpp_lambdas_and_templates": 10.0})  # a longer figure in the docstring
    result = delivered(files | {name: changed}, judge, recorder, before=Judge(task).of(files))
    assert result.files[name] == changed
    assert "its plans depend on its docstring" in result.story.notes[0]


def test_what_cannot_be_recorded_is_written_as_it_is(recorder, tmp_path):
    task, files = as_a_model_writes("cpp_lambdas_and_templates", tmp_path)
    name = "cpp_lambdas_and_templates.py"
    broken = files | {name: files[name] + "\nraise ValueError('no')\n"}
    result = delivered(broken, Judge(task), recorder)
    assert {key: result.files[key] for key in broken} == broken
    assert "no plan comes of it" in result.files["README.md"] and TESTS not in result.files


def test_every_honest_design_is_laid_out_as_ruff_wants(tmp_path):
    """Layout and imports, but of files with comments among their imports, which stay."""
    unlike = {"reference_and_tests_beside_it.py"}  # calls beside a comma, which ruff puts into brackets
    paths = sorted((HERE / "honest").glob("*.py"))
    for path in paths:
        (tmp_path / path.name).write_text(edited(path.read_text(), "", ()))
    done = ran(*RUFF, "format", "--isolated", "--check", ".", cwd=tmp_path)
    found = set(re.findall(r"--> (\S+?\.py)", done.stdout))
    assert found <= unlike, done.stdout
    done = ran(
        *RUFF, "check", "--isolated", "--select", "I001,F401", "--output-format", "concise", ".", cwd=tmp_path
    )
    guarded = {"guarded_import_of_libdevice.py"}  # inside `try`: it may be there to find something out
    assert set(re.findall(r"^(\S+?\.py):", done.stdout, re.M)) <= guarded, done.stdout


def test_imports_are_sorted_and_what_nothing_uses_goes():
    text = (
        "# licence\n'''Doc'''\nfrom torch import nn, Tensor, float32\nimport torch, math\n"
        "from __future__ import annotations\nfrom helper import f\nimport os\n"
        "def g(x: Tensor) -> 'nn.Module':\n    return f(math.pi, torch)\n"
    )
    assert edited(text, "More.", {"helper"}) == (
        '# licence\n"""Doc.\n\nMore.\n"""\n\nfrom __future__ import annotations\n\nimport math\n\n'
        "import torch\nfrom torch import Tensor, nn\n\nfrom helper import f\n\n\n"
        'def g(x: Tensor) -> "nn.Module":\n    return f(math.pi, torch)\n'
    )


def test_what_is_no_python_is_said():
    with pytest.raises(ValueError, match="is no Python"):
        edited("def f(:\n", "", ())


def test_a_candidate_keeps_the_helpers_that_its_passes_mention():
    files = two_passes() | {"pkg/__init__.py": "x = 1\n", "pkg/deep.py": ""}
    files["Squash.py"] += "\nfrom pkg import deep\n"
    assert set(only(files, ["Squash"])) == {
        "Squash.py",
        "both_kernels.py",
        "pkg/__init__.py",
        "pkg/deep.py",
        MANIFEST,
    }
    assert set(only(files, ["Twice"])) == {"Twice.py", "both_kernels.py", MANIFEST}


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (torch.ones(3), Like((3,), (1,), "float32", 1.0, 0.2, 0.5, 1.5)),
        (torch.tensor([0.0, -1e9]), Like((2,), (1,), "float32", either=(-1e9, 0.0))),
        (torch.arange(12).view(3, 4).t(), Like((4, 3), (1, 4), "int64", 5.5, 3.45, 0, 11)),
        (torch.tensor([1.23456, 2.0, 4.0]), Like((3,), (1,), "float32", 2.41, 1.17, 1.23, 4.0)),
        (torch.tensor([True, False]), Like((2,), (1,), "bool")),
        (torch.empty(0, 2), Like((0, 2), (2, 1), "float32", deviation=1.0)),
        (torch.tensor([float("-inf")]), Like((1,), (1,), "float32", either=(float("-inf"),))),
    ],
)
def test_a_tensor_is_told_by_what_its_values_are_like(tensor, told):
    assert like(tensor) == told
