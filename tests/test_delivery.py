"""`passagent best`: what is written can be reviewed, tested and merged."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import black
import pytest
import torch
from cases import write_task
from exported import Judge, as_a_model_writes, by_the_expert, delivered, ran, written

from passagent.cli.commands.delivering import Measuring
from passagent.config import EvaluatorConfig
from passagent.deploy.delivery.deliver import MeasuredCandidate, deliver
from passagent.deploy.delivery.oracle import Like, like
from passagent.deploy.delivery.readme import Origin
from passagent.evaluator.candidate import MANIFEST, TESTS, Candidate
from passagent.evaluator.result import Evaluation
from passagent.store import Store, evaluations
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


def test_readme_says_what_is_known(recorder):
    task = load_task(examples()["add_layer_norm"])
    result = delivered(by_the_expert(task, "cpu"), Judge(task), recorder)
    readme = result.files["README.md"]
    assert (
        "- `FuseMulAddLayerNorm.py` fuses mul, add and layer_norm: a C++ kernel (fused_mul_add_layer_norm). "
        "It serves 3 of the 3 subgraphs.\n\nMeasured on a CPU, 2 threads.\n"
    ) in readme
    assert "AS 1.500 [1.490, 1.510]" in readme and "assume inference" in readme
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


def test_files_are_formatted_and_otherwise_as_the_author_wrote_them(regions, recorder):
    files = two_passes()
    result = delivered(files, judge := Judge(regions), recorder)
    for name in ("Twice.py", "both_kernels.py", "forgotten.py"):
        assert result.files[name] == black.format_str(files[name], mode=black.Mode())
    assert result.files[MANIFEST] == files[MANIFEST]
    assert "- `Absent.py` matches nothing in the task." in result.files["README.md"]
    assert judge.seen == [] and result.story.is_own and result.story.notes == []


def planned(recorder, tmp_path) -> tuple[Task, MeasuredCandidate]:
    """A Triton kernel, whose plans hold its layout, as a run confirmed it over three rounds: AS 1.7."""
    task, files = as_a_model_writes("planned_kernel", tmp_path)
    whole = delivered(files, judge := Judge(task, "cuda"), recorder, measures=False).files
    plans = {name.removeprefix("plans.pass/"): text for name, text in whole.items() if "plans.pass/" in name}
    figures = {"as_score": 1.7, "as_low": 1.6, "as_high": 1.8, "protocol": {"rounds": 3}}
    return task, MeasuredCandidate(files, plans, judge.of(files).model_copy(update=figures))


@pytest.mark.parametrize("is_same", [True, False])
def test_best_gives_the_confirmed_figure_or_says_how_its_own_differs(is_same, recorder, tmp_path):
    task, winner = planned(recorder, tmp_path)  # its plans are those of the formatted text
    judge = Judge(task, "cuda", worth={"planned_kernel": 0.9})
    if not is_same:
        winner = replace(winner, plans={})
    origin = Origin("abc", 7, "some/model", task.name, "2026-01-02")
    result = asyncio.run(
        deliver(winner, task, origin, recorder, EvaluatorConfig(device="cuda"), judge.measure)
    )
    readme, confirmed = result.files["README.md"], "AS 1.700 [1.600, 1.800]"
    note = f"The run's figure for the text as its author wrote it is {confirmed}"
    assert confirmed in readme and result.story.is_own
    if is_same:
        assert judge.seen == [] and result.story.evaluation == winner.evaluation and note not in readme
    else:
        assert len(judge.seen) == 1 and "**AS 1.900" in readme and note in readme


@pytest.mark.long
def test_the_run_s_own_evaluator_measures(regions, recorder, tmp_path, monkeypatch):
    """An equal candidate is answered from the store, where its timing was stable."""
    monkeypatch.setattr(evaluations, "is_unstable", lambda result: False)
    config = EvaluatorConfig(warmups=2, trials=10, max_trials=20, budget_s=0.05, timeout_s=120, memory_gb=6)

    async def both() -> tuple[Evaluation, Evaluation]:
        with Store.open(tmp_path / "runs") as store:
            measuring = Measuring(store, regions, config)
            try:
                return (
                    await measuring.measure(Candidate(two_passes())),
                    await measuring.measure(Candidate(two_passes())),
                )
            finally:
                await measuring.close()

    first, again = asyncio.run(both())
    assert first.status == "ok" and first.timing == "wall" and first.as_score is not None and first.plans
    assert (again.as_score, again.seconds) == (first.as_score, first.seconds)


def test_without_measuring_the_readme_says_whose_the_figures_are(recorder, tmp_path):
    task, files = as_a_model_writes("planned_kernel", tmp_path)
    judge = Judge(task, "cuda")
    result = delivered(files, judge, recorder, measures=False)
    assert judge.seen == [] and not result.story.is_own
    assert "It was measured before it was formatted, and not again." in result.files["README.md"]


@pytest.mark.parametrize(
    ("status", "worth", "reason"),
    [("wrong_result", 0.5, "formatted it is wrong_result"), ("ok", 0.2, "formatted it is slower")],
)
def test_a_text_that_got_worse_is_not_written(status, worth, reason, recorder, tmp_path):
    task, files = as_a_model_writes("planned_kernel", tmp_path)
    before = Judge(task, "cuda").of(files)
    judge = Judge(task, "cuda", worth={"planned_kernel": worth}, status=status)
    result = delivered(files, judge, recorder, before=before)
    assert result.files["planned_kernel.py"] == files["planned_kernel.py"]
    assert reason in result.story.notes[0] and result.story.notes[0] in result.files["README.md"]
    assert result.story.evaluation == before


def test_what_cannot_be_recorded_is_written_as_it_is(recorder, tmp_path):
    task, files = as_a_model_writes("cpp_lambdas_and_templates", tmp_path)
    name = "cpp_lambdas_and_templates.py"
    broken = files | {name: files[name] + "\nraise ValueError('no')\n"}
    result = delivered(broken, Judge(task), recorder)
    assert {key: result.files[key] for key in broken} == broken
    assert "no plan comes of it" in result.files["README.md"] and TESTS not in result.files


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
