"""The sandbox, from inside: code in a real worker tries what it may not do, and what honest work needs.

A worker runs a candidate's kernels only; here it runs Python in their place (hostile_worker.py).
"""

import ctypes
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from hostile_worker import hostile, python_request  # noqa: F401

from passagent.evaluator.runner import endings
from passagent.evaluator.runner.endings import WorkerDied
from passagent.evaluator.runner.process import WorkerServer
from passagent.evaluator.runner.worker_process import fork_server
from passagent.sandbox import landlock, privileges, sandbox, seccomp
from passagent.sandbox.environment import worker_memory
from passagent.sandbox.machine_memory import memory_bytes, memory_kills
from passagent.sandbox.sandbox import Limits

LAYERS = [
    "descriptors_closed", "user_namespace", "network_namespace", "ipc_namespace", "private_scratch",
    "resource_limits", "killed_first", "no_new_privileges", "no_capabilities", "not_dumpable",
    "dies_with_parent", "landlock", "seccomp",
]  # fmt: skip
HEADERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h")


pytestmark = pytest.mark.usefixtures("own_memory")


@pytest.fixture(scope="module")
def server(hostile):  # noqa: F811
    with fork_server("cpu", 2) as process:
        yield WorkerServer(process)


@pytest.fixture(scope="module")
def layers(server):
    """Names of the layers that are on here."""
    worker = server.fork(4.0)
    worker.kill()
    assert list(worker.protections) == LAYERS
    assert all(said == "on" or said.startswith("off: ") for said in worker.protections.values())
    return {name for name, said in worker.protections.items() if said == "on"}


def test_layers_are_on_where_the_kernel_has_them(layers):
    """Asked of the kernel by other means; without this a layer that broke would only skip its tests."""
    if Path("/proc/sys/kernel/seccomp/actions_avail").exists():
        assert "seccomp" in layers
    if ctypes.CDLL(None).syscall(444, None, 0, 1) >= 2:
        assert "landlock" in layers
    if subprocess.run(["unshare", "-Urmni", "true"], capture_output=True, check=False).returncode == 0:
        assert {"user_namespace", "network_namespace", "ipc_namespace", "private_scratch"} <= layers
    assert set(LAYERS) - layers <= {
        "seccomp", "landlock", "user_namespace", "network_namespace", "ipc_namespace", "private_scratch",
    }  # fmt: skip


def test_a_workers_memory_is_tied_to_the_machines(server):
    """16 GiB, whatever the machine had, was its limit; and the kernel chose which process was to end."""
    worker = server.fork(2.0**20)
    limits = Path(f"/proc/{worker.pid}/limits").read_text()
    score = Path(f"/proc/{worker.pid}/oom_score_adj").read_text()
    worker.kill()
    most = re.search(r"Max address space +(\d+)", limits)
    assert int(most[1]) == memory_bytes() // 2
    assert int(score) == 1000
    assert (worker_memory(0.5), worker_memory(None)) == (1 << 29, 0)


def load(worker, code):
    """What the worker says once it ran `code`: the error's message."""
    return worker.ask(python_request(code), 60).error.message


def attempt(server, code, memory_gb=4.0):
    """(message, log) of a worker that runs `code`."""
    worker = server.fork(memory_gb)
    try:
        return load(worker, code), worker.log()
    finally:
        worker.kill()


def call(number, *arguments):
    """Code that makes a system call and raises if it fails."""
    values = ", ".join(f"ctypes.c_long({a})" if isinstance(a, int) else str(a) for a in arguments)
    invoke = f"n = ctypes.CDLL(None, use_errno=True).syscall({', '.join([str(number), values])})"
    return f"{invoke}\nif n < 0: raise OSError(ctypes.get_errno(), 'denied')"


def number(name):
    column = seccomp._MACHINES[os.uname().machine][1]
    return seccomp._CALLS[name][column]


DENIED = {
    "fork": "os.fork()",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "os.execv('/bin/true', ['true'])",
    "a socket": "import socket\nsocket.socket()",
    "a local socket": "import socket\nsocket.socket(socket.AF_UNIX)",
    "signal the parent": "os.kill(os.getppid(), 0)",
    "signal everybody": "os.kill(-1, 0)",
    "kill itself as if from outside": "os.kill(os.getpid(), 9)",
    "a signal with data": call(number("rt_sigqueueinfo"), "os.getppid()", 0, 0),
    "trace": call(number("ptrace"), 16, "os.getppid()", 0, 0),
    "read others' memory": call(number("process_vm_readv"), "os.getppid()", 0, 0, 0, 0, 0),
    "new users": call(number("unshare"), 0x10000000),
    "mount": call(number("mount"), 0, 0, 0, 0, 0),
    "another root": "os.chroot('.')",
    "bpf": call(number("bpf"), 0, 0, 0),
    "io_uring": call(number("io_uring_setup"), 1, 0),
    "counters": call(number("perf_event_open"), 0, 0, -1, -1, 0),
    "a handle on the parent": "os.pidfd_open(os.getppid())",
    "personality": call(number("personality"), 0),
    "slow the parent down": "os.sched_setaffinity(os.getppid(), {0})",
    "its priority": "os.setpriority(os.PRIO_USER, 0, 19)",
    "the parent's limits": "import resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU)",
    "a descriptor's signal": "import fcntl\nfcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "to outlive its parent": call(number("prctl"), 1, 0, 0, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", DENIED)
def test_a_denied_call_fails(name, server, layers):
    if "seccomp" not in layers:
        pytest.skip("no seccomp here")
    message, _ = attempt(server, DENIED[name])
    assert re.match(r"PermissionError|OSError: \[Errno 1\]", message), message


def test_what_the_filter_does_not_know_does_not_exist(server, layers):
    if "seccomp" not in layers:
        pytest.skip("no seccomp here")
    assert "[Errno 38]" in attempt(server, call(100_000))[0]
    assert "[Errno 38]" in attempt(server, call(435, 0, 0))[0]  # clone3: glibc then uses clone


def test_numbers_of_system_calls_are_the_headers():
    if not all(path.exists() for path in HEADERS):
        pytest.skip("no kernel headers here")
    for column, path in enumerate(HEADERS):
        known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
        for name, numbers in seccomp._CALLS.items():
            if numbers[column] is not None and name in known:
                assert int(known[name]) == numbers[column], (name, path)


def test_both_machines_filters_are_well_formed():
    for machine in seccomp._MACHINES:
        for allowed in (frozenset(), seccomp._CUDA, seccomp._TOOL):
            code = seccomp.filter_code(machine, 7, allowed)
            steps = [code[i : i + 8] for i in range(0, len(code), 8)]
            assert len(steps) < 4096
            for at, step in enumerate(steps):
                kind, if_true, if_false = int.from_bytes(step[:2], "little"), step[2], step[3]
                if kind != 0x06:
                    assert at + 1 + max(if_true, if_false) < len(steps)
            assert steps[-1][:2] == b"\x06\x00"


SECRET = "no candidate reads this"
FORBIDDEN = {
    "the password file of the machine": "io.open('/etc/shadow')",
    "a home": "os.listdir(os.path.expanduser('~root'))",
    "everybody's temporary files": "os.listdir('/tmp')",
    "the processes": "os.listdir('/proc')",
    "the first process": "io.open('/proc/1/status')",
    "the fork server's environment": "io.open(f'/proc/{os.getppid()}/environ')",
    "a file beside": "io.open({secret!r})",
    "the project": "io.open({project!r})",
    "the kernels of others": "os.listdir({cache!r})",
    "to write into the package": "io.open({package!r}, 'a')",
    "to write into torch": "import torch\nio.open(os.path.dirname(torch.__file__) + '/planted.py', 'w')",
    "to write into the parent's scratch": "io.open('../planted', 'w')",
    "to set the kernel": "io.open('/proc/sys/vm/overcommit_memory', 'w')",
    "a disk": "io.open('/dev/vda', 'rb')",
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_files_of_others_stay_shut(name, server, layers, tmp_path, monkeypatch):
    if "landlock" not in layers:
        pytest.skip("no Landlock here")
    (tmp_path / "secret").write_text(SECRET)
    places = {
        "secret": str(tmp_path / "secret"),
        "project": str(Path(__file__).resolve()),
        "package": sandbox.__file__,
        "cache": str(tmp_path),
    }
    code = FORBIDDEN[name]
    message, _ = attempt(server, code.format(**places) if "!r" in code else code)
    if name == "a disk" and "FileNotFound" in message:
        pytest.skip("no such disk here")
    assert "PermissionError" in message, message


def test_another_workers_scratch_is_shut(server, layers):
    if "landlock" not in layers:
        pytest.skip("no Landlock here")
    other = server.fork(4.0)
    (other.scratch / "secret").write_text(SECRET)
    message, _ = attempt(server, f"io.open({str(other.scratch / 'secret')!r})")
    other.kill()
    assert "PermissionError" in message


def test_what_honest_work_needs_is_open(server, layers):
    code = """
import threading, torch, numpy, tempfile
x = torch.rand(400, 400)
torch.nn.functional.silu(x).mm(x).sum().item()
assert torch.get_num_threads() == 2
done = []
thread = threading.Thread(target=done.append, args=(1,)); thread.start(); thread.join()
assert done == [1]
os.makedirs("a/b"); io.open("a/x", "w").write("1"); os.replace("a/x", "a/b/x")
assert io.open("a/b/x").read() == "1"
with tempfile.NamedTemporaryFile() as file: file.write(b"0")
io.open(torch.__file__).read(); io.open("/proc/self/status").read(); io.open("/proc/cpuinfo").read()
os.memfd_create("x"); os.getloadavg(); os.urandom(4); os.sched_setaffinity(0, os.sched_getaffinity(0))
ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)()
raise RuntimeError("all of it worked")
"""
    message, log = attempt(server, code)
    assert "all of it worked" in message, message
    assert "denied" not in log


def test_what_is_written_is_seen_by_no_other_worker(server, layers):
    if "private_scratch" not in layers:
        pytest.skip("no mount namespace here")
    name = f"/dev/shm/passagent-test-{os.getpid()}"
    worker = server.fork(4.0)
    assert "written" in load(
        worker, f"io.open({name!r}, 'w').close(); io.open('x', 'w').close(); raise IOError('written')"
    )
    assert sorted(os.listdir(worker.scratch)) == ["log"]
    assert not Path(name).exists()
    worker.kill()
    assert not worker.scratch.exists()


FILLERS = {
    "bytes": "f = io.open('x', 'wb')\nwhile True: f.write(bytes(1 << 16))",
    "files": "for i in range(10**6): io.open(str(i), 'w').close()",
    "bytes in shared memory": "f = io.open('/dev/shm/x', 'wb')\nwhile True: f.write(bytes(1 << 16))",
}


@pytest.mark.parametrize("name", FILLERS)
def test_a_disk_is_not_filled(name, server, layers, monkeypatch):
    if "private_scratch" not in layers:
        pytest.skip("no mount namespace here")
    monkeypatch.setattr(endings, "LIMITS", Limits(scratch=8 << 20, files=500))
    assert "No space left on device" in attempt(server, FILLERS[name])[0]


def test_no_descriptor_of_the_fork_servers_is_inherited(server, layers):
    code = """
fds = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd") if int(n) > 2]
raise RuntimeError(repr([os.readlink(fd) for fd in fds if os.path.lexists(fd)]))
"""
    message, _ = attempt(server, code)
    kept = re.findall(r"'([^']+)'", message)
    assert sum(name.startswith("socket:") for name in kept) == 1  # the channel
    assert not [name for name in kept if not re.match(r"socket:|/proc\b|/proc/", name)], kept


def test_privileges_are_gone(server, layers):
    message, _ = attempt(server, "raise RuntimeError(io.open('/proc/self/status').read())")
    assert re.search(r"CapEff:\s+0{16}\s", message)
    assert re.search(r"CapPrm:\s+0{16}\s", message)
    assert re.search(r"NoNewPrivs:\s+1\s", message)
    assert ("seccomp" not in layers) or re.search(r"Seccomp:\s+2\s", message)


def test_a_trusted_worker_may_run_a_compiler(server):
    worker = server.fork(4.0, sandboxed=False)
    assert worker.protections == {}
    assert "cc ran" in load(
        worker, "import subprocess\nsubprocess.run(['true'], check=True)\nraise RuntimeError('cc ran')"
    )
    worker.kill()


def test_layers_that_a_kernel_lacks_are_named(tmp_path, monkeypatch):
    """Without namespaces and Landlock the rest holds, and the report says which is missing and why."""

    def missing(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(privileges, "unshare", missing)
    monkeypatch.setattr(landlock, "restrict", missing)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        report = sandbox.enter(tmp_path, Limits(), {theirs.fileno()}, cuda=True)
        theirs.sendall(repr(report).encode())
        os._exit(0)
    report = eval(ours.recv(1 << 16))  # our own child's
    os.waitpid(pid, 0)
    assert (
        report["landlock"]
        == report["user_namespace"]
        == report["private_scratch"]
        == "off: Function not implemented"
    )
    assert report["no_new_privileges"] == report["resource_limits"] == "on"
    assert list(report) == LAYERS


ENDS = {
    "a segfault": ("ctypes.string_at(8)", "runtime_error", "died with SIGSEGV"),
    "an exit": ("os._exit(3)", "runtime_error", "exited with code 3"),
    "a closed channel": (
        "import time\nos.closerange(3, 100)\ntime.sleep(1000)",
        "runtime_error",
        "broke off",
    ),
    "a full log": (
        "while True: os.write(1, bytes(1 << 16))",
        "runtime_error",
        "wrote more than 4 MB to its log",
    ),
    "processor time": ("while True: pass", "timeout", "used more than 1 s of processor time"),
    "processor time, hidden": (
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "timeout",
        "used more than 1 s of processor time",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_a_worker_ended_is_named(name, server, monkeypatch):
    monkeypatch.setattr(endings, "LIMITS", Limits(file=4 << 20, cpu_s=1))
    code, status, words = ENDS[name]
    with pytest.raises(WorkerDied) as died:
        attempt(server, code)
    assert (died.value.status, died.value.killed_from_outside) == (status, False)
    assert words in died.value.describe()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_from_outside_is_not_the_candidates_fault(number, server):
    worker = server.fork(4.0)
    os.kill(worker.pid, number)
    with pytest.raises(WorkerDied) as died:
        load(worker, "1")
    assert died.value.killed_from_outside
    assert not worker.scratch.exists()


def test_the_kernels_own_kill_for_memory_is_told_apart(monkeypatch):
    assert memory_kills() >= 0
    died = WorkerDied(-signal.SIGKILL, "", no_memory=True)
    assert (died.status, died.killed_from_outside) == ("out_of_memory", False)


def test_workers_end_with_their_fork_server_and_another_takes_its_place(server):
    worker, trusted = server.fork(4.0), server.fork(None, sandboxed=False)
    scratch = server._server.scratch
    server._server.process.kill()
    deadline = time.monotonic() + 300
    while not (_gone(worker.pid) and _gone(trusted.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for one in (worker, trusted):
        with pytest.raises(WorkerDied) as died:
            load(one, "1")
        assert died.value.killed_from_outside
    assert "ZeroDivisionError" in attempt(server, "1 // 0")[0]
    assert not scratch.exists()


def _gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_paused_worker_stands_still_and_goes_on(server):
    worker = server.fork(None)

    def state():
        return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0]

    with worker.paused():
        while state() != "T":  # the signal is on its way
            time.sleep(0.001)
    while state() == "T":
        time.sleep(0.001)
    assert worker.is_alive()
    worker.halt()
    worker.kill()
    assert not worker.is_alive()
