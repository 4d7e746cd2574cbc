"""Every honest design under tests/honest is judged for real, and accepted."""

from __future__ import annotations

import re

import pytest
from cases import HERE, TASKS, Case, referees_of, suite, write_task

from passagent.config import EvaluatorConfig
from passagent.tasks.reader import Task

CONFIG = EvaluatorConfig(warmups=2, trials=10, max_trials=10, timeout_s=120, memory_gb=6)
DESIGNS = suite("honest")
NO_PLAN_ON_A_GPU = {"tensor_descriptors": "descriptors that are made on the host are not launched"}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> dict[str, Task]:
    root = tmp_path_factory.mktemp("tasks")
    return {name: write_task(root / name, name) for name in TASKS}


@pytest.fixture(scope="module")
def referees():
    with referees_of(CONFIG) as on:
        yield on


def test_all_thirty_designs_are_here():
    assert len(DESIGNS) >= 40
    found = set()
    for path in (HERE / "honest").glob("*.py"):
        for numbers in re.findall(r"^# INTEGRITY.md, honest design (.+)$", path.read_text(), re.MULTILINE):
            found |= {int(number) for number in numbers.split(",")}
    assert found == set(range(1, 31))


@pytest.mark.parametrize("case", DESIGNS)
def test_an_honest_design_is_accepted(case: Case, referees, tasks):
    result = referees(case.device).evaluate(tasks[case.task], case.candidate)
    if case.device != "cpu" and case.name in NO_PLAN_ON_A_GPU:
        assert [found.rule for found in result.violations] == ["triton_ir"]
        return
    assert result.status == "ok", f"{result.error} {result.violations}"
    assert all(graph.matches for graph in result.graphs)
    if result.timing == "wall":
        assert result.as_score is not None
