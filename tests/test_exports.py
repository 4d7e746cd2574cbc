"""What `passagent best` writes, as a reviewer reads it: ten passes, and the expert's for every example."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import pytest
from exported import TEN, candidate, delivered, is_clean, ran, written

from passagent.deploy.delivery.readme import Delivery
from passagent.evaluator.candidate import TESTS, Candidate
from passagent.evaluator.target import uses_triton
from passagent.tasks.examples import examples

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


def ran_its_test(out: Path) -> str:
    done = ran(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS, cwd=out)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", TEN["cpu"])
def test_a_pass_for_the_cpu_passes_its_own_test(name, export):
    assert re.search(r"[1-9]\d* passed", ran_its_test(export("cpu", name)[0]))


@pytest.mark.gpu
@pytest.mark.parametrize("stands_alone", [False, True])
@pytest.mark.parametrize("name", TEN["cuda"])
def test_a_pass_for_a_gpu_passes_its_own_test(name, stands_alone, export):
    assert re.search(r"[1-9]\d* passed", ran_its_test(export("cuda", name, stands_alone)[0]))
