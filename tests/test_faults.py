"""Real faults, each of which may cost one candidate and nothing else: the next is judged right.

Some are Python in the candidate's worker (hostile_worker.py), which meets the sandbox as native code does.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hostile_worker import hidden_in_a_kernel, hostile  # noqa: F401
from tiny import KERNEL, candidate, write_subgraph

from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator.judging.eager_worker import EagerWorker
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.reference import baseline
from passagent.evaluator.runner import endings
from passagent.evaluator.runner.endings import WorkerDied
from passagent.evaluator.runner.process import Worker
from passagent.evaluator.runner.worker_messages import Prepare
from passagent.evaluator.timing import timing
from passagent.sandbox.child import ForkServer
from passagent.sandbox.environment import import_path, worker_environment
from passagent.sandbox.sandbox import Limits
from passagent.tasks.reader import load_task

pytestmark = pytest.mark.usefixtures("own_memory")

CONFIG = EvaluatorConfig(budget_s=1e-6, timeout_s=120, memory_gb=4, threads=1)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    root = tmp_path_factory.mktemp("task") / "silu_mul_add"
    write_subgraph(root / "graphs" / "g0_float32", [4, 64])
    (root / "graph_list.txt").write_text("graphs/g0_float32\n")
    return load_task(root)


@pytest.fixture(scope="module")
def referee(task, hostile):  # noqa: F811
    with Referee(CONFIG) as one:
        assert (
            one.evaluate(task, candidate()).status == "ok"
        )  # eager's workers and the captured graph are there
        yield one


def still_judges(referee, task):
    """The next candidate is judged right, and of the one before no process and no file is left."""
    result = referee.evaluate(task, candidate())
    assert (result.status, result.graphs[0].matches) == ("ok", 1), (result.error, result.violations)
    made, server = referee.workers, referee.server
    made.settle()
    workers = 1 + len(made.spares) + len(made.eager._workers)  # the baseline's is the first
    assert len(_children(server.process.pid)) == workers
    scratches = [path for path in server.scratch.iterdir() if path.is_dir() and path.name.startswith("tmp")]
    assert len(scratches) == workers
    assert not list(Path("/dev/shm").glob("passagent*"))


def _children(pid):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields and int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def python(code):
    """A pass whose worker runs `code` when it loads its plan."""
    code = f"import signal, threading, time, torch\n{code}"
    return candidate(setup=KERNEL.replace("template", f"{hidden_in_a_kernel(code)}template"))


def cpp(code):
    return candidate(setup=KERNEL.replace("const float x", f"{code}\n    const float x"))


WILD = "*reinterpret_cast<volatile int*>(8) = 1;"
BLOCK_ALL = "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass"
PIECES = "x = []\nwhile True: x.append(torch.empty(1 << 24))"
FILL = "f = io.open('filler', 'wb')\nwhile True: f.write(bytes(1 << 20))"
FAULTS = {  # others, which a worker meets in the same way: test_sandbox.py
    "a process that blocks all signals": (python(BLOCK_ALL), "timeout", "within 1 s"),
    "too much memory, in pieces": (python(PIECES), "out_of_memory", ""),
    "a segfault in C++": (cpp(WILD), "runtime_error", "died with SIGSEGV"),
    "a thread bomb": (
        python("while True: threading.Thread(target=time.sleep, args=(10**6,), daemon=True).start()"),
        "load_error",
        "can't start new thread",
    ),
    "a disk filler": (python(FILL), "load_error", "No space left on device"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_one_candidate(name, referee, task, monkeypatch):
    bad, status, words = FAULTS[name]
    monkeypatch.setattr(endings, "LIMITS", Limits(file=16 << 20, scratch=12 << 20, threads=200))
    config = CONFIG.model_copy(update={"memory_gb": 2} if "pieces" in name else {})
    monkeypatch.setattr(referee, "config", config)
    _drop_spares(referee)  # it was forked with the usual limits
    if words == "within 1 s":  # from when there is a worker on
        _fork_spares(referee)
        monkeypatch.setattr(referee, "config", config.model_copy(update={"timeout_s": 1.0}))
    result = referee.evaluate(task, bad)
    assert (result.status, words in result.error) == (status, True), result.error
    assert result.as_score is not None
    assert result.as_score < 0.5
    monkeypatch.undo()
    _drop_spares(referee)
    still_judges(referee, task)


def _drop_spares(referee):
    while referee.workers.spares:
        with suppress(InfrastructureError):  # it did not start in time
            referee.workers.spares.pop().result().kill()


def _fork_spares(referee):
    referee.workers.prepare()
    for spare in referee.workers.spares:
        spare.result()


def killing(monkeypatch, referee, op, whose, victim=lambda worker: worker.pid):
    """Have somebody kill the victim while a worker is at a request `op`.

    `whose`: the candidate's; the baseline's, which computes references; eager's in the timing, the eager's.
    """
    ask, killed = Worker.ask, []
    eager_workers = [eager.worker for eager in referee.workers.eager._workers.values()]
    new_eager = EagerWorker.__init__

    def noted(self, worker, *more):
        eager_workers.append(worker)
        new_eager(self, worker, *more)

    def owner(worker):
        if worker is referee._baseline._worker:
            return "baseline"
        return "eager" if worker in eager_workers else "candidate"

    def kill(worker):
        os.kill(victim(worker), signal.SIGKILL)
        if victim(worker) != worker.pid:
            os.kill(worker.pid, signal.SIGCONT)

    def asking(self, message, timeout_s, fds=()):
        if message.op == op and owner(self) == whose and not killed:
            killed.append(victim(self))
            os.kill(self.pid, signal.SIGSTOP)  # it is at it for as long as that takes
            threading.Timer(0.05, kill, [self]).start()
        return ask(self, message, timeout_s, fds)

    monkeypatch.setattr(Worker, "ask", asking)
    monkeypatch.setattr(EagerWorker, "__init__", noted)
    return killed


def _lose(referee, whose):
    """Have eager's workers of a kind be others from now on, which take the subgraph anew."""
    if whose == "baseline":
        referee._baseline._worker.kill()
    if whose == "eager":
        for eager in referee.workers.eager._workers.values():
            eager.worker.kill()


def test_a_baseline_that_finds_no_device_is_nobodys_fault(task, forks, monkeypatch):
    def elsewhere(**given):
        return load(**given | {"device": "cuda:0"})

    load = baseline.worker_messages.Load
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with Referee(CONFIG, forks) as referee:
        monkeypatch.setattr(baseline.worker_messages, "Load", elsewhere)
        with pytest.raises(InfrastructureError, match=r"the baseline's worker did not start: \w+Error: "):
            referee.evaluate(task, candidate())
        monkeypatch.undo()
        assert referee.evaluate(task, candidate()).status == "ok"


OPS = [(op, "candidate") for op in ("load", "graph", "audit", "run", "lockstep")]
OPS += [("graph", "baseline"), ("float64", "baseline"), ("run", "baseline")]
OPS += [("load", "eager"), ("graph", "eager"), ("run", "eager"), ("lockstep", "eager")]


@pytest.fixture
def lockstep(monkeypatch):
    """Both sides call in turn, as they do on a GPU."""
    monkeypatch.setattr(timing, "_blocks", timing._groups)


@pytest.mark.long
@pytest.mark.parametrize(("op", "whose"), OPS)
def test_a_worker_killed_from_outside_is_nobodys_fault(op, whose, referee, task, monkeypatch, request):
    if op == "lockstep":
        request.getfixturevalue("lockstep")
    _lose(referee, whose)
    killed = killing(monkeypatch, referee, op, whose)
    with pytest.raises(InfrastructureError, match=r"SIGKILL|lost"):
        referee.evaluate(task, candidate())
    assert killed
    monkeypatch.undo()
    still_judges(referee, task)


def test_a_worker_that_takes_its_time_to_end_was_killed_all_the_same(referee, monkeypatch):
    """The kernel takes seconds to free what some processes had on a GPU."""
    server, reaping = referee.workers.server, []
    worker, ask = server.fork(None), server._server._ask

    def slow(message, fds=()):
        if message["op"] == "reap":
            reaping.append(time.monotonic())
            if reaping[-1] < reaping[0] + 1.5:
                return {"code": None}
        return ask(message, fds)

    monkeypatch.setattr(server._server, "_ask", slow)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied) as died:
        worker.ask(Prepare(device="cpu"), 10.0)
    assert died.value.killed_from_outside


IN_TURN = """
from passagent.evaluator.runner import calls
def lockstep(*_):
    {code}
calls.lockstep = lockstep
"""


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("os.abort()", "runtime_error", "died with SIGABRT"),
        ("while True: pass", "timeout", "within 2 s"),
    ],
)
def test_a_fault_in_a_call_in_turn_is_the_candidates(
    code, status, words, referee, task, monkeypatch, lockstep
):
    """Its eager, which waits for it then, is not lost with it."""
    bad = python(IN_TURN.format(code=code))
    still_judges(referee, task)  # the eager is there, the kernel is built
    if status == "timeout":
        _drop_spares(referee)
        _fork_spares(referee)
        monkeypatch.setattr(referee, "config", CONFIG.model_copy(update={"timeout_s": 2.0}))
    result = referee.evaluate(task, bad)
    assert (result.status, words in result.error) == (status, True), result.error
    monkeypatch.undo()
    still_judges(referee, task)


def test_workers_of_the_cpu_see_no_gpu(referee, tmp_path, monkeypatch):
    """Dynamo asks each GPU in sight for its random state, and what has asked cannot fork what asks again."""
    environment = Path(f"/proc/{referee.server.process.pid}/environ").read_text().split("\0")
    assert "CUDA_VISIBLE_DEVICES=" in environment
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert worker_environment(tmp_path, 1, "cpu")["CUDA_VISIBLE_DEVICES"] == ""
    assert worker_environment(tmp_path, 1, "cuda:0")["CUDA_VISIBLE_DEVICES"] == "3"


@pytest.mark.gpu
def test_a_machine_with_a_gpu_judges_on_the_cpu_too(referee, task):
    assert torch.cuda.is_available()
    still_judges(referee, task)


def test_a_spare_worker_that_was_killed_is_replaced(referee, task):
    _fork_spares(referee)
    spare = referee.workers.spares[0].result()
    os.kill(spare.pid, signal.SIGKILL)
    _until(lambda: not spare.is_alive())
    still_judges(referee, task)


def test_a_killed_fork_server_is_nobodys_fault(referee, task, monkeypatch):
    server = referee.server
    old, scratch = server.process.pid, server.scratch
    killed = killing(monkeypatch, referee, "audit", "candidate", lambda worker: server.process.pid)
    with pytest.raises(InfrastructureError, match="lost"):
        referee.evaluate(task, candidate())
    assert killed == [old]
    monkeypatch.undo()
    still_judges(referee, task)
    assert server.process.pid != old
    assert not scratch.exists()


def start_evaluator(tmp_path):
    cores = json.dumps(sorted(os.sched_getaffinity(0)))
    patient = CONFIG.model_copy(update={"timeout_s": 600.0})  # no candidate ends by itself
    return subprocess.Popen(
        [sys.executable, "-m", "passagent.evaluator.service.serve", patient.model_dump_json(), cores],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | import_path() | {"TMPDIR": str(tmp_path)},
        start_new_session=True,
    )


def test_a_killed_evaluator_leaves_nothing_behind(task, tmp_path):
    request = {"task": str(task.path), "files": cpp("for (volatile int k = 0; k < 2;) {}").files}
    serve = start_evaluator(tmp_path)
    assert b"ready" in serve.stdout.readline()
    serve.stdin.write(json.dumps(request).encode() + b"\n")
    serve.stdin.flush()
    (fork_server,) = _until(lambda: _fork_servers(serve.pid))
    # the baseline's, the candidate's, and one that is made ahead
    workers = _until(lambda: len(_children(fork_server)) == 3 and _children(fork_server))
    time.sleep(0.5)
    serve.kill()
    serve.wait()
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in [fork_server, *workers]))
    _until(lambda: not list(tmp_path.iterdir()))


@pytest.mark.long
def test_an_evaluator_killed_while_it_starts_leaves_nothing_behind(tmp_path):
    serve = start_evaluator(tmp_path)
    (fork_server,) = _until(lambda: _fork_servers(serve.pid))
    assert list(tmp_path.iterdir()) != []
    serve.kill()
    serve.wait()
    _until(lambda: not Path(f"/proc/{fork_server}").exists())
    _until(lambda: not list(tmp_path.iterdir()))


def _fork_servers(pid):
    """Its children that fork workers; it may run a compiler, too."""
    found = []
    for child in _children(pid):
        with suppress(OSError):  # it ended meanwhile
            if b"fork_server" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def _until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return result


FULL_DISK = """
import os, sys
from pathlib import Path
from passagent.sandbox import privileges
from passagent.sandbox import sandbox
disk = Path(os.environ["TMPDIR"])
try:
    privileges.own_users()
    sandbox._own_mounts(disk, sandbox.Limits(scratch=1 << 20, files=100))
except OSError as error:
    sys.exit(f"no mount namespace: {error}")
from passagent.config import EvaluatorConfig
from passagent.errors import InfrastructureError
from passagent.evaluator.judging.referee import Referee
from passagent.evaluator.result import Candidate
from passagent.tasks.reader import load_task
import tiny
task = load_task(sys.argv[1])
with Referee(EvaluatorConfig.model_validate_json(sys.argv[2])) as referee:
    print(referee.evaluate(task, tiny.candidate()).status)
    referee.workers.settle()  # its worker and its files are gone
    while referee.workers.spares:
        referee.workers.spares.pop().result().kill()  # else it needs nothing of the disk
    files = []
    try:
        while True:
            files.append(disk / f"filler{len(files)}")
            files[-1].touch()
    except OSError as error:
        print(error.strerror)
    try:
        print(referee.evaluate(task, tiny.candidate()).status)
    except InfrastructureError as error:
        print("infrastructure:", error)
    for file in files:
        file.unlink(missing_ok=True)
    print(referee.evaluate(task, tiny.candidate()).status)
print(os.listdir(disk))
try:
    for n in range(200): (disk / str(n)).touch()
except OSError:
    pass
try:
    Referee(EvaluatorConfig.model_validate_json(sys.argv[2]))
except InfrastructureError as error:
    print("infrastructure:", error)
"""


@pytest.mark.long
def test_a_full_disk_is_nobodys_fault(task, tmp_path):
    """A real disk with room for 100 files, full while one candidate is judged, then free again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    paths = os.pathsep.join([str(Path(__file__).parent), import_path()["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(task.path), CONFIG.model_dump_json()],
        env=os.environ | {"PYTHONPATH": paths, "TMPDIR": str(disk)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if "no mount namespace" in done.stderr:
        pytest.skip(done.stderr.strip())
    lines = done.stdout.splitlines()
    assert len(lines) == 6, done.stderr
    assert [lines[0], lines[3], lines[4]] == ["ok", "ok", "[]"]
    for line in (lines[2], lines[5]):
        assert line.startswith("infrastructure: ") and "disk is full; free some space" in line


TRITON = """import torch, triton, triton.language as tl

@triton.jit
def kernel(out, a, b, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + i, mask=i < n).to(tl.float32)
    y = tl.load(b + i, mask=i < n).to(tl.float32)
    tl.store(out + i{offset}, x * tl.sigmoid(x) * y + 1.0, mask=i < n)
{extra}
"""
LAUNCH = """    out = torch.empty_like(a)
    n = a.numel()
    kernel[(triton.cdiv(n, 256),)](out, a, b, n, BLOCK=256)
    return out
"""


def triton_pass(before="", offset="", extra=""):
    lines = f"    {before}\n" if before else ""
    return candidate(lines + LAUNCH, TRITON.format(offset=offset, extra=extra), "import triton")


ENDLESS = "    while tl.load(a) == tl.load(a): tl.atomic_add(out, 0.0)"
GPU_FAULTS = {  # others, which a worker meets in the same way: test_sandbox.py
    "an illegal access": (triton_pass(offset=" + (1 << 42)"), "runtime_error", "illegal memory access"),
    "an infinite kernel": (triton_pass(extra=ENDLESS), "timeout", "within"),
    "too much memory": (triton_pass("torch.empty(1 << 37, device='cuda')"), "out_of_memory", ""),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_FAULTS)
def test_a_fault_on_the_gpu_costs_one_candidate(name, gpu_referee, task):
    bad, status, words = GPU_FAULTS[name]
    result = gpu_referee.evaluate(task, bad)
    assert (result.status, words in result.error) == (status, True), result.error
    good = gpu_referee.evaluate(task, triton_pass())
    assert good.status == "ok", (good.error, good.violations)


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "whose"), OPS)
def test_a_killed_worker_of_the_gpu_is_nobodys_fault(op, whose, gpu_referee, task, monkeypatch):
    assert gpu_referee.evaluate(task, triton_pass()).status == "ok"
    _lose(gpu_referee, whose)
    killed = killing(monkeypatch, gpu_referee, op, whose)
    with pytest.raises(InfrastructureError, match=r"SIGKILL|lost"):
        gpu_referee.evaluate(task, triton_pass())
    assert killed
    monkeypatch.undo()
    assert gpu_referee.evaluate(task, triton_pass()).status == "ok"


@pytest.mark.gpu
def test_a_gpu_that_disappears_is_nobodys_fault(gpu_referee, task, monkeypatch):
    """As far as that can be had: workers forked from now on see none."""

    def fork(self, work, limits, sandboxed=True, environment=None):
        return real(self, work, limits, sandboxed, {"CUDA_VISIBLE_DEVICES": ""})

    real = ForkServer.fork
    monkeypatch.setattr(ForkServer, "fork", fork)
    _drop_spares(gpu_referee)
    with pytest.raises(InfrastructureError):
        gpu_referee.evaluate(task, triton_pass())
    monkeypatch.undo()
    with suppress(InfrastructureError):  # the next candidate's worker was made meanwhile
        gpu_referee.evaluate(task, triton_pass())
    assert gpu_referee.evaluate(task, triton_pass()).status == "ok"


@pytest.fixture(scope="module")
def gpu_referee():
    with Referee(CONFIG.model_copy(update={"device": "cuda", "timeout_s": 30.0})) as one:
        yield one
