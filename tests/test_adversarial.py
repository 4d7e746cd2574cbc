"""Every attack under tests/adversarial and every honest design under tests/honest is judged for real.

An attack ends as its header says, and a design is accepted. All share referees, whose start takes long.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from cases import TASKS, Case, cases_of, referees_of, suite, write_task

from passagent.config import EvaluatorConfig
from passagent.evaluator import captures, score
from passagent.evaluator.hardware.devices import Device
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.judging import recorder as recording
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.judging.verdict import Failed, Refused
from passagent.evaluator.result import Candidate, Evaluation
from passagent.evaluator.target import uses_triton
from passagent.plan.facts import H100
from passagent.tasks.reader import Task

CONFIG = EvaluatorConfig(budget_s=1e-6, timeout_s=120, memory_gb=6)
MEASURED = CONFIG.model_copy(update={"budget_s": 0.5})
UNPAID = {
    "cpp_chain_of_functions": (
        "cpp_computes_a_block_in_its_first_call",
        "cpp_computes_ahead_while_no_clock_runs",
        "cpp_skips_blocks_that_nobody_verifies",
    ),
    "cpp_short_chain_of_functions": (
        "cpp_moves_the_start_of_its_clock",
        "cpp_replaces_the_clock",
        "cpp_shortens_what_its_clock_has_noted",
    ),
}
"""By the honest kernel that does the same work."""
TWINS = {*UNPAID, *(name for names in UNPAID.values() for name in names)}
ATTACKS = [parameter for parameter in suite("adversarial") if parameter.id not in TWINS]
DESIGNS = [parameter for parameter in suite("honest") if parameter.id not in TWINS]
PAIR = 0.01
"""A score to beat that all reach: a candidate is timed by one pair of workers."""
ADVICE = re.compile(r"[;:,] \w+")
"""A message goes on after what is wrong: with what to do instead."""


BOTH = {
    "cache_by_shape",
    "fast_path_by_shape",
    "keeps_memory_beside_a_view_of_a_table",
    "plan_counts_its_calls",
}
"""Cases that are about the second graph of a task. Others need one to be told, the last."""


@pytest.fixture(scope="module")
def task_of(tmp_path_factory) -> Callable[[Case], Task]:
    """The task of a case."""
    root = tmp_path_factory.mktemp("tasks")

    @functools.cache
    def written(name: str, is_whole: bool) -> Task:
        text = TASKS[name]
        if not is_whole:
            text = replace(text, subgraphs=text.subgraphs[-1:])
        return write_task(root / f"{name}_{is_whole}", text)

    return lambda case: written(case.task, case.name in BOTH or case.task != "add_relu")


@pytest.fixture(scope="module")
def referees(forks):
    with referees_of(CONFIG, forks) as on:
        yield on


def test_the_suite_is_whole():
    cases = [parameter.values[0] for parameter in ATTACKS]
    assert len(cases) >= 60
    assert [case.name for case in cases if len(case.summary) < 15 or case.summary[-1] != "."] == []


@pytest.mark.parametrize("case", ATTACKS)
def test_an_attack_does_not_pay(case: Case, referees, task_of, monkeypatch):
    if case.expected == [("charged", None)]:
        monkeypatch.setattr(referees(case.device), "config", MEASURED)
        check_charged(case.candidate, task_of(case), referees(case.device))
        return
    result = referees(case.device).evaluate(task_of(case), case.candidate, PAIR)
    if result.status == "ok" and ("wrong_result", None) in case.expected:
        # What shows it up is drawn by chance, and a search judges its best again, on other values.
        result = referees(case.device).evaluate(task_of(case), case.candidate, PAIR)
    check_attack(case, result)


def check_attack(case: Case, result: Evaluation) -> None:
    """It ends as its header says."""
    credited = [int(t) for status, t in case.expected if status == "credited" and t is not None]
    may_be_inert = ("inert", None) in case.expected
    if credited and result.status == "ok" and not may_be_inert:
        assert [g for g in result.graphs if g.passes_from_t is None or g.passes_from_t < credited[0]] == []
        return
    if may_be_inert and result.status == "ok":
        check_inert(result)
        return
    assert result.status != "ok"
    rules = {violation.rule for violation in result.violations}
    right = [rule is None or rule in rules for status, rule in case.expected if status == result.status]
    if ("wrong_result", None) in case.expected:
        right.append("reduced_precision" in rules)  # drawn values may be so near that stale ones look rounded
    if ("refused", "reduced_precision") in case.expected:
        right.append(result.status == "wrong_result")  # or so far apart that it is wrong outright
    assert any(right), f"{result.status} {sorted(rules)}: {result.error}"
    assert result.error
    check_score(result)
    if result.status == "refused":
        check_violations(case, result)


def check_inert(result: Evaluation) -> None:
    """Every subgraph is rewritten, and right at the strictness that counts in full."""
    assert result.status == "ok", (result.status, result.error)
    assert all(graph.matches and graph.passes_from_t <= score.STRICT_T for graph in result.graphs)


def without_frames(candidate: Candidate) -> Candidate:
    """The same, but that it looks for a frame that is not there, and so computes in its calls."""
    files = {
        name: text.replace('frame_of("timed"', 'frame_of("nobody"') for name, text in candidate.files.items()
    }
    assert files != candidate.files
    return Candidate(files)


def check_charged(candidate: Candidate, task: Task, referee: Referee) -> None:
    """It is right, and no faster than where it computes in its calls.

    A noisy machine measures again: what pays does so on the same subgraph each time.
    """
    gains = [math.inf] * len(task.subgraphs)
    for _ in range(8):
        results = [referee.evaluate(task, one) for one in (candidate, without_frames(candidate))]
        for result in results:
            check_inert(result)
        both = zip(gains, *(result.graphs for result in results), strict=True)
        gains = [min(before, one.speedup.e2e / honest.speedup.e2e) for before, one, honest in both]
        if max(gains) <= 1.5:
            return
    pytest.fail(f"it gains {max(gains):.2f}")


def check_score(result: Evaluation) -> None:
    """A refusal is b at every t; nothing that failed counts as eager's equal where it is judged."""
    if result.as_score is None:
        assert result.timing == "none"
        return
    assert result.es is not None
    if result.status == "refused":
        assert list(result.es.values()) == pytest.approx([score.B] * len(result.es))
    assert result.as_score < 0.9


def check_violations(case: Case, result: Evaluation) -> None:
    assert result.violations
    for violation in result.violations:
        assert ADVICE.search(violation.message), violation.message
        assert not re.search(r"\b(unless|bypass|allow-?list)\b", violation.message), violation.message
    here = case.here()
    if here:
        wanted = {rule for status, rule in case.expected if status == "refused"} - {None}
        found = {(v.file, v.line) for v in result.violations if not wanted or v.rule in wanted}
        assert here & found, f"points at {sorted(found)}, not at {sorted(here)}"


MORE = 1.6
"""Before they were stopped these got 1.9 to 30 times as much."""


@pytest.mark.parametrize("twin", UNPAID)
def test_what_native_code_finds_in_its_worker_does_not_pay(twin, referees, task_of):
    """A noisy machine measures again: what pays does so each time."""

    def judged(directory: str, name: str) -> Evaluation:
        case = cases_of(directory)[name]
        result = referees("cpu").evaluate(task_of(case), case.candidate)
        if directory == "adversarial":
            check_attack(case, result)
        else:
            assert result.status == "ok", result.error
        return result

    paid = UNPAID[twin]
    for _ in range(8):
        honest = judged("honest", twin)
        scores = {name: judged("adversarial", name).as_score for name in paid}
        paid = [name for name, score in scores.items() if score > MORE * honest.as_score]
        if not paid:
            return
    pytest.fail(f"{paid} pay: {scores}, honest: {honest.as_score}")


def test_all_thirty_designs_are_here():
    assert len(DESIGNS) >= 40
    found = set()
    for name, case in cases_of("honest").items():
        text = case.candidate.files[f"{name}.py"]
        for numbers in re.findall(r"^# INTEGRITY.md, honest design (.+)$", text, re.MULTILINE):
            found |= {int(number) for number in numbers.split(",")}
    assert found == set(range(1, 31))


@pytest.mark.parametrize("case", DESIGNS)
def test_an_honest_design_is_accepted(case: Case, referees, task_of):
    result = referees(case.device).evaluate(task_of(case), case.candidate, PAIR)
    assert result.status == "ok", f"{result.error} {result.violations}"
    assert all(graph.matches for graph in result.graphs)
    assert result.as_score is not None


BEFORE_IT_RUNS = {"recording", "plan", "triton_ir"}
"""Rules that need no GPU."""
NEEDS_A_GPU = {"wrong_result", "input_mutation", "out_of_bounds"}
"""What is found where a kernel runs: until then nothing is wrong."""
TRITON = [
    pytest.param(case, id=name)
    for directory in ("adversarial", "honest")
    for name, case in cases_of(directory).items()
    if uses_triton(case.candidate) and not {word for pair in case.expected for word in pair} & NEEDS_A_GPU
]


@pytest.fixture(scope="module")
def gpu_recorder(recorder):
    """A recorder that builds for an H100, which need not be here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "device_facts", lambda _: dict(H100))
        config = CONFIG.model_copy(update={"device": "cuda"})
        one = recording.Recorder(config, DeviceLease(Device("cuda", "GPU-none", "none")), recorder)
        yield one
        one.close()


@pytest.mark.parametrize("case", TRITON)
def test_triton_is_refused_or_built_without_a_gpu(case: Case, gpu_recorder, task_of):
    """What a rule refuses before anything runs is refused; all else is recorded and built."""
    subgraphs = task_of(case).subgraphs
    for subgraph in subgraphs:
        captures.keep(subgraph, "cuda", captures.graph_of(subgraph, "cpu"))
    rules, failed = set(), set()
    try:
        prepared = gpu_recorder.prepare(case.candidate, subgraphs, None)
        failed = {failure.status for failure in prepared.failed.values()}
    except Refused as refused:
        rules = {violation.rule for violation in refused.violations}
        places = {(violation.file, violation.line) for violation in refused.violations}
        assert not case.here() or case.here() & places, f"points at {places}"
    except Failed as failure:
        failed = {failure.status}
    if rules or failed:
        refusals = {rule for status, rule in case.expected if status == "refused"}
        assert {None, *rules} & refusals or failed & {status for status, _ in case.expected}
    else:
        assert any(status != "refused" or rule not in BEFORE_IT_RUNS for status, rule in case.expected)
