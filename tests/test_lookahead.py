"""Kernels of the candidate that comes next are built beside an evaluation, and nothing else comes of it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from contextlib import asynccontextmanager

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


@pytest.fixture(scope="module")
def referee():
    with Referee(CONFIG, compilers=sorted(os.sched_getaffinity(0))[-1:]) as one:
        yield one


@pytest.fixture(autouse=True)
def _own_locks(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("locks")))


@pytest.fixture
def cores(monkeypatch):
    """A core for compilers on the CPU, too."""
    monkeypatch.setattr(pool, "set_apart", lambda shares, device: [share[-1:] for share in shares])


LOST = """
template <class T> void silu_mul_add(T* out, const T* a, const T* b, int64_t n) { out[n << 50] = T(1); }
"""
HANGING = "    while True:\n        pass"
CONSTANT = 'k{0} = cpp_kernel("""void k{0}(float* out, int64_t n) {{ out[0] = {0}.{1}; }}""", "k{0}")'
LAST = "    kernel(out, a, b, a.numel())\n    return out"
CALLS = "\n".join(f"    k{number}(out, 0)" for number in range(6))


def many() -> str:
    """Six kernels that nobody has built."""
    return "\n".join(CONSTANT.format(number, secrets.randbits(50)) for number in range(6))


def slowly_checked():
    """A candidate that the compilers are busy with."""
    body = f"    out = torch.empty_like(a)\n{CALLS}\n{LAST}"
    return tiny.candidate(body, f"{many()}\n{tiny.KERNEL}")


def own_cpu() -> Device:
    return Device("cpu", f"cpu-{secrets.token_hex(4)}", "cpu")


def facts(evaluation):
    """What does not depend on times."""
    return evaluation.status, [
        (graph.status, graph.passes_from_t, graph.applied) for graph in evaluation.graphs
    ]


@asynccontextmanager
async def queue(task, *candidates):
    """A pool with one device, and those who wait for the candidates' evaluation; the first one is begun."""
    evaluators = EvaluatorPool(LONGER, [own_cpu()], lambda text: None)
    callers = [asyncio.create_task(evaluators.evaluate(task, candidate)) for candidate in candidates]
    try:
        while not evaluators._seats[0].owner._is_asked:
            await asyncio.sleep(0.01)
        yield evaluators, callers
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        await evaluators.close()


def test_the_next_in_the_queue_is_built_meanwhile_unless_it_goes_away(task, referee, cores):
    (gone, not_wanted), (second, source) = fresh(), fresh()

    async def work():
        async with queue(task, slowly_checked(), gone) as (evaluators, callers):
            assert evaluators._seats[0].owner._next is not None, "it was told"
            callers[1].cancel()
            assert (await callers[0]).status == "ok"
            turns = [time.time()]
            both = [evaluators.evaluate(task, candidate) for candidate in (slowly_checked(), second)]
            callers.extend(map(asyncio.create_task, both))
            await callers[2]
            return [*turns, time.time()], await callers[3]

    turns, evaluation = asyncio.run(work())
    assert built_at(not_wanted) > turns[0]
    assert built_at(source) < turns[1]
    assert facts(evaluation) == facts(referee.evaluate(load_task(task), second))
    assert evaluation.status == "ok"


def test_an_owner_that_is_killed_meanwhile_leaves_nothing_behind(task, cores):
    async def work():
        async with queue(task, fresh()[0], fresh(body=HANGING)[0]) as (evaluators, _):
            owner = evaluators._seats[0].owner.pid
            below: set[int] = set()
            while not any(map(is_guest, below)):
                await asyncio.sleep(0.01)
                below |= descendants(owner)
            os.kill(owner, signal.SIGKILL)
            wait_for(lambda: not any(map(is_alive, below)))

    asyncio.run(work())


def is_guest(pid: int) -> bool:
    """Whether the process is a candidate's that runs beside an evaluation."""
    try:
        with open(f"/proc/{pid}/oom_score_adj") as file:
            return file.read() == "1000\n"
    except OSError:
        return False


@pytest.fixture
def guests(referee, monkeypatch):
    """The pids of the candidates that ran beside others; that none of them lives while calls are timed."""
    pids: list[int] = []
    disturbers: list[int] = []
    fork, measure = referee._fork, judging.measure

    def noted(share=None):
        worker = fork(share)
        if share is not None:
            pids.append(worker.pid)
        return worker

    def watched(*args):
        disturbers.extend(filter(is_alive, pids))
        return measure(*args)

    monkeypatch.setattr(referee, "_fork", noted)
    monkeypatch.setattr(judging, "measure", watched)
    yield pids
    assert not disturbers


def hold_checks_until(condition, monkeypatch):
    """An evaluation's checks last so long."""
    time_all = judging.Judging._time_all

    def later(self):
        wait_for(condition)
        time_all(self)

    monkeypatch.setattr(judging.Judging, "_time_all", later)


@pytest.mark.parametrize(("name", "candidate", "said"), [
    ("dies", fresh(LOST)[0], "WorkerDied"),
    ("hangs", fresh(body=HANGING)[0], "WorkerTimeout"),
    ("asks", tiny.candidate(f"    out = torch.empty_like(a)\n{CALLS}\n    return out", many()),
     "more than 3 builds"),
    ("breaks a rule", fresh(body="    return open('/etc/passwd')")[0], ""),
])  # fmt: skip
def test_a_bad_candidate_costs_nothing_but_itself(
    task, referee, guests, name, candidate, said, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "passagent.evaluator")
    monkeypatch.setattr(lookahead, "STEP_S", 1.0)
    monkeypatch.setattr(lookahead, "WISHES", 3)
    hold_checks_until(lambda: not said or said in caplog.text, monkeypatch)
    referee.foresee(task, candidate)
    assert referee.evaluate(load_task(task), fresh()[0]).status == "ok"
    assert bool(guests) == bool(said)


def test_a_candidate_that_hangs_is_ended_before_calls_are_timed(task, referee, guests, monkeypatch):
    hold_checks_until(lambda: any(map(is_alive, guests)), monkeypatch)
    referee.foresee(task, fresh(body=HANGING)[0])
    assert referee.evaluate(load_task(task), fresh()[0]).status == "ok"
    assert guests and not any(map(is_alive, guests))


def test_what_is_offered_while_calls_are_timed_waits_for_the_next_evaluation(
    task, referee, guests, monkeypatch
):
    (second, source), (third, _) = fresh(), fresh()
    measure = judging.measure

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
    builders = lookahead.ThreadPoolExecutor(1, "", lookahead.settle, (cores,))
    with pytest.raises(PassagentError):
        builders.submit(lookahead.builds.answer, {}).result()
    builders.shutdown()
    assert found == ["Cpus_allowed_list:", str(cores[0]), "19"]
    assert os.sched_getaffinity(0) != set(cores) and os.nice(0) < 19
