"""Kernels of the candidate that comes next are built beside an evaluation, and nothing else comes of it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from contextlib import contextmanager

import pytest
import tiny
from test_pool import CONFIG, descendants, is_alive, wait_for

from passagent.errors import PassagentError
from passagent.evaluator import environment, judging, lookahead, pool
from passagent.evaluator.devices import Device
from passagent.evaluator.pool import EvaluatorPool
from passagent.evaluator.referee import Referee
from passagent.kernels import build
from passagent.tasks import load_task

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="compilers take a core")
LONGER = CONFIG.model_copy(update={"trials": 50_000, "max_trials": 50_000, "budget_s": 1.0})
"""A second and more for a subgraph."""
TYPES = ("float*", "float*", "float*", "int64_t")
NAME = "silu_mul_add"


def fresh(source: str | None = None, **others):
    """A candidate whose kernel nobody has built, and its source."""
    source = (source or tiny.KERNEL.split('"""')[1]) + f"// {secrets.token_hex(8)}\n"
    setup = f'kernel = cpp_kernel("""{source}""", "{NAME}")'
    return tiny.candidate(setup=setup, **others), source


def built_at(source: str) -> float:
    """When its kernel was built; it is built now if it was not."""
    return build.build(source, NAME, build.Signature(TYPES)).stat().st_mtime


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return tiny.write_subgraph(tmp_path_factory.mktemp("task") / "silu_mul_add", [4, 64])


@pytest.fixture(autouse=True)
def _own_locks(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("locks")))


@pytest.fixture
def cores(monkeypatch):
    """A core for compilers on the CPU, too."""
    monkeypatch.setattr(pool, "set_apart", lambda shares, device: [share[-1:] for share in shares])


def own_cpu() -> Device:
    return Device("cpu", f"cpu-{secrets.token_hex(4)}", "cpu")


def facts(evaluation):
    """What does not depend on times."""
    return evaluation.status, [
        (graph.status, graph.passes_from_t, graph.applied) for graph in evaluation.graphs
    ]


def test_the_next_candidate_in_the_queue_is_built_meanwhile(task, cores):
    (first, _), (second, source) = fresh(), fresh()

    async def work():
        evaluators = EvaluatorPool(LONGER, [own_cpu()], lambda text: None)
        try:
            one = asyncio.create_task(evaluators.evaluate(task, first))
            two = asyncio.create_task(evaluators.evaluate(task, second))
            await one
            return time.time(), await two
        finally:
            await evaluators.close()

    turn, evaluation = asyncio.run(work())
    assert built_at(source) < turn
    with Referee(CONFIG) as referee:
        assert facts(evaluation) == facts(referee.evaluate(load_task(task), second))
    assert evaluation.status == "ok"


def test_what_a_cancelled_caller_wanted_is_not_built(task, cores):
    (first, _), (second, source) = fresh(), fresh()

    async def work():
        evaluators = EvaluatorPool(LONGER, [own_cpu()], lambda text: None)
        owner = evaluators._seats[0].owner
        try:
            one = asyncio.create_task(evaluators.evaluate(task, first))
            two = asyncio.create_task(evaluators.evaluate(task, second))
            while not owner._is_asked:
                await asyncio.sleep(0.01)
            assert owner._next is not None
            two.cancel()
            assert (await one).status == "ok"
            assert owner._next is None
            return time.time()
        finally:
            await evaluators.close()

    end = asyncio.run(work())
    assert built_at(source) > end


def test_an_owner_that_is_killed_meanwhile_leaves_nothing_behind(task, cores):
    hanging, _ = fresh(body=HANGING)

    async def work():
        evaluators = EvaluatorPool(LONGER, [own_cpu()], lambda text: None)
        owner = evaluators._seats[0].owner
        try:
            one = asyncio.create_task(evaluators.evaluate(task, fresh()[0]))
            two = asyncio.create_task(evaluators.evaluate(task, hanging))
            while not owner._is_asked:
                await asyncio.sleep(0.01)
            below: set[int] = set()
            while not any(map(is_guest, below)):
                await asyncio.sleep(0.01)
                below |= descendants(owner.pid)
            os.kill(owner.pid, signal.SIGKILL)
            wait_for(lambda: not any(map(is_alive, below)))
            two.cancel()
            return await one
        finally:
            await evaluators.close()

    assert asyncio.run(work()).status == "ok"


def is_guest(pid: int) -> bool:
    """Whether the process is a candidate's that runs beside an evaluation."""
    try:
        with open(f"/proc/{pid}/oom_score_adj") as file:
            return file.read() == "1000\n"
    except OSError:
        return False


@contextmanager
def looking(monkeypatch):
    """A referee with a core for compilers, its guests' pids, and those that lived while calls were timed."""
    guests: list[int] = []
    disturbers: list[int] = []
    measure = judging.measure

    def watched(*args):
        disturbers.extend(filter(is_alive, guests))
        return measure(*args)

    with Referee(CONFIG, compilers=sorted(os.sched_getaffinity(0))[-1:]) as referee:
        fork = referee._fork

        def noted(share=None):
            worker = fork(share)
            if share is not None:
                guests.append(worker.pid)
            return worker

        monkeypatch.setattr(referee, "_fork", noted)
        monkeypatch.setattr(judging, "measure", watched)
        yield referee, guests, disturbers


def hold_checks_until(condition, monkeypatch):
    """An evaluation's checks last so long."""
    time_all = judging.Judging._time_all

    def later(self):
        wait_for(condition)
        time_all(self)

    monkeypatch.setattr(judging.Judging, "_time_all", later)


LOST = """
template <class T> void silu_mul_add(T* out, const T* a, const T* b, int64_t n) { out[n << 50] = T(1); }
"""
HANGING = "    while True:\n        pass"
CONSTANT = 'k{0} = cpp_kernel("""void k{0}(float* out, int64_t n) {{ out[0] = {0}.{1}; }}""", "k{0}")'
MANY = "\n".join(CONSTANT.format(number, secrets.randbits(50)) for number in range(6))
CALLS = "\n".join(f"    k{number}(out, 0)" for number in range(6))


@pytest.mark.parametrize(("name", "candidate", "said"), [
    ("dies", fresh(LOST)[0], "WorkerDied"),
    ("hangs", fresh(body=HANGING)[0], "WorkerTimeout"),
    ("asks", tiny.candidate(f"    out = torch.empty_like(a)\n{CALLS}\n    return out", MANY),
     "more than 3 builds"),
    ("breaks a rule", fresh(body="    return open('/etc/passwd')")[0], ""),
])  # fmt: skip
def test_a_bad_candidate_costs_nothing_but_itself(task, name, candidate, said, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "passagent.evaluator")
    monkeypatch.setattr(lookahead, "STEP_S", 1.0)
    monkeypatch.setattr(lookahead, "WISHES", 3)
    with looking(monkeypatch) as (referee, guests, disturbers):
        hold_checks_until(lambda: not said or said in caplog.text, monkeypatch)
        referee.foresee(task, candidate)
        evaluation = referee.evaluate(load_task(task), fresh()[0])
    assert evaluation.status == "ok"
    assert bool(guests) == bool(said) and not disturbers


def test_no_other_candidate_lives_while_calls_are_timed(task, monkeypatch):
    hanging, _ = fresh(body=HANGING)
    with looking(monkeypatch) as (referee, guests, disturbers):
        hold_checks_until(lambda: any(map(is_alive, guests)), monkeypatch)
        referee.foresee(task, hanging)
        assert referee.evaluate(load_task(task), fresh()[0]).status == "ok"
        assert guests and not disturbers and not any(map(is_alive, guests))


def test_candidates_that_are_offered_too_late_wait_for_the_next_evaluation(task, monkeypatch):
    (second, source), (third, _) = fresh(), fresh()
    measure = judging.measure
    with looking(monkeypatch) as (referee, guests, _):

        def offering(*args):
            if not guests:
                referee.foresee(task, second)
            return measure(*args)

        monkeypatch.setattr(judging, "measure", offering)
        assert referee.evaluate(load_task(task), fresh()[0]).status == "ok"
        assert not guests
        monkeypatch.setattr(judging, "measure", measure)
        hold_checks_until(lambda: guests and not is_alive(guests[0]), monkeypatch)
        assert referee.evaluate(load_task(task), third).status == "ok"
        assert len(guests) == 1
        began = time.time()
        referee.foresee(task, second)
        assert referee.evaluate(load_task(task), second).status == "ok"
        assert len(guests) == 1, "it looks ahead at itself"
    assert built_at(source) < began


def test_which_cores_compilers_get(monkeypatch):
    monkeypatch.setattr(environment, "_hyperthreads", lambda core: {core, core - 4})
    ten, two = list(range(10)), [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]
    assert environment.set_apart([ten], "cuda:0") == [[5, 9]]
    assert environment.set_apart(two, "cuda:0") == [[3, 7], [11, 15]]
    assert environment.set_apart([ten], "cpu") == [[]], "a timed call takes all cores"
    assert environment.set_apart([ten[:7]], "cuda:0") == [[]]
    assert environment.set_apart([ten, ten], "cuda:0") == [[], []], "devices share cores"


def test_a_builder_keeps_to_its_cores_and_is_nice(monkeypatch):
    cores = sorted(os.sched_getaffinity(0))[-1:]
    found = []

    def compiled(request):
        with os.popen("grep Cpus_allowed_list /proc/self/status; nice") as told:
            found.extend(told.read().split())
        raise PassagentError("no")

    monkeypatch.setattr(lookahead.builds, "answer", compiled)
    builders = lookahead.ThreadPoolExecutor(1, "", lookahead._settle, (cores,))
    with pytest.raises(PassagentError):
        builders.submit(lookahead.builds.answer, {}).result()
    builders.shutdown()
    assert found == ["Cpus_allowed_list:", str(cores[0]), "19"]
    assert os.sched_getaffinity(0) != set(cores) and os.nice(0) < 19
