"""Host code runs once, elsewhere; what it decided is checked, replayed and judged."""

from __future__ import annotations

import pytest
from cases import TASKS, cases_of, write_task
from tiny import HONEST, KERNEL, candidate
from tiny import write_task as write_tiny

from passagent.config import EvaluatorConfig
from passagent.errors import UsageError
from passagent.evaluator import captures
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging import recorder as recording
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import Candidate
from passagent.plan import artefact
from passagent.plan.facts import H100
from passagent.tasks.reader import load_task

CONFIG = EvaluatorConfig(budget_s=1e-6, timeout_s=120, memory_gb=6)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return load_task(write_tiny(tmp_path_factory.mktemp("task") / "silu_mul_add"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    root = tmp_path_factory.mktemp("tasks")
    return {name: write_task(root / name, name) for name in TASKS}


@pytest.fixture(scope="module")
def referee(forks):
    with Referee(CONFIG, forks) as one:
        yield one


@pytest.fixture(scope="module")
def judged(referee, task):
    """What comes of a right pass."""
    return referee.evaluate(task, candidate())


SLOW_HOST = """    import time
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
"""


def test_host_code_is_not_in_timed_calls(referee, task):
    """It takes 0.2 s; static inspection, which forbids a clock in timed calls, is not asked."""
    result = referee.evaluate(task, candidate(SLOW_HOST + HONEST))
    assert result.status == "ok", result.violations
    assert all(graph.compiled_ms < 100 for graph in result.graphs)


def test_a_constant_is_mapped_read_only(referee, task):
    body = HONEST.replace("a.numel())", "a.numel(), TABLE)")
    writes = KERNEL.replace("int64_t n)", "int64_t n, float* table)").replace(
        "  for", "  table[0] += 1;\n  for"
    )
    result = referee.evaluate(task, candidate(body, f"{writes}\nTABLE = torch.tensor([1.0, 2.0])"))
    assert result.status == "runtime_error"
    assert "SIGSEGV" in result.graphs[0].error


def test_dynamo_calls_plans_and_judges(referee, task, monkeypatch):
    monkeypatch.setattr(referee, "config", CONFIG.model_copy(update={"dispatch": "dynamo"}))
    result = referee.evaluate(task, candidate())
    wrong = referee.evaluate(task, candidate(setup=KERNEL.replace("+ 1.0f", "+ 1.5f")))
    assert (result.status, result.dispatch, result.timing) == ("ok", "dynamo", "wall")
    assert all(graph.applied == ["Fused"] for graph in result.graphs)
    assert result.plans
    assert {graph.status for graph in wrong.graphs} == {"wrong_result"}


def test_one_subgraph_that_fails_does_not_fail_the_others(referee, task):
    body = "    if a.dtype == torch.bfloat16:\n        raise ValueError('not this one')\n" + HONEST
    result = referee.evaluate(task, candidate(body))
    assert {graph.status for graph in result.graphs} == {"runtime_error", "ok"}
    [failed] = [graph for graph in result.graphs if graph.status != "ok"]
    assert "not this one (Fused.py:" in failed.error
    assert not result.unrecorded


def test_what_gives_no_plan_at_all_is_told_before_anything_runs(referee, task):
    for one, status in (
        (candidate("    raise ValueError('nothing')"), "runtime_error"),
        (candidate(setup="import nothing_of_the_name"), "load_error"),
    ):
        result = referee.evaluate(task, one)
        assert (result.status, result.unrecorded, result.timing) == (status, True, "none")
        assert result.as_score < 0.2
        assert referee.outline(task, one).status == status


def test_an_outline_shows_what_a_call_does(referee, task):
    [first, *_] = referee.outline(task, candidate())
    assert first.startswith("Fused.py on ")
    assert "silu_mul_add" in first


def test_what_was_recorded_is_replayed_from_its_files(referee, task, judged, tmp_path):
    recorded = Candidate(judged.plan_files)
    assert recorded.key == judged.plans
    recorded.write(tmp_path / "x")
    again = referee.evaluate(task, Candidate.from_dir(tmp_path / "x"))
    assert (again.status, again.plans, again.edited) == ("ok", judged.plans, [])
    [kernel] = (tmp_path / "x" / "kernels").iterdir()
    kernel.write_text(kernel.read_text().replace("+ 1.0f", "+ 1.5f"))
    edited = referee.evaluate(task, Candidate.from_dir(tmp_path / "x"))
    assert (edited.status, edited.edited) == ("wrong_result", [f"kernels/{kernel.name}"])
    kernel.unlink()
    with pytest.raises(UsageError, match="which is not here; copy the whole directory"):
        referee.evaluate(task, Candidate.from_dir(tmp_path / "x"))


def test_plans_are_for_their_own_task(referee, judged, tasks):
    recorded = Candidate(judged.plan_files)
    with pytest.raises(UsageError, match=r"plan.json: it is of other subgraphs"):
        referee.evaluate(tasks["add_relu"], recorded)


def test_a_file_of_plans_is_data(referee, task, judged):
    files = judged.plan_files
    for text in ("[]", "{", "[" * 200000, files["plan.json"].replace('"step": "launch"', '"step": "run"')):
        with pytest.raises(UsageError, match="is no recording"):
            referee.evaluate(task, Candidate(files | {"plan.json": text}))


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_plans_fit_a_gpu_by_whatever_name(device, tasks, recorder, monkeypatch):
    """Recorded and read again for it, on a machine that has none: nothing is built."""
    monkeypatch.setattr(recording, "device_facts", lambda name: dict(H100))
    monkeypatch.setattr(recording.Recorder, "_built", lambda *_: iter(()))
    case = cases_of("honest")["cuda_vectorised_with_a_tail"]
    lease = DeviceLease(Device(device, "GPU-none", "none"))
    one = recording.Recorder(CONFIG.model_copy(update={"device": device}), lease, recorder)
    for subgraph in tasks[case.task].subgraphs:
        captures.keep(subgraph, device, captures.graph_of(subgraph, "cpu"))
    try:
        first = one.prepare(case.candidate, tasks[case.task].subgraphs, None)
        files = artefact.write(first.plans.recording)
        again = one.prepare(Candidate(files), tasks[case.task].subgraphs, None)
    finally:
        one.close()
    assert again.plans.recording == first.plans.recording
    assert again.edited == []
