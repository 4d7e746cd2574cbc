"""Attacks whose results are right, or right where they are looked at, get no more than an honest kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import read_case, referees_of, write_task

from passagent.config import EvaluatorConfig

HERE = Path(__file__).parent
CONFIG = EvaluatorConfig(warmups=3, trials=20, max_trials=40, timeout_s=120, memory_gb=6)
ATTACKS = (
    "cpp_computes_a_block_in_its_first_call",
    "cpp_computes_ahead_while_no_clock_runs",
    "cpp_skips_blocks_that_nobody_verifies",
    "cpp_skips_what_comes_after_the_verified_call",
)
MORE = 1.6
"""Before they were stopped these got 2.6 to 30 times as much."""


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    with referees_of(CONFIG) as on:

        def evaluate(path):
            case = read_case(path)
            return on("cpu").evaluate(write_task(tmp_path_factory.mktemp("task"), case.task), case.candidate)

        yield evaluate


def test_what_timed_calls_are_told_ahead_does_not_pay(judged):
    honest = judged(HERE / "honest" / "cpp_chain_of_functions.py")
    assert honest.status == "ok"
    results = {name: judged(HERE / "adversarial" / f"{name}.py") for name in ATTACKS}
    paid = {name: one.as_score for name, one in results.items() if one.as_score > MORE * honest.as_score}
    assert not paid, f"honest: {honest.as_score}"
