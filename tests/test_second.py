"""What goes on at a time: references are drawn ahead; with cores to spare a second worker gets ready or has
subgraphs of its own, eager's worker gets ready, and comparing goes on aside.
"""

import os
import signal
import threading

import pytest
from tiny import KERNEL, candidate, write_task

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator.judging import effort, timed_checks
from passagent.evaluator.judging.eager_worker import EagerWorker
from passagent.evaluator.judging.loaded_worker import LoadedWorker
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.judging.verdict import Refused
from passagent.evaluator.result import Violation
from passagent.evaluator.runner.process import Worker
from passagent.tasks.reader import load_task

pytestmark = pytest.mark.usefixtures("own_memory")

CONFIG = EvaluatorConfig(budget_s=1e-6, timeout_s=120, memory_gb=6)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return load_task(write_task(tmp_path_factory.mktemp("task") / "silu_mul_add"))


@pytest.fixture(scope="module")
def referee():
    with Referee(CONFIG) as one:
        yield one


@pytest.fixture(autouse=True)
def room(monkeypatch):
    monkeypatch.setattr(effort, "has_room", lambda _: True)


@pytest.fixture
def asked(monkeypatch):
    """What each holder was asked for, and in which thread: (holder, operation, thread)."""
    found = []
    ask = LoadedWorker.ask

    def noted(self, message, fds=()):
        found.append((self, message.op, threading.current_thread().name.partition("_")[0]))
        return ask(self, message, fds)

    monkeypatch.setattr(LoadedWorker, "ask", noted)
    return found


@pytest.fixture
def one_pair(monkeypatch):
    """One pair of workers times a candidate, so two workers share its subgraphs."""
    monkeypatch.setattr(effort, "pairs_of", lambda *_: 1)
    monkeypatch.setattr(effort, "lanes_of", lambda _: 2)


def holders(asked):
    return list(dict.fromkeys(holder for holder, *_ in asked))


@pytest.mark.parametrize("op", ["load", "audit"])
def test_a_second_worker_that_is_lost_is_replaced(op, referee, task, asked, monkeypatch):
    killed = []
    ask = Worker.ask

    def kill(self, message, timeout_s, fds=()):
        if message.op == op and threading.current_thread().name.startswith("second"):
            os.kill(self.pid, signal.SIGKILL)
            killed.append(self)
        return ask(self, message, timeout_s, fds)

    monkeypatch.setattr(Worker, "ask", kill)
    result = referee.evaluate(task, candidate())
    assert (result.status, [graph.pairs for graph in result.graphs]) == ("ok", [[6, 6]] * 3)
    assert len(killed) == 1
    assert len(holders(asked)) == 3


def test_a_rule_that_only_the_second_worker_saw_broken_counts(referee, task, monkeypatch):
    audited = LoadedWorker.audited

    def seen(self, reference, outputs, sets):
        if threading.current_thread().name.startswith("second"):
            raise Refused([Violation(rule="delegated", file="", line=0, message="not so")])
        return audited(self, reference, outputs, sets)

    monkeypatch.setattr(LoadedWorker, "audited", seen)
    result = referee.evaluate(task, candidate())
    assert (result.status, [graph.status for graph in result.graphs]) == ("refused", ["refused"] * 3)
    assert [(one.rule, one.file) for one in result.violations] == [("delegated", "Fused.py")]


def hanging(types=""):
    """A kernel that never ends, for values of some types or all."""
    endless = f"for (volatile int k = 0; {types}k < 2;) {{}}"
    return candidate(setup=KERNEL.replace("const float x", f"{endless}\n    const float x"))


def test_a_second_worker_that_hangs_ends_with_the_first(referee, task, monkeypatch):
    monkeypatch.setattr(referee, "config", CONFIG.model_copy(update={"timeout_s": 4.0}))
    assert referee.evaluate(task, hanging()).status == "timeout"
    monkeypatch.setattr(referee, "config", CONFIG)
    assert referee.evaluate(task, candidate()).status == "ok"


@pytest.mark.parametrize("op", ["load", "audit"])
def test_a_worker_lost_beside_another_is_nobodys_fault(op, referee, task, one_pair, monkeypatch):
    killed = []
    ask = Worker.ask

    def kill(self, message, timeout_s, fds=()):
        if message.op == op and threading.current_thread().name == "lane_1" and not killed:
            os.kill(self.pid, signal.SIGKILL)
            killed.append(self)
        return ask(self, message, timeout_s, fds)

    monkeypatch.setattr(Worker, "ask", kill)
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        referee.evaluate(task, candidate())
    assert referee.evaluate(task, candidate()).status == "ok"


def test_of_two_workers_one_that_hangs_ends_the_evaluation(referee, task, one_pair, monkeypatch):
    monkeypatch.setattr(referee, "config", CONFIG.model_copy(update={"timeout_s": 4.0}))
    assert referee.evaluate(task, hanging("sizeof(T) == 4 && ")).status == "timeout"
    monkeypatch.setattr(referee, "config", CONFIG)
    assert referee.evaluate(task, candidate()).status == "ok"


def test_eagers_worker_lost_while_it_gets_ready_is_nobodys_fault(referee, task, monkeypatch):
    referee.workers.eager.close()
    killed = []
    warm = EagerWorker.warm

    def kill(self, reference):
        if not killed:
            os.kill(self.worker.pid, signal.SIGKILL)
            killed.append(self)
        return warm(self, reference)

    monkeypatch.setattr(EagerWorker, "warm", kill)
    with pytest.raises(InfrastructureError, match="eager's worker was lost"):
        referee.evaluate(task, candidate())
    assert referee.evaluate(task, candidate()).status == "ok"


def test_a_comparison_that_fails_beside_timed_calls_counts(referee, task, monkeypatch):
    compared = []

    def differs(expected, eager, got, result, allowed, is_candidate):
        compared.append(threading.current_thread().name.partition("_")[0])
        wrong = compared.count("aside") == 1 and compared[-1] == "aside"
        judge_timed(expected, eager, [one + wrong for one in got], result, allowed, is_candidate)

    judge_timed = timed_checks.judge_timed

    monkeypatch.setattr(timed_checks, "judge_timed", differs)
    result = referee.evaluate(task, candidate())
    assert [graph.status for graph in result.graphs] == ["ok", "ok", "wrong_result"]
    wrong = result.graphs[-1]  # the first that is timed
    assert (wrong.speedup, wrong.passes_from_t) == (None, None)
    assert "a timed call differs" in wrong.error
