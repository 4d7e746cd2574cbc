"""Attacks whose results are right, or right where they are looked at, get no more than an honest kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import read_case, referees_of, write_task

from passagent.config import EvaluatorConfig

HERE = Path(__file__).parent
CONFIG = EvaluatorConfig(warmups=3, trials=20, max_trials=40, timeout_s=120, memory_gb=6)
ATTACKS = {
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
MORE = 1.6
"""Before they were stopped these got 1.9 to 30 times as much."""


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    with referees_of(CONFIG) as on:

        def evaluate(path):
            case = read_case(path)
            return on("cpu").evaluate(write_task(tmp_path_factory.mktemp("task"), case.task), case.candidate)

        yield evaluate


@pytest.mark.parametrize("twin", ATTACKS)
def test_what_native_code_finds_in_its_worker_does_not_pay(judged, twin):
    """A noisy machine measures again: what pays does so each time."""
    paid = ATTACKS[twin]
    for _ in range(5):
        honest = judged(HERE / "honest" / f"{twin}.py")
        assert honest.status == "ok"
        scores = {name: judged(HERE / "adversarial" / f"{name}.py").as_score for name in paid}
        paid = [name for name, score in scores.items() if score > MORE * honest.as_score]
        if not paid:
            return
    pytest.fail(f"{paid} pay: {scores}, honest: {honest.as_score}")
