"""The referee on a small real task: honest work is scored, and every failure gets its own status."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny import HONEST, KERNEL, candidate, write_subgraph, write_task

from passagent.config import EvaluatorConfig
from passagent.errors import TaskError, UsageError
from passagent.evaluator.pool import EvaluatorPool
from passagent.evaluator.process import Answer
from passagent.evaluator.referee import Referee, check_device
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.evaluator.timing import Samples, clocks_agree
from passagent.tasks.reader import load_task

CONFIG = EvaluatorConfig(warmups=3, trials=20, remeasure=0, timeout_s=20, memory_gb=6)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return load_task(write_task(tmp_path_factory.mktemp("task") / "silu_mul_add"))


@pytest.fixture(scope="module")
def referee():
    with Referee(CONFIG) as one:
        yield one


def test_an_honest_pass_is_scored(referee, task):
    result = referee.evaluate(task, candidate())
    assert result.status == "ok"
    assert result.violations == []
    assert set(result.es) == {str(t) for t in range(-10, 5)}
    assert result.as_score > 0.1
    for graph in result.graphs:
        assert (graph.matches, graph.applied) == (1, ["Fused"])
        assert graph.passes_from_t <= -3
        assert graph.speedup.e2e == pytest.approx(graph.eager_ms / graph.compiled_ms)
        assert len(graph.eager_samples_ms) == len(graph.compiled_samples_ms) == graph.trials == 20
        assert graph.nodes_after < graph.nodes_before


def test_dynamo_dispatch_gives_the_same_verdict(task):
    with Referee(CONFIG.model_copy(update={"dispatch": "dynamo"})) as referee:
        result = referee.evaluate(task, candidate())
    assert (result.status, result.dispatch) == ("ok", "dynamo")
    assert [graph.matches for graph in result.graphs] == [1, 1, 1]


def broken(body, setup=KERNEL, imports=""):
    return candidate(body, setup, imports)


FAILURES = {
    "wrong values": ("wrong_result", broken("    out = torch.zeros_like(a)\n    return out")),
    "uninitialised memory": ("wrong_result", broken("    return torch.empty_like(a)")),
    "its input": ("wrong_result", broken("    return a")),
    "a wrong shape": ("runtime_error", broken("    return torch.zeros(1, dtype=a.dtype)")),
    "a wrong dtype": ("runtime_error", broken("    return torch.zeros(a.shape, dtype=torch.float64)")),
    "an exception": ("runtime_error", broken("    raise ValueError('not today')")),
    "a segfault": (
        "runtime_error",
        broken(
            HONEST,
            KERNEL.replace("const float x", "*reinterpret_cast<volatile int*>(8) = 1;\n    const float x"),
        ),
    ),
    "an endless loop in C++": (
        "timeout",
        broken(
            HONEST, KERNEL.replace("const float x", "for (volatile int k = 0; k < 2;) {}\n    const float x")
        ),
    ),
    "too much memory": ("out_of_memory", broken("    torch.empty(1 << 34)\n" + HONEST)),
    "C++ that does not compile": ("compile_error", broken(HONEST, KERNEL.replace("const float x", "oops x"))),
    "an exception at import": ("load_error", broken(HONEST, KERNEL + "\nx = 1 // 0")),
    "a syntax error": ("load_error", Candidate({"Fused.py": "def pattern(:\n", MANIFEST: '["Fused"]'})),
    "a manifest without a file": ("load_error", Candidate({MANIFEST: '["Fused"]'})),
    "a manifest that is no JSON": ("load_error", Candidate(candidate().files | {MANIFEST: "Fused"})),
    "another pattern": (
        "mismatch",
        Candidate({k: v.replace("+ 1.0", "+ 2.0") for k, v in candidate().files.items()}),
    ),
    "a forbidden header": (
        "refused",
        broken(HONEST, KERNEL.replace('"""\n', '"""\n#include <unistd.h>\n', 1)),
    ),
    "torch in the wrapper": ("refused", broken("    return torch.nn.functional.silu(a) * b + 1.0")),
    "operators in the wrapper": ("refused", broken("    return a * b")),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_has_its_own_status(name, task, tmp_path):
    status, bad = FAILURES[name]
    config = CONFIG.model_copy(update={"timeout_s": 6.0}) if status == "timeout" else CONFIG
    with Referee(config) as referee:
        result = referee.evaluate(task, bad)
    assert result.status == status, result.error
    assert result.error
    assert result.as_score is not None
    assert result.as_score < 0.5
    if status == "refused":
        assert list(result.es.values()) == pytest.approx([0.1] * 15)
        assert result.violations
        assert result.violations[0].file == "Fused.py"
        assert result.violations[0].message
    if status == "mismatch":
        mismatch = result.graphs[0].mismatches[0]
        assert "2.0" in mismatch.reason
        assert "1.0" in mismatch.reason


def test_results_kept_by_address_are_caught(referee, task):
    setup = KERNEL + "\nkept = {}"
    body = (
        "    key = a.data_ptr()\n    if key not in kept:\n        out = torch.empty_like(a)\n"
        "        kernel(out, a, b, a.numel())\n        kept[key] = out\n    return kept[key]"
    )
    result = referee.evaluate(task, broken(body, setup))
    assert result.status in ("wrong_result", "refused"), result.error


def test_a_pass_that_writes_into_an_input_is_refused(referee, task):
    result = referee.evaluate(task, broken("    out = a\n    kernel(out, a, b, a.numel())\n    return out"))
    assert result.status == "refused"
    assert result.violations[0].rule == "input_mutation"


def test_nothing_of_the_parents_environment_reaches_a_candidate(task, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-secret")
    with Referee(CONFIG) as referee:
        worker = referee._zygote.fork(None)
        environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
        zygote = Path(f"/proc/{referee._zygote._process.pid}/environ").read_bytes()
        worker.kill()
    assert b"sk-planted-secret" not in environment + zygote


def test_no_process_is_left_behind(task):
    with Referee(CONFIG) as referee:
        referee.evaluate(task, candidate())
        zygote = referee._zygote._process.pid
        workers = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
        assert workers
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_a_subgraph_whose_eager_fails_is_the_tasks_fault(referee, tmp_path):
    model = (
        "import torch\n\nclass GraphModule(torch.nn.Module):\n    def forward(self, in_0, in_1):\n"
        "        return (in_0 @ in_1,)\n"
    )
    task = load_task(write_subgraph(tmp_path / "broken", [4, 64], model=model))
    with pytest.raises(TaskError, match="broken"):
        referee.evaluate(task, candidate())


TRITON = """import triton
import triton.language as tl


@triton.jit
def silu_mul_add(out, a, b, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(a + offsets, mask=mask).to(tl.float32)
    y = tl.load(b + offsets, mask=mask).to(tl.float32)
    s = (x * tl.sigmoid(x)).to(out.dtype.element_ty).to(tl.float32)
    p = (s * y).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + offsets, p + {add}, mask=mask)
"""
LAUNCH = (
    "    out = torch.empty_like(a)\n    n = a.numel()\n"
    "    silu_mul_add[(triton.cdiv(n, 256),)](out, a, b, n, BLOCK=256)\n    return out"
)


def triton_candidate(add="1.0"):
    return candidate(
        LAUNCH, TRITON.format(add=add).partition("\n\n\n")[2], "import triton\nimport triton.language as tl"
    )


def test_a_triton_pass_is_checked_in_the_interpreter(referee, task):
    result = referee.evaluate(task, triton_candidate())
    assert (result.status, result.timing, result.as_score) == ("ok", "interpreter", None)
    assert all(graph.speedup is None for graph in result.graphs)
    assert referee.evaluate(task, triton_candidate("1.5")).status == "wrong_result"


@pytest.mark.gpu
def test_a_triton_pass_is_timed_on_a_gpu(task):
    with Referee(CONFIG.model_copy(update={"device": "cuda"})) as referee:
        result = referee.evaluate(task, triton_candidate())
        wrong = referee.evaluate(task, triton_candidate("1.5"))
    assert (result.status, result.timing) == ("ok", "wall")
    assert all(graph.speedup.device for graph in result.graphs)
    assert wrong.status == "wrong_result"


def test_devices_are_checked():
    for device in ("tpu", "cpu:1", "cuda:x", "cuda:99"):
        with pytest.raises(UsageError, match=device):
            check_device(device)


def test_the_pool_survives_a_killed_referee(task):
    async def run():
        pool = EvaluatorPool(CONFIG)
        try:
            first = await pool.evaluate(task.path, candidate())
            threading.Timer(0.5, lambda: os.kill(pool._process.pid, signal.SIGKILL)).start()
            second = await pool.evaluate(task.path, candidate())
        finally:
            await pool.close()
        return first, second

    first, second = asyncio.run(run())
    assert first.status == second.status == "ok"


def test_workers_end_when_the_referee_is_killed(task):
    code = (
        "import sys, time\nfrom passagent.evaluator.referee import Referee\n"
        "r = Referee()\nw = r._zygote.fork(None)\n"
        "print(r._zygote._process.pid, w.pid, flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = process.stdout.readline().split()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = [pid for pid in pids if _alive(pid)]
    assert not alive


def _alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except FileNotFoundError:
        return False


def answer(own_us, calls, clock_us):
    return Answer({"samples": {"e2e": [round(own_us * 1e3)] * calls, "device": []}}, round(clock_us * 1e3))


def test_the_clock_audit_sees_hidden_time_and_forgives_a_disturbed_block():
    eager, slow, honest, cheat = Samples(), Samples(), Samples(), Samples()
    for block in range(6):
        eager.add(answer(20, 16, 20 * 16 + 60))
        slow.add(answer(900, 16, 900 * 16 + 60))
        honest.add(answer(20, 16, 20 * 16 + 60 + (9000 if block == 2 else 0)))
        cheat.add(answer(2, 16, 20 * 16 + 60))
    for baseline in (eager, slow):
        assert clocks_agree(baseline, honest)
        assert not clocks_agree(baseline, cheat)
