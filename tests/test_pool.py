"""The pool: a device judges one subject at a time, faults are retried, sick devices quarantined."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tiny

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, TaskError, UsageError
from passagent.evaluator.hardware import health, nvml
from passagent.evaluator.hardware.devices import Device, find_device, find_devices
from passagent.evaluator.hardware.leases import DeviceLease
from passagent.evaluator.reference import keeping
from passagent.evaluator.result import Evaluation, GraphResult
from passagent.evaluator.service import pool
from passagent.evaluator.service.pool import EvaluatorPool, SubjectLost
from passagent.evaluator.service.referee_process import RefereeProcess
from passagent.sandbox import environment
from passagent.tasks import load_task

pytestmark = pytest.mark.usefixtures("own_memory")

CONFIG = EvaluatorConfig(budget_s=1e-6, timeout_s=120, memory_gb=6)
SLOW = CONFIG.model_copy(update={"budget_s": 3.0})
"""Some seconds for a subgraph."""
MISSING = Device("cuda:7", "GPU-test-missing", "none")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return tiny.write_subgraph(tmp_path_factory.mktemp("task") / "silu_mul_add", [4, 64])


@pytest.fixture
def own_cpu():
    """A CPU with another UUID than `cpu`."""
    return Device("cpu", "cpu-a", "cpu")


@pytest.fixture
def quick_pauses(monkeypatch):
    monkeypatch.setattr(pool, "PAUSES_S", (0.5, 1.0))


def run(work):
    """`work(told)` on an event loop, and what was told."""
    told: list[str] = []
    return asyncio.run(work(told)), told


def descendants(pid: int) -> set[int]:
    """All processes below `pid`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parents[int(entry.name)] = health._parent(int(entry.name))
    below = {pid} if pid else set()
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {pid}


def wait_for(condition, seconds: float = 600.0, every_s: float = 0.05):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(every_s)


def kill_owner(evaluators: EvaluatorPool, times: int, after_s: float = 0.3) -> threading.Thread:
    """Kill -9 the first device's process `times` times, each a while after it came up with its workers."""

    def kill() -> None:
        for _ in range(times):
            wait_for(lambda: (pid := evaluators._slots[0].owner.pid) and len(descendants(pid)) >= 3)
            time.sleep(after_s)
            pid = evaluators._slots[0].owner.pid
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: evaluators._slots[0].owner.pid != pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def test_a_pool_that_was_started_judges_by_the_process_that_it_started(task):
    """That process is told of candidates before it answers and while it is asked."""

    async def work(told):
        evaluators = EvaluatorPool(CONFIG, tell=told.append)
        evaluators.start()
        owner, files = evaluators._slots[0].owner, tiny.candidate().files
        pid, request = owner.pid, {"task": str(task), "files": files, "bar": None}
        await owner.foresee(request)
        asked = asyncio.create_task(evaluators.evaluate(task, tiny.candidate()))
        while owner._running is None or owner._running.streams is None:
            await asyncio.sleep(0.01)
        await owner.foresee(request | {"task": "nowhere"})
        await owner.foresee(request)
        found = await asked, await evaluators.evaluate(task, tiny.candidate())
        assert evaluators._slots[0].owner.pid == pid
        await evaluators.close()
        return [one.status for one in found]

    assert run(work) == (["ok", "ok"], [])


@pytest.mark.long
def test_a_referees_process_ends_with_its_parent_whatever_it_had_to_say(own_cpu):
    """The answer that nobody read makes a reset of the end of its input."""
    owner = RefereeProcess(own_cpu, CONFIG, sorted(os.sched_getaffinity(0)))
    owner.start()
    running = owner._running
    assert select.select([running.socket], [], [], 600)[0]
    running.socket.close()
    assert running.process.wait(600) == 0
    running.log.close()


def test_who_waits_when_the_pool_is_closed_is_told(task, own_cpu):
    async def work(told):
        evaluators = EvaluatorPool(SLOW, [own_cpu], told.append)
        callers = [asyncio.create_task(evaluators.evaluate(task, tiny.candidate())) for _ in range(3)]
        while evaluators._slots[0].owner.pid is None:
            await asyncio.sleep(0.01)
        await evaluators.close()
        ended = await asyncio.wait_for(asyncio.gather(*callers, return_exceptions=True), 600)
        assert evaluators._slots[0].owner.pid is None
        return ended

    ended, told = run(work)
    assert [type(one) for one in ended] == [InfrastructureError] * 3
    assert all("closed" in str(one) for one in ended) and not told


@pytest.mark.long
def test_a_killed_evaluator_costs_nobody_anything_and_what_ends_every_one_is_named(task, own_cpu):
    async def work(told):
        evaluators = EvaluatorPool(SLOW, [own_cpu], told.append)
        thread = kill_owner(evaluators, 1)
        try:
            evaluation = await evaluators.evaluate(task, tiny.candidate())
            thread.join()
            told_once = told.copy()
            thread = kill_owner(evaluators, 3)
            with pytest.raises(SubjectLost) as error:
                await evaluators.evaluate(task, tiny.candidate())
            thread.join()
            assert evaluators._slots[0].quarantine is None
            return evaluation, told_once, str(error.value)
        finally:
            await evaluators.close()
            thread.join()

    (evaluation, told_once, message), told = run(work)
    assert evaluation.status == "ok"
    assert len(told_once) == 1 and "died with SIGKILL" in told_once[0]
    name = f"candidate {tiny.candidate().key[:12]}"
    assert name in message and "died with SIGKILL" in message and "3 times" in message
    assert [line for line in told if line.startswith(name)], told


@pytest.mark.long
def test_neither_a_cancelled_evaluation_nor_a_broken_task_leaves_an_answer_behind(task, own_cpu, tmp_path):
    broken = tiny.write_task(tmp_path / "broken", tiny.MODEL.replace("tmp_1 + 1.0", "tmp_1.nonsense()"))

    async def work(told):
        evaluators = EvaluatorPool(SLOW, [own_cpu], told.append)
        try:
            first = asyncio.create_task(evaluators.evaluate(task, tiny.candidate()))
            while len(descendants(evaluators._slots[0].owner.pid or 0)) < 3:
                await asyncio.sleep(0.05)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            with pytest.raises(TaskError):
                await evaluators.evaluate(broken, tiny.candidate())
            wrong = tiny.candidate("    return torch.empty_like(a)")
            return wrong, await evaluators.evaluate(task, wrong)
        finally:
            await evaluators.close()

    (wrong, evaluation), told = run(work)
    assert evaluation.candidate == wrong.key and evaluation.status != "ok"
    assert told == []


@pytest.mark.long
def test_two_devices_measure_side_by_side_and_do_the_work_of_a_sick_one(task, own_cpu):
    devices = [MISSING, own_cpu, Device("cpu", own_cpu.uuid + "-b", "cpu")]

    async def work(told):
        evaluators = EvaluatorPool(CONFIG, devices, told.append)
        try:
            all_three = [evaluators.evaluate(task, tiny.candidate()) for _ in range(3)]
            results = await asyncio.gather(*all_three)
            return results, evaluators._slots, [slot.owner.pid for slot in evaluators._slots]
        finally:
            await evaluators.close()

    (results, (sick, *healthy), pids), told = run(work)
    assert [(r.status, r.device) for r in results] == [("ok", "cpu")] * 3
    assert pids[0] is None and all(pids[1:]) and pids[1] != pids[2]
    assert [slot.quarantine for slot in healthy] == [None, None]
    assert "a kernel on cuda:7 failed" in sick.quarantine.reason
    assert any(line.startswith("cuda:7 is quarantined for 5 s: ") for line in told)


@pytest.mark.long
def test_without_a_fit_device_the_reason_is_told_and_it_is_tried_again(task, quick_pauses):
    async def work(told):
        evaluators = EvaluatorPool(CONFIG, [MISSING], told.append)
        try:
            with pytest.raises(InfrastructureError) as error:
                await evaluators.evaluate(task, tiny.candidate())
            first = evaluators._slots[0].quarantine
            await asyncio.sleep(0.6)
            with pytest.raises(InfrastructureError):
                await evaluators.evaluate(task, tiny.candidate())
            return str(error.value), first, evaluators._slots[0].quarantine
        finally:
            await evaluators.close()

    (message, first, second), _ = run(work)
    assert message.startswith("no device is fit: cuda:7 is quarantined since ")
    assert "a kernel on cuda:7 failed" in message and "tried again in" in message
    assert (first.times, second.times) == (1, 2)


@pytest.mark.long
def test_an_evaluator_that_does_not_start_is_quarantined_until_it_does(
    task, own_cpu, quick_pauses, tmp_path, monkeypatch
):
    culprit = tmp_path / "sitecustomize.py"
    culprit.write_text(
        "import os, sys\nif 'passagent.sandbox.fork_server' in sys.orig_argv:\n"
        "    print('no worker today', file=sys.stderr, flush=True)\n    os._exit(3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    async def work(told):
        evaluators = EvaluatorPool(CONFIG, [own_cpu], told.append)
        try:
            with pytest.raises(InfrastructureError) as error:
                await evaluators.evaluate(task, tiny.candidate())
            culprit.unlink()
            await asyncio.sleep(0.6)
            return str(error.value), await evaluators.evaluate(task, tiny.candidate())
        finally:
            await evaluators.close()

    (message, evaluation), _ = run(work)
    assert "cpu is quarantined" in message and "does not start" in message and "no worker today" in message
    assert evaluation.status == "ok"


@pytest.mark.parametrize(
    "text",
    ["cuda:7", "cuda:0,cuda:7", "cpu,cpu", "cpu:0", "cuda:x", "cuda:0,cpu", "", "tpu", "cuda:99", "cpu:1"],
)
def test_a_device_that_is_not_here_is_a_usage_error(text):
    with pytest.raises(UsageError, match=r"^--device "):
        EvaluatorPool(CONFIG.model_copy(update={"device": text}))


def test_workers_without_a_parent_are_listed():
    name = "passagent.sandbox.fork_server"
    program = "import subprocess as s, sys; n = s.DEVNULL; sleep = 'import time; time.sleep(99)'; "
    program += f"print(s.Popen([sys.executable, '-c', sleep, {name!r}], stdout=n, stderr=n).pid)"
    started = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    orphan = int(started.stdout)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)", name])
    try:
        if not health._adopts(health._parent(orphan)):
            pytest.skip("orphans are adopted by another process here")
        assert orphan in (orphans := health.orphaned_workers()) and child.pid not in orphans
    finally:
        os.kill(orphan, signal.SIGKILL)
        child.kill()
        child.wait()


def test_a_health_check_that_dies_says_why(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch is gone')")
    monkeypatch.setattr(health, "import_path", lambda: {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"})
    problem = asyncio.run(health.check(find_device("cpu")))
    assert problem == "the health check failed: OSError: libtorch is gone"


def test_which_throttling_makes_a_device_sick():
    names = nvml.throttle_names(0x1 | 0x4 | 0x40)  # idle, software power cap, hardware thermal slowdown
    assert names == ["power_cap", "hw_thermal_slowdown"]
    assert health.is_throttled({"before": {"throttle": []}, "after": {"throttle": names}})
    assert not health.is_throttled({"after": {"throttle": ["power_cap"]}})


@pytest.mark.gpu
def test_a_gpu_is_found_healthy_and_its_state_is_told():
    device = find_device("cuda")
    assert find_devices("cuda:all")[0] == device
    assert asyncio.run(health.check(device)) is None
    state = health.device_state("cuda:0")
    assert {"sm_mhz", "mem_mhz", "temperature_c", "power_w", "throttle"} <= set(state)
    assert nvml.gpu_problem("GPU-00000000-0000-0000-0000-000000000000") is not None


@pytest.mark.parametrize(("cores", "count", "shares"), [
    (8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    (9, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
    (5, 2, [[0, 1], [2, 3]]),
    (3, 2, [[0, 1, 2], [0, 1, 2]]),
])  # fmt: skip
def test_devices_side_by_side_have_cores_of_their_own(monkeypatch, cores, count, shares):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert environment.core_shares(count) == shares


def test_hyperthreads_of_a_core_stay_together(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    monkeypatch.setattr(environment, "_first_sibling", lambda core: core % 6)
    assert environment.core_shares(2) == [[0, 6, 1, 7, 2, 8], [3, 9, 4, 10, 5, 11]]
    assert environment.core_shares(4) == [[0, 6], [1, 7], [2, 8], [3, 9]]


@pytest.mark.parametrize(("threads", "sets"), [(None, 1), (7, 8), (8, 7), (63, 1), (200, 1)])
def test_a_cpu_of_many_cores_judges_several_candidates_at_once(monkeypatch, threads, sets):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(environment, "_first_sibling", lambda core: core)
    slots = EvaluatorPool(CONFIG.model_copy(update={"threads": threads}))._slots
    assert [slot.device.name for slot in slots] == ["cpu"] * sets
    taken = [core for slot in slots for core in slot._cores]
    assert len(taken) == len(set(taken)) > 64 - sets
    assert all(len(slot._cores) > min(threads or 63, 63) for slot in slots)


def test_cores_that_another_program_uses_are_taken_last(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(environment, "_first_sibling", lambda core: core)
    evaluators = EvaluatorPool(CONFIG.model_copy(update={"threads": 31}))
    first, second = evaluators._slots
    with DeviceLease(first.device, first._cores).shared():
        assert asyncio.run(evaluators._take()) is second
        assert asyncio.run(evaluators._take()) is first


@pytest.mark.parametrize(("others", "status"), [(0, "out_of_memory"), (2, "lost")])
def test_memory_that_another_program_may_have_taken_is_charged_to_nobody(
    task, own_cpu, others, status, monkeypatch
):
    async def healthy(*_):
        return None

    monkeypatch.setattr(health, "check", healthy)
    graph = GraphResult(name="g", dtype="float32", status="out_of_memory", error="CUDA out of memory")
    made = Evaluation(
        task="t",
        candidate="c",
        device="cuda:0",
        dispatch="direct",
        timing="none",
        status="out_of_memory",
        as_score=None,
        es=None,
        evaluator_version="0",
        graphs=[graph],
        device_state={"before": {"other_processes": 0}, "after": {"other_processes": others}},
    )

    async def work(told):
        evaluators = EvaluatorPool(CONFIG, [own_cpu], told.append)

        async def ask(request):
            return made.model_dump()

        evaluators._slots[0].owner.ask = ask
        try:
            return (await evaluators.evaluate(task, tiny.candidate())).status
        except SubjectLost:
            return "lost"

    found, told = run(work)
    assert found == status
    reason = "cpu: out of memory on a GPU that 2 process(es) of other programs use"
    assert told.count(reason) == (3 if others else 0)


def test_eager_that_does_not_fit_beside_other_programs_is_no_fault_of_the_task(task, monkeypatch):
    [subgraph] = load_task(task).subgraphs
    assert isinstance(keeping.too_large(subgraph, "cpu"), TaskError)
    monkeypatch.setattr(health, "device_state", lambda device: {"other_processes": 1})
    assert isinstance(keeping.too_large(subgraph, "cuda:0"), InfrastructureError)
