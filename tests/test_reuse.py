"""Answers from the store: equal subjects on equal tasks under equal conditions, and nothing else."""

from __future__ import annotations

import asyncio
import shutil

import pytest
import tiny_search
from test_search import finish, open_tiny, store, task  # noqa: F401 (fixtures)

from passagent.config import EvaluatorConfig
from passagent.evaluator.fleet.opening import environment_key
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.result import Candidate, Evaluation, Measured, Violation
from passagent.evaluator.service import known
from passagent.evaluator.service.known import Case, evaluate, keep, recall
from passagent.evaluator.service.pool import SubjectLost
from passagent.store import nodes
from passagent.tasks import load_task

CANDIDATE = Candidate(tiny_search.candidate_files("one"))
CONFIG = EvaluatorConfig()


def changed(evaluation: Evaluation, **fields: object) -> Evaluation:
    return evaluation.model_copy(update=fields)


@pytest.fixture
def evaluation():
    return tiny_search.judge(CANDIDATE)


def test_an_equal_candidate_is_answered(store, task, evaluation):  # noqa: F811
    here = environment_key(CONFIG)
    assert recall(store, Case(task, CANDIDATE, here)) is None
    number = keep(store, Case(task, CANDIDATE, here), evaluation)
    found = recall(store, Case(task, Candidate(dict(CANDIDATE.files)), here))
    assert (found.id, found.evaluation, found.from_store) == (
        number,
        evaluation.model_copy(update={"task": "task"}),
        True,
    )
    assert recall(store, Case(task, Candidate(CANDIDATE.files | {"more.py": ""}), here)) is None
    assert recall(store, Case(task, "eager", here)) is None
    assert recall(store, Case(task, CANDIDATE, "elsewhere")) is None


def test_a_task_is_equal_by_its_content(store, task, evaluation, tmp_path):  # noqa: F811
    here = environment_key(CONFIG)
    keep(store, Case(task, CANDIDATE, here), evaluation)
    copy = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(task.path, copy)
    assert recall(store, Case(load_task(copy), CANDIDATE, here)).evaluation.task == "renamed"
    for name in ("weight_meta.py", "model.py"):
        file = copy / "graphs" / "g" / name
        before = file.read_text()
        file.write_text(before + "\n")
        assert recall(store, Case(load_task(copy), CANDIDATE, here)) is None, name
        file.write_text(before)
    (copy / "graphs" / "g" / "input_tensor_constraints.py").write_text(
        "dynamic_dim_constraint_symbols = []\n"
    )
    assert recall(store, Case(load_task(copy), CANDIDATE, here)) is None


def test_a_refusal_that_rests_on_a_measurement_is_not_reused_and_any_other_is(store, task, evaluation):  # noqa: F811
    here = environment_key(CONFIG)
    rule = {"rule": "clock", "file": "a.py", "line": 0, "message": "slow"}
    measured = Measured(claimed=2.0, seen=40.0, bound=9.5, unit="us a call")
    by_clock = changed(evaluation, status="refused", violations=[Violation(**rule, measured=measured)])
    by_rule = changed(evaluation, status="refused", violations=[Violation(**rule)])
    keep(store, Case(task, CANDIDATE, here), by_clock)
    assert recall(store, Case(task, CANDIDATE, here)) is None
    assert recall(store, Case(task, CANDIDATE, here), unstable=True, bar=1.0) is None
    kept = keep(store, Case(task, CANDIDATE, here), by_rule)
    keep(store, Case(task, CANDIDATE, here), by_clock)
    assert recall(store, Case(task, CANDIDATE, here)).id == kept  # the measured one does not hide it


def test_what_is_no_measurement_is_not_reused(store, task, evaluation):  # noqa: F811
    here = environment_key(CONFIG)
    unstable = [graph.model_copy(update={"unstable": True}) for graph in evaluation.graphs]
    keep(store, Case(task, CANDIDATE, here), changed(evaluation, graphs=unstable))
    keep(store, Case(task, CANDIDATE, here), changed(evaluation, status="infrastructure", as_score=None))
    keep(store, Case(task, CANDIDATE, here), changed(evaluation, evaluator_version="0.0.0+older"))
    assert recall(store, Case(task, CANDIDATE, here)) is None
    assert recall(store, Case(task, CANDIDATE, here), unstable=True).evaluation.graphs == unstable
    first = keep(store, Case(task, CANDIDATE, here), evaluation)
    second = keep(store, Case(task, CANDIDATE, here), evaluation)
    keep(store, Case(task, CANDIDATE, here), changed(evaluation, graphs=unstable))
    assert first < recall(store, Case(task, CANDIDATE, here)).id == second


def test_what_was_measured_under_a_bar_is_known_under_a_bar_only(store, task, evaluation):  # noqa: F811
    here = environment_key(CONFIG)
    coarse = keep(store, Case(task, CANDIDATE, here), changed(evaluation, bar=1.5, as_high=1.2))
    assert recall(store, Case(task, CANDIDATE, here)) is None
    assert recall(store, Case(task, CANDIDATE, here), bar=1.1).id == coarse
    short = changed(evaluation, bar=1.5, stopped_early="its AS is under 1.5", as_high=1.2)
    cut_short = keep(store, Case(task, CANDIDATE, here), short)
    assert recall(store, Case(task, CANDIDATE, here)) is None
    assert recall(store, Case(task, CANDIDATE, here), bar=1.1).id == coarse
    assert recall(store, Case(task, CANDIDATE, here), bar=1.3).id == cut_short


def test_fresh_measures_again(store, task):  # noqa: F811
    evaluator, here = tiny_search.FastEvaluator(), environment_key(CONFIG)
    found = [
        asyncio.run(evaluate(evaluator.evaluate, store, Case(task, CANDIDATE, here), fresh))
        for fresh in (0, 0, 1, 0)
    ]
    assert [one.from_store for one in found] == [False, True, False, True]
    assert len(evaluator.asked) == 2
    assert found[3].id == found[2].id > found[1].id == found[0].id


def test_conditions_that_make_another_key(monkeypatch):
    base = environment_key(CONFIG)
    assert environment_key(EvaluatorConfig()) == base
    for changes in ({"budget_s": 5.0}, {"dispatch": "dynamo"}, {"threads": 7}):
        assert environment_key(EvaluatorConfig(**changes)) != base
    machine = {
        "node": lambda: monkeypatch.setattr(known.platform, "node", lambda: "other"),
        "python": lambda: monkeypatch.setattr(known.platform, "python_version", lambda: "3.99"),
        "torch": lambda: monkeypatch.setattr(known, "package_version", lambda name: "9.9"),
        "cpu": lambda: monkeypatch.setattr(known, "device_name", lambda name: "other"),
        "compiler": lambda: monkeypatch.setattr(known, "_compiler", lambda: "other"),
    }
    for name, change in machine.items():
        with monkeypatch.context():
            known.this_machine.cache_clear()
            change()
            assert environment_key(CONFIG) != base, name
        monkeypatch.undo()
    known.this_machine.cache_clear()
    assert environment_key(CONFIG) == base


def test_gpus_of_one_model_are_one_condition(monkeypatch):
    def key(device: str, model: str = "H200", driver: str = "570.1") -> str:
        known.this_machine.cache_clear()
        monkeypatch.setattr(known, "find_devices", lambda text: [Device(text, "GPU-x", model)])
        monkeypatch.setattr(known.nvml, "driver_version", lambda: driver)
        return environment_key(EvaluatorConfig(device=device))

    base = key("cuda:0")
    assert base == key("cuda:1") == key("cuda:all")
    assert len({base, key("cuda:0", "H100"), key("cuda:0", driver="580.1"), environment_key(CONFIG)}) == 4
    known.this_machine.cache_clear()


class Losing(tiny_search.FastEvaluator):
    """Loses some candidates for good."""

    async def evaluate(self, task_path, candidate, bar=None):
        if tiny_search.share("lost", candidate.key) < 0.3:
            raise SubjectLost("three evaluators ended")
        return await super().evaluate(task_path, candidate)


def test_a_candidate_that_ends_every_evaluator_does_not_end_the_search(store, task):  # noqa: F811
    session = open_tiny(store, task, evaluator=Losing(), islands=2, iters=8, seed=1)
    assert finish(session).state == "finished"
    found = nodes.of_run(store, session.run.id)
    lost = [node for node in found if node.status == "infrastructure"]
    assert lost and {node.state for node in found} == {"done"}
    assert all(node.as_score is None for node in lost)
