"""A fault of machine or task is named in one line with exit code 1, and no candidate is charged with it.

The faults are real: a file where the cache should be, a file system that is full or read-only, tasks that do
not fit into memory, processes that the kernel kills in a memory control group.
"""

from __future__ import annotations

import asyncio
import errno
import json
import mmap
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import tiny

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError, MachineFault, TaskError
from passagent.evaluator.result import MANIFEST, Candidate
from passagent.evaluator.service.pool import EvaluatorPool
from passagent.plan import extension
from passagent.sandbox import faults, machine_memory
from passagent.search import candidates
from passagent.store import Store

QUICK = ["--set", "evaluator.budget_s=1e-6"]
SEARCH = ["--iters", 1, "--islands", 1, *QUICK, "--set", "evaluator.budget_s=0.1"]
LARGE_OUTPUT = """import torch

class GraphModule(torch.nn.Module):

    def forward(self, in_0, in_1):
        tmp_0 = in_0.repeat(1, 4096, 64)
        tmp_1 = in_1 + 1.0
        return (tmp_0, tmp_1)
"""
ADD_ONE = """import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    "void add(float* out, const float* x, int64_t n) {"
    "  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + 1.0f; }",
    "add",
)


def pattern(x):
    return x + 1.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def add_one(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return add_one
"""
GROUPS = Path("/sys/fs/cgroup/memory")


def write_task(path: Path, shape: list[int], model: str = tiny.MODEL) -> Path:
    tiny.write_subgraph(path / "graphs" / "g", shape, model=model)
    (path / "graph_list.txt").write_text("graphs/g\n")
    tiny.candidate().write(path / "pass_dir")
    return path


@pytest.fixture
def small(tmp_path):
    return write_task(tmp_path / "small", [4, 64])


@pytest.fixture
def call(call, monkeypatch):
    """`call("eval", ...)` gives exit code, stdout and the last line of stderr, run in an empty directory."""
    monkeypatch.setattr(candidates, "RETRY_AFTER_S", (0.0,))

    def run(*words: object) -> tuple[int, str, str]:
        code, out, err = call(*words)
        assert "Traceback" not in err
        return code, out, (err.splitlines() or [""])[-1]

    return run


def mounted(place: Path, options: str) -> Iterator[Path]:
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 20 MB: the headers of C++ kernels, precompiled, take more."""
    yield from mounted(tmp_path / "disk", "size=20m")


@pytest.fixture
def read_only_disk(tmp_path):
    yield from mounted(tmp_path / "disk", "ro")


@pytest.fixture
def no_cache(tmp_path):
    """A cache that cannot be: its directory lies in a file."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


# The cache: full, or not to be written


@pytest.mark.long
def test_a_full_cache_is_the_machines_fault_and_not_a_compile_error(call, small, small_disk, monkeypatch):
    monkeypatch.setenv("PASSAGENT_CACHE", str(small_disk))
    code, out, said = call("eval", small, *QUICK)
    assert (code, out) == (1, "")
    assert said.startswith(f"passagent: error: {small_disk}: the disk is full; free some space, or set")


@pytest.mark.long
def test_a_cache_that_cannot_be_written_ends_a_run_and_charges_no_candidate(
    call, small, no_cache, monkeypatch
):
    wrong = "cannot be used (not a directory); make it a directory to write in, or set PASSAGENT_CACHE"
    named = re.compile(rf"building a kernel: {re.escape(str(no_cache))}/\w+: {re.escape(wrong)}")
    monkeypatch.setenv("PASSAGENT_CACHE", str(no_cache))
    code, _, said = call("run", small, *SEARCH)
    assert code == 1
    assert said.startswith("passagent: error: building a kernel: ") and named.search(said)
    assert "go on with: passagent resume" in said
    with Store.open("runs") as store:
        assert store.row("SELECT COUNT(*) AS n FROM evaluations")["n"] == 0
        assert [row["state"] for row in store.rows("SELECT state FROM nodes")] == ["proposed"]
    monkeypatch.delenv("PASSAGENT_CACHE")
    code, out, _ = call("resume", "last")
    assert code == 0, out
    with Store.open("runs") as store:
        assert [row["status"] for row in store.rows("SELECT DISTINCT status FROM nodes")] == ["ok"]


def test_a_read_only_cache_is_named(read_only_disk, monkeypatch):
    monkeypatch.setenv("PASSAGENT_CACHE", str(read_only_disk))
    words = r"cannot be used \(read-only file system\).*PASSAGENT_CACHE"
    with pytest.raises(MachineFault, match=words), faults.named("building a kernel"):
        extension.build()
    with pytest.raises(MachineFault, match="read-only file system"):
        faults.check_places()


# Memory


@pytest.mark.long
@pytest.mark.parametrize("words", [["run"], ["tasks", "check"]])
def test_a_task_that_cannot_fit_is_refused_before_anything_is_allocated(words, call, tmp_path):
    task = write_task(tmp_path / "huge", [1 << 20, 1 << 14])
    first, *rest = words
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    code, out, said = call(*([*words, task] if first == "tasks" else [first, task, *rest]))
    assert code == 1
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of all children so far, KiB
    assert largest == before or largest < 2 << 20
    assert "GiB of memory for" in (out if first == "tasks" else said)
    assert "huge/graphs/g" in (out if first == "tasks" else said)
    if first == "run":
        assert not Path("runs").exists()  # nothing is stored, and no model was asked


def test_what_is_more_than_is_free_now_is_the_machines_fault(tmp_path):
    from passagent.tasks import load_task
    from passagent.tasks.reader import check_room

    [subgraph] = load_task(write_task(tmp_path / "task", [1 << 10, 1 << 10])).subgraphs
    check_room(subgraph, 3, 24 << 20)
    with pytest.raises(MachineFault, match=r"needs 0\.0 GiB of memory for 3 copies of its inputs"):
        check_room(subgraph, 3, (24 << 20) - 1)


def test_what_a_gpu_has_no_room_for_is_the_tasks_fault(tmp_path, monkeypatch):
    from passagent.evaluator.judging import effort
    from passagent.tasks import load_task

    task = load_task(write_task(tmp_path / "task", [1 << 10, 1 << 10]))  # two inputs of 4 MiB
    monkeypatch.setattr(effort, "gpu_memory_bytes", lambda device: (9 * 8 - (device == "cuda:1")) << 20)
    effort.check_gpu_room(task, "cuda:0")
    with pytest.raises(TaskError, match=r"for 9 copies of its inputs, cuda:1 has 0\.1 GiB"):
        effort.check_gpu_room(task, "cuda:1")


@pytest.fixture
def memory_group(tmp_path) -> Iterator[Path]:
    """A control group whose processes may take 2 GB together."""
    group = GROUPS / f"passagent-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("2000M")
    except OSError:
        pytest.skip("no memory control group can be made here")
    yield group
    for _ in range(100):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def inside(group: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A Python process in the control group."""
    enter = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
    command = ["sh", "-c", enter, group, sys.executable, *words]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.parametrize("words", [["eval"], ["tasks", "check"]])
def test_a_reference_that_is_killed_for_memory_is_the_tasks_fault(words, memory_group, tmp_path):
    task = write_task(tmp_path / "task", [64, 64], LARGE_OUTPUT)
    Candidate({"P.py": ADD_ONE, MANIFEST: json.dumps(["P"])}).write(task / "matching")
    words = [*words, "--pass-dir", task / "matching"] if words == ["eval"] else words
    runs = ["--runs-dir", tmp_path / "runs"] if "eval" in words else []
    done = inside(memory_group, "-m", "passagent", *words, task, *runs)
    assert (done.returncode, done.stdout) == (1, "")
    [said] = done.stderr.splitlines()
    assert f"{task}/graphs/g: " in said
    assert "needs more memory than there is" in said


def test_the_memory_that_is_free_is_that_of_the_control_group(memory_group):
    code = "from passagent.sandbox.machine_memory import *; print(memory_bytes(), available_bytes())"
    there, free = map(int, inside(memory_group, "-c", code).stdout.split())
    assert 0 < free < there == 2000 << 20


@pytest.mark.long
def test_an_evaluator_that_is_killed_for_memory_ends_no_candidate(small, memory_group, tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_LEASES", str(tmp_path))
    task, told = write_task(tmp_path / "task", [1 << 11, 1 << 11]), []

    async def judge() -> None:
        pool = EvaluatorPool(EvaluatorConfig(budget_s=0.1), tell=told.append)
        try:
            assert (await pool.evaluate(small, tiny.candidate())).status == "ok"
            (memory_group / "memory.limit_in_bytes").write_text("50M")  # it holds more when it draws
            (memory_group / "cgroup.procs").write_text(str(pool._slots[0].owner.pid))
            with pytest.raises(MachineFault, match=r"killed the evaluator's process: .* out of memory; end"):
                await pool.evaluate(task, tiny.candidate())
            assert (await pool.evaluate(small, tiny.candidate())).status == "ok"
        finally:
            await pool.close()

    asyncio.run(judge())
    assert told == []  # nothing is said of the candidate


# Which errors are the machine's


def test_errors_of_the_system_are_named_and_others_are_not():
    def too_many_files() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            os.memfd_create("one more")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    for work, words in (
        (too_many_files, "too many open files; raise the limit"),
        (lambda: mmap.mmap(-1, 1 << 60), "out of memory"),
        (lambda: open("/dev/full", "wb", buffering=0).write(b"x"), "a disk is full"),  # noqa: SIM115
        (lambda: open("/proc/self/cmdline/x"), "/proc/self/cmdline/x: cannot be used"),  # noqa: SIM115
    ):
        with pytest.raises(MachineFault, match=f"^work: .*{words}"), faults.named("work"):
            work()
    with pytest.raises(InfrastructureError) as missing, faults.named("work"):
        Path("/nowhere/at/all").read_text()
    assert not isinstance(missing.value, MachineFault)
    with pytest.raises(ValueError, match="other"), faults.named("work"):
        raise ValueError("other")


def test_what_a_candidate_says_of_the_machine_is_not_believed(small, referee_inside, tmp_path, monkeypatch):
    monkeypatch.setenv("PASSAGENT_LEASES", str(tmp_path))
    words = "; ".join(map(os.strerror, (errno.ENOSPC, errno.EROFS, errno.ENOMEM)))
    bad = tiny.candidate(setup=f"{tiny.KERNEL}\nraise RuntimeError({words!r})")

    async def judge() -> str:
        pool = EvaluatorPool(EvaluatorConfig())
        try:
            return (await pool.evaluate(small, bad)).status
        finally:
            await pool.close()

    assert asyncio.run(judge()) == "load_error"


def test_processes_killed_for_memory_are_counted(memory_group):
    before = machine_memory.memory_kills()
    (memory_group / "memory.limit_in_bytes").write_text("100M")
    done = inside(memory_group, "-c", "x = bytearray(1 << 29)")
    assert done.returncode == -9
    assert machine_memory.memory_kills() > before


@pytest.mark.long
def test_tasks_check_tells_what_a_model_prints_from_its_answer(call, tmp_path):
    model = tiny.MODEL.replace("        tmp_0 =", "        print('{}')\n        tmp_0 =")
    code, out, _ = call("tasks", "check", write_task(tmp_path / "task", [4, 64], model), "--json")
    assert code in (0, 1)
    [checked] = json.loads(out)["tasks"]
    assert [graph["name"] for graph in checked["graphs"]] == ["g"]
