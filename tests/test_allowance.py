"""What a candidate may take in all: its recording, its builds and its calls, beyond what eager takes."""

import os
from types import SimpleNamespace

import pytest
from tiny import HONEST, KERNEL, candidate, write_task

from passagent.config import EvaluatorConfig
from passagent.evaluator.judging import loaded_worker, recorder
from passagent.evaluator.judging.effort import Allowance
from passagent.evaluator.judging.loaded_worker import LoadedWorker
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.runner.endings import WorkerTimeout
from passagent.evaluator.runner.worker_messages import Audit, Release
from passagent.plan import record
from passagent.tasks.reader import load_task

CONFIG = EvaluatorConfig(budget_s=1e-6, memory_gb=6)
ENDLESS_CODE = """
template <int N, int M> struct Sum { static constexpr long of() { return Sum<N-1, 2*M>::of() + Sum<N-1, 2*M+1>::of(); } };
template <int M> struct Sum<0, M> { static constexpr long of() { return M; } };
template <class T> void silu_mul_add("""  # noqa: E501
CODE = KERNEL.replace("\ntemplate <class T> void silu_mul_add(", ENDLESS_CODE)
CODE = CODE.replace("const float x", "volatile long sum = Sum<28, 0>::of();\n    const float x")
LOOP = KERNEL.replace("const float x", "for (volatile int k = 0; k < 2;) {}\n    const float x")
SPENT = "took all of its time, beyond what eager takes"
HELD = {
    "a kernel that never ends": (LOOP, HONEST, "timeout", SPENT),
    "templates without an end": (CODE, HONEST, "compile_error", "compiling took more than"),
    "host code that waits": (
        KERNEL, "    __import__('time').sleep(600)\n" + HONEST, "timeout", "host code waits for nothing",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return load_task(write_task(tmp_path_factory.mktemp("task") / "silu_mul_add"))


@pytest.fixture(scope="module")
def referee(task, forks):
    with Referee(CONFIG, forks) as one:
        assert one.evaluate(task, candidate()).status == "ok"  # what is made once for a machine is there
        yield one


@pytest.mark.long
@pytest.mark.parametrize("name", HELD)
def test_candidate_that_holds_the_evaluator_ends_with_its_allowance(name, referee, task, monkeypatch):
    setup, body, status, message = HELD[name]
    monkeypatch.setattr(recorder, "CANDIDATE_S", 6.0)
    monkeypatch.setattr(record, "WALL_S", 6.0)
    result = referee.evaluate(task, candidate(body, setup))
    assert (result.status, message in result.error) == (status, True), result.error


@pytest.mark.parametrize(("load", "times"), [(0.5, 1), (6.0, 3), (100.0, 4)])
def test_a_busy_machine_lengthens_what_a_candidate_may_take(load, times, referee, task, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    waited, run = [], referee.server.run

    def ran(work, request, limits, wall_s, most):
        waited.append(wall_s)
        return run(work, request, limits, wall_s, most)

    monkeypatch.setattr(referee.server, "run", ran)
    prepared = referee.record(task, candidate())
    assert waited == [times * record.WALL_S]
    whole_s = times * recorder.CANDIDATE_S
    assert whole_s - 30 < prepared.allowance.left_s < whole_s


def limited(left_s, ask):
    """A worker with so much left to its candidate, on a subgraph whose references took eager 300 s."""
    worker = SimpleNamespace(ask=ask, asked_at=0.0)
    loaded = LoadedWorker(worker, candidate(), CONFIG, SimpleNamespace(allowance=Allowance(left_s)))
    loaded._held["g"] = SimpleNamespace(reference=SimpleNamespace(eager_s=300.0))
    return loaded


@pytest.mark.parametrize(
    ("request_", "limit_s", "message"),
    [
        (Audit(id="g", sets=[0], before=1), 120.0, "no answer in 120 s"),
        (Release(ids=["g"]), 10.0, SPENT),
    ],
    ids=["calls of a slow subgraph", "what eager takes no time for"],
)
def test_limit_of_a_request_is_beyond_what_eager_takes(request_, limit_s, message):
    asked = []

    def ask(request, timeout_s, fds):
        asked.append(timeout_s)
        raise WorkerTimeout(f"no answer in {timeout_s:.0f} s")

    with pytest.raises(WorkerTimeout, match=message):
        limited(10.0, ask).ask(request_, 120.0)
    assert asked == [limit_s]


@pytest.mark.parametrize(("took_s", "left_s"), [(500.0, 10.0), (606.0, 4.0)])
def test_time_that_eager_takes_too_is_not_the_candidates(took_s, left_s, monkeypatch):
    monkeypatch.setattr(loaded_worker.time, "monotonic", lambda: took_s)
    answer = SimpleNamespace(said=SimpleNamespace(violations=[]))
    loaded = limited(10.0, lambda request, timeout_s, fds: answer)
    loaded.ask(Audit(id="g", sets=[0], before=1), 1000.0)
    assert loaded._prepared.allowance.left_s == pytest.approx(left_s, abs=1e-3)
