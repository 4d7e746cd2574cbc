"""`isolation: in-process`: the same verdicts as in the sandbox, from threads of this process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import torch
from cases import cases_of, write_task

from passagent.config import EvaluatorConfig
from passagent.evaluator.judging import speed_of_light
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import Measured
from passagent.evaluator.runner.calls import Graph
from passagent.evaluator.runner.reservoirs import InputSets
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.sandbox.child import ForkServer
from passagent.view.evaluation import evaluation_text

pytestmark = pytest.mark.usefixtures("lent_forks")

CONFIG = EvaluatorConfig(isolation="in-process", budget_s=1e-6)
ATTACKS = cases_of("adversarial")
HONEST = cases_of("honest")
DESIGN = HONEST["arguments_made_of_one_number"]


@pytest.fixture(scope="module")
def referee():
    with Referee(CONFIG) as on:
        yield on


def children() -> dict[str, str]:
    """The command line of each process that this one started, by its pid."""
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in own}


def has_workers(forks: ForkServer, processes: dict[str, str]) -> bool:
    """Tell whether a process, beside the tests' own `forks`, is an evaluator or forks workers."""
    others = [line for pid, line in processes.items() if pid != str(forks.process.pid)]
    return any("service.serve" in line or "runner.worker" in line for line in others)


def test_an_honest_design_is_accepted_and_the_result_names_the_isolation(referee, forks, tmp_path):
    task = write_task(tmp_path / "t", DESIGN.task)
    first, second = (referee.evaluate(task, DESIGN.candidate) for _ in range(2))
    assert [first.status, second.status] == ["ok", "ok"], (first.error, second.error)
    assert second.as_score is not None and second.plans == first.plans
    assert (second.isolation, second.protections) == ("in-process", {})
    assert "(direct, in-process)" in evaluation_text(second)
    assert not has_workers(forks, children())


@pytest.mark.parametrize(
    "name",
    ["another_dtype", "cpp_mean_of_every_other_element", "cpp_leaves_garbage_in_an_input_in_late_calls"],
)
def test_what_is_wrong_is_found_as_in_the_sandbox(name, referee, tmp_path):
    case = ATTACKS[name]
    result = referee.evaluate(write_task(tmp_path / "t", case.task), case.candidate)
    assert result.status in {status for status, _ in case.expected}
    assert {v.rule for v in result.violations} <= {rule for _, rule in case.expected}


def test_verdicts_are_the_same_where_a_worker_holds_the_sets_of_a_request_only(tmp_path, monkeypatch):
    monkeypatch.setattr(InputSets, "are_large", property(lambda _: True, lambda *_: None), raising=False)
    held = []
    hold = Graph.hold

    def noted(self, *chosen):
        hold(self, *chosen)
        held.append((len(self.sets._taken), len(chosen)))

    monkeypatch.setattr(Graph, "hold", noted)
    with Referee(CONFIG) as referee:
        result = referee.evaluate(write_task(tmp_path / "t", DESIGN.task), DESIGN.candidate)
        wrong = ATTACKS["cpp_mean_of_every_other_element"]
        found = referee.evaluate(write_task(tmp_path / "w", wrong.task), wrong.candidate)
    assert result.status == "ok" and result.as_score is not None
    assert found.status in {status for status, _ in wrong.expected}
    assert len(held) > 10 and all(taken <= asked for taken, asked in held)


def test_eager_in_a_candidates_place_is_measured(referee, tmp_path):
    result = referee.evaluate(write_task(tmp_path / "t", DESIGN.task), "eager")
    assert result.status == "ok" and result.gmean_speedup is not None


def test_a_pool_evaluates_without_another_process(forks, tmp_path):
    task = write_task(tmp_path / "t", DESIGN.task)

    async def evaluated():
        pool = EvaluatorPool(CONFIG)
        try:
            return await pool.evaluate(task.path, DESIGN.candidate), children()
        finally:
            await pool.close()

    result, started = asyncio.run(evaluated())
    assert result.status == "ok" and result.plan_files
    assert not has_workers(forks, started)


def test_the_caller_keeps_its_number_of_threads(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Referee(CONFIG.model_copy(update={"threads": 1})) as one:
            one.evaluate(write_task(tmp_path / "t", DESIGN.task), DESIGN.candidate)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.gpu
@pytest.mark.parametrize("dispatch", ["direct", "dynamo"])
def test_a_gpu_runs_both_sides_of_one_process(dispatch, tmp_path):
    design = next(one for one in HONEST.values() if one.device == "cuda")
    task = write_task(tmp_path / "t", design.task)
    with Referee(CONFIG.model_copy(update={"device": "cuda", "dispatch": dispatch})) as on:
        results = [on.evaluate(task, subject) for subject in (design.candidate, "eager", design.candidate)]
    assert [(one.status, one.error) for one in results] == [("ok", None)] * 3


def test_threads_of_one_process_cannot_capture_cuda_graphs():
    with pytest.raises(ValueError, match="has no dispatch: graph on a GPU"):
        EvaluatorConfig(isolation="in-process", dispatch="graph", device="cuda")
    assert EvaluatorConfig(isolation="in-process", dispatch="graph").device == "cpu"


@pytest.mark.parametrize(("times", "status"), [(1, "ok"), (2, "refused")])
def test_a_time_beyond_light_is_measured_again_then_refused(times, status, referee, tmp_path, monkeypatch):
    beyond = Measured(claimed=900.0, seen=20.0, bound=40.0, unit="GB/s")
    answers = iter([beyond] * times)
    monkeypatch.setattr(speed_of_light, "beyond_light", lambda *of: next(answers, None))
    result = referee.evaluate(write_task(tmp_path / "t", DESIGN.task), DESIGN.candidate)
    assert result.status == status
    assert [v.rule for v in result.violations] == ["speed_of_light"] * (status == "refused")
    assert result.rests_on_measurement == (status == "refused")
    if status == "refused":
        assert "900 GB/s" in result.violations[0].message
    else:
        assert result.graphs[0].launches and result.graphs[0].plan_bytes and result.graphs[0].kernels
